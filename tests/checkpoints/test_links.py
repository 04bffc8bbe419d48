"""A checkpoint that was archived elsewhere and linked is read like any other, and nothing is changed through a link."""

import os
import shutil

import pytest
import torch

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import CheckpointError, read_checkpoint
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.run_lock import LOCK, RunLock
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import INDEX, CheckpointStore
from dp_prior.places.reference import resolve
from dp_prior_lab.upkeep import repair, superfluous, take_stock
from tests.checkpoints.documents import progress_of
from tests.messages import naming


def save(store, step):
    tensors = {"model.safetensors": {"w": torch.full((50,), float(step))}}
    store.write(
        Snapshot(tensors, {"progress.json": progress_of(step)}), Progress(10 * step, step), {"loss": 1.0 / step}
    )


def open_store(run, **retention):
    store = CheckpointStore(run / "checkpoints", RetentionConfig(**retention), monitor="loss")
    store.held = store.lock(wait_s=0)
    return store


def content(directory):
    """Every name below a directory, and what is in it."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.is_file() and path.read_bytes()
        for path in sorted(directory.rglob("*"))
    }


def names(store):
    return sorted(path.name for path in store.root.iterdir() if path.name != INDEX)


KINDS = ["the directory", "the manifest", "a file"]


@pytest.fixture(params=KINDS)
def archived(request, tmp_path):
    """(run with checkpoints 1 to 3, path of the first, which is archived, and the archive)."""
    store = open_store(tmp_path / "run", keep_latest=9)
    for step in (1, 2, 3):
        save(store, step)
    store.held.release()
    path, archive = store.root / "step_00000001", tmp_path / "archive"
    if request.param == "the directory":
        shutil.move(path, archive)
        path.symlink_to(archive)
    else:
        archive.mkdir()
        name = "manifest.json" if request.param == "the manifest" else "model.safetensors"
        shutil.move(path / name, archive / name)
        (path / name).symlink_to(archive / name)
    return tmp_path / "run", path, archive


def test_it_is_found_read_and_verified(archived):
    run, path, _ = archived
    shutil.rmtree(run / "checkpoints" / "step_00000002")
    shutil.rmtree(run / "checkpoints" / "step_00000003")
    store = open_store(run)
    assert store.latest() == store.best() == path
    assert (read_checkpoint(path).tensors["model.safetensors"]["w"] == 1).all()
    assert resolve(run) == resolve(path) == path
    assert [(found.path, found.kind) for found in take_stock(store.root, compare_hashes=True)] == [(path, "good")]
    save(store, 2)
    assert names(store) == ["step_00000001", "step_00000002"]
    store.held.release()


def test_retention_prune_and_repair_leave_it_alone_and_do_not_count_it(archived):
    run, path, archive = archived
    before = content(archive), content(path)
    store = open_store(run, keep_latest=2, keep_best=0)
    assert superfluous(store) == []
    for step in (4, 5, 6):
        save(store, step)
        assert names(store) == ["step_00000001", f"step_0000000{step - 1}", f"step_0000000{step}"]
    assert store.prune() == []
    repair(store)
    assert (content(archive), content(path)) == before and names(store)[0] == path.name
    store.held.release()


@pytest.mark.parametrize("state", ["here", "set aside"])
def test_a_damaged_one_is_passed_over_and_not_renamed(archived, caplog, state):
    run, path, archive = archived
    if state == "set aside":
        path = path.rename(path.with_name("damaged_step_00000001"))
    else:
        os.truncate(path / "model.safetensors", 3)
    before = content(archive), content(path)
    store = open_store(run, keep_latest=2)
    assert store.latest().name == "step_00000003"
    save(store, 4)
    repair(store)
    assert path.exists() and (content(archive), content(path)) == before
    if state == "here":
        assert "skipping checkpoint" in caplog.text
    store.held.release()


def test_a_link_that_leads_nowhere_is_named_and_stays(archived, caplog):
    run, path, archive = archived
    shutil.rmtree(archive)
    store = open_store(run)
    assert store.latest().name == "step_00000003"
    assert path.is_symlink() or path.is_dir()
    assert f"skipping checkpoint {path}" in caplog.text
    shutil.rmtree(store.root / "step_00000002")
    shutil.rmtree(store.root / "step_00000003")
    with pytest.raises(
        CheckpointError,
        match=naming("run/checkpoints", "step_00000001", "dp-prior checkpoints repair", "--resume never"),
    ):
        store.latest()
    store.held.release()


def test_a_link_under_a_temporary_name_is_removed_and_not_followed(tmp_path):
    precious = tmp_path / "precious"
    (precious / "inner").mkdir(parents=True)
    (precious / "file").write_text("mine")
    store = open_store(tmp_path / "run")
    store.held.release()
    for place in (store.root, store.root.parent):
        (place / ".tmp_elsewhere_1_01234567_a").symlink_to(precious)
        (place / ".tmp_elsewhere_1_01234567_b").symlink_to(precious / "file")
        (place / ".tmp_elsewhere_1_01234567_c").mkdir()
        (place / ".tmp_elsewhere_1_01234567_c" / "inner").symlink_to(precious / "inner")
    store = open_store(tmp_path / "run")
    assert content(precious) == {"file": b"mine", "inner": False}
    assert names(store) == []
    store.held.release()


def test_neither_the_lock_nor_the_index_is_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / INDEX).symlink_to(precious)
    store = open_store(run)
    save(store, 1)
    store.held.release()
    assert precious.read_text() == "mine"
    (run / LOCK).unlink()
    (run / LOCK).symlink_to(precious)
    with pytest.raises(
        CheckpointError,
        match=naming("Too many levels of symbolic links", run / LOCK, "--set tracker.data_path="),
    ):
        RunLock(run)
    assert precious.read_text() == "mine"
