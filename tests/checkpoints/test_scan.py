"""What is found in a directory of checkpoints: each once, the newest first, and every fault by its kind."""

import os
import shutil

import pytest

from dp_prior.checkpoints.errors import DamagedError, UnreadableCheckpointError
from dp_prior.checkpoints.format import MANIFEST
from dp_prior.checkpoints.reading import Patience
from dp_prior.checkpoints.scan import STEP, StoredCheckpoint, checkpoint_at, names_in, scan, scan_all
from tests.messages import naming
from tests.places.parcels import Run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    run = Run(tmp_path / "run")
    yield run
    run.lock.release()


def contents(root):
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_checkpoints_come_newest_first_by_the_save_and_not_by_the_step(run):
    for step in (3, 1, 2):  # a run that went back
        run.save(step, value=10.0 + step)
    found, damages = scan(run.store.root)
    assert [stored.manifest.step for stored in found] == [2, 1, 3] and damages == []
    assert [stored.value("loss") for stored in found] == [12.0, 11.0, 13.0]
    assert {(stored.value("other"), stored.value(None), stored.is_linked) for stored in found} == {(None, None, False)}


def test_what_is_no_checkpoint_is_not_looked_at_and_nothing_is_changed(run):
    path = run.save(1).path
    for name in ("step_1", "step_00000002.damaged", "latest", ".tmp"):
        (run.store.root / name).mkdir()
    (run.store.root / "step_00000009").write_text("a file")
    before = contents(run.store.root)
    assert [stored.path for stored in scan(run.store.root)[0]] == [path]
    assert contents(run.store.root) == before


@pytest.mark.parametrize("fault", ["no manifest", "no file", "short file", "another step", "dangling link"])
def test_a_damaged_one_is_named_beside_the_good_ones(run, fault):
    good, bad = run.save(1).path, run.save(2).path
    if fault == "no manifest":
        (bad / MANIFEST).unlink()
    elif fault == "no file":
        (bad / "spec.json").unlink()
    elif fault == "short file":
        os.truncate(bad / "model.safetensors", 10)
    elif fault == "another step":
        bad = bad.rename(bad.with_name("step_00000007"))
    else:
        shutil.rmtree(bad)
        bad.symlink_to("nowhere")
    found, damages = scan(run.store.root)
    assert [stored.path for stored in found] == [good] and [error.path for error in damages] == [bad]


def test_hashes_are_compared_only_where_that_is_asked_for(run):
    path = run.save(1).path
    data = (path / "spec.json").read_bytes()
    (path / "spec.json").write_bytes(data[::-1])
    assert isinstance(checkpoint_at(path, Patience()), StoredCheckpoint)
    assert isinstance(checkpoint_at(path, Patience(), compare_hashes=True), DamagedError)
    (path / "spec.json").write_bytes(data)
    assert isinstance(checkpoint_at(path, Patience(), compare_hashes=True), StoredCheckpoint)


def test_a_linked_one_is_found_as_such(run, tmp_path):
    path = run.save(1).path
    path.rename(tmp_path / "archive")
    path.symlink_to(tmp_path / "archive")
    (stored,) = scan(run.store.root)[0]
    assert stored.is_linked and stored.path == path


def test_one_that_cannot_be_read_ends_a_scan_and_is_a_problem_of_a_look(run, monkeypatch):
    good, bad = run.save(1).path, run.save(2).path
    original = os.stat

    def stat(path, **options):
        if not isinstance(path, int) and os.fspath(path) == str(bad):
            raise PermissionError(13, "Permission denied")
        return original(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    found, problems = scan_all(run.store.root)
    kinds = {one.path: type(one) for one in [*found, *problems]}
    assert kinds == {good: StoredCheckpoint, bad: UnreadableCheckpointError}
    with pytest.raises(UnreadableCheckpointError, match=naming("step_00000002", "Permission denied")):
        scan(run.store.root)


def test_without_a_directory_there_is_nothing(tmp_path):
    assert names_in(tmp_path / "none") == [] and scan(tmp_path / "none") == ([], [])
    assert checkpoint_at(tmp_path / "step_00000001", Patience()) is None


@pytest.mark.parametrize(
    ("name", "step"), [("step_00000012", 12), ("step_00000012_3", 12), ("step_123456789", 123456789)]
)
def test_a_name_tells_its_step(name, step):
    assert int(STEP.fullmatch(name)[1]) == step
