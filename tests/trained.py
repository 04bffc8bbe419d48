"""Tiny trained runs that suites only read, see `made_once`.

A test that changes a run copies it first; one that changes a shared run fails.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import forks
from tests.once import made_once

# What writes the configuration of each in a folder, where its run is then in `run`.
_WRITERS = {
    "policy": ("tests.tiny", "write"),
    "camera": ("tests.tiny_camera", "saved"),
    "prior": ("tests.test_prior", "write"),
    "image": ("tests.test_image", "write"),
}
Shared = Callable[[str], Iterator[Path]]


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Lends the run of a kind, and looks afterwards whether it is as it was."""
    known: dict[str, dict[str, tuple[int, int]]] = {}

    def lend(kind: str) -> Iterator[Path]:
        place = made_once(tmp_path_factory, kind, partial(_train, kind))
        before = known.setdefault(kind, _files(place))
        yield place / "run"
        assert _files(place) == before, f"a test has changed the shared run {place}; copy it first"

    return lend


@pytest.fixture
def trained_policy(shared_run: Shared) -> Iterator[Path]:
    """The directory of a run of `tests.tiny`, with its configuration and data beside it."""
    yield from shared_run("policy")


@pytest.fixture
def trained_camera(shared_run: Shared) -> Iterator[Path]:
    """The same of a policy that sees a camera, of `tests.tiny_camera`."""
    yield from shared_run("camera")


@pytest.fixture
def trained_prior(shared_run: Shared) -> Iterator[Path]:
    """The same of a prior, of `tests.test_prior`."""
    yield from shared_run("prior")


@pytest.fixture
def trained_image(shared_run: Shared) -> Iterator[Path]:
    """The same of a model of images, of `tests.test_image`."""
    yield from shared_run("image")


def _train(kind: str, place: Path) -> None:
    """Train a run in a folder: in a process of its own, which patches of the test that asks do not reach."""
    module, function = _WRITERS[kind]
    config = getattr(importlib.import_module(module), function)(place)
    done = forks.call([forks.ROOT / "train_policy.py", "--config_file", config])
    assert done.returncode == 0, done.stdout + done.stderr


def _files(place: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file."""
    found = {path: path.lstat() for path in place.rglob("*") if not path.is_dir()}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}
