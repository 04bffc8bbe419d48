"""Every module has its tests where a reader looks for them: those of `a/b.py` in `a/test_b.py`."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "dp_prior"
MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")  # what a folder offers, and a line that starts it
)
UNMIRRORED = [
    "commands/export.py",
    "commands/frame_caches.py",
    "commands/push.py",
    "commands/stored.py",
    "data/embeddings/embedding_column.py",
    "data/embeddings/metadata.py",
    "data/embeddings/npy.py",
    "data/embeddings/parquet.py",
    "data/frames/build.py",
    "data/frames/folder.py",
    "data/frames/frame_column.py",
    "data/frames/video_frames.py",
    "data/pictures/stored_images.py",
    "data/recorded/camera.py",
    "data/recorded/demonstrations.py",
    "data/recorded/records.py",
    "evaluation/rollout_evaluator.py",
    "inference/export/exported_agent.py",
    "inference/export/graphs.py",
    "inference/export/torch_policy.py",
    "pixels/renderers/pusht.py",
    "run/assembly.py",
    "run/check.py",
    "run/plan.py",
]
"""Modules whose tests stand in another file. The list only shrinks: a new module comes with a file of its own."""


def mirror(module: str) -> Path:
    """The file with the tests of a module."""
    path = TESTS / module
    return path.with_name(f"test_{path.name}")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file_at_its_own_path(module):
    assert mirror(module).is_file() or module in UNMIRRORED, f"write {mirror(module).relative_to(TESTS.parent)}"


@pytest.mark.parametrize("module", UNMIRRORED)
def test_a_module_that_is_excused_is_there_and_has_no_test_file(module):
    assert module in MODULES, f"{module} is gone; take it out of UNMIRRORED"
    assert not mirror(module).is_file(), f"{module} has a test file; take it out of UNMIRRORED"


def test_excuses_are_in_order_and_given_once():
    assert sorted(set(UNMIRRORED)) == UNMIRRORED
