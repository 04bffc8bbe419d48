"""Copies on this machine: whole or not at all, in place of nothing but our own copies."""

import ctypes
import dataclasses
import errno
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import MODEL_FILES, DamagedError, Manifest, read_checkpoint, read_manifest
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.config import ConfigError
from dp_prior.files.temporary import temporary_beside
from dp_prior.places.local import LocalSaverConfig, copy_checkpoint, exchange, fill
from dp_prior.places.reference import resolve
from tests.checkpoints.documents import progress_of
from tests.messages import naming

FILES = ["config.json", "model.safetensors", "progress.json", "spec.json", "training.safetensors"]


class Run:
    """A store whose checkpoints go to a saver."""

    def __init__(self, directory):
        self.directory = self.data_path = directory
        self.store = CheckpointStore(directory / "checkpoints", RetentionConfig(keep_latest=50), monitor="loss")
        self.lock = self.store.lock(wait_s=0)

    def save(self, step, saver=None, value=None, is_best=False):
        tensors = {name: {"w": torch.full((3,), float(step))} for name in FILES if name.endswith("safetensors")}
        documents = {name: {"step": step, **progress_of(step)} for name in FILES if name.endswith("json")}
        documents["config.json"] = {"tracker": {"data_path": str(self.data_path)}}
        metrics = {} if value is None else {"loss": value}
        saved = self.store.write(Snapshot(tensors, documents), Progress(10 * step, step), metrics, is_best)
        if saver is not None:
            saver.save(saved)
        return saved


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    yield run
    run.lock.release()


def saver_of(run, monitor="loss", **fields):
    return LocalSaverConfig(**fields).create(run.directory, monitor)


def step_of(directory):
    return int(read_checkpoint(directory).tensors["model.safetensors"]["w"][0])


def test_latest_and_best_go_to_their_places(run):
    saver = saver_of(run, save_latest_to="exports/latest", save_best_to="exports/best")
    for step, is_best in [(1, False), (2, True), (3, False)]:
        run.save(step, saver, is_best=is_best)
    exports = run.directory / "exports"
    assert (step_of(exports / "latest"), step_of(exports / "best")) == (3, 2)
    assert sorted(os.listdir(exports)) == ["best", "latest"]
    assert sorted(os.listdir(exports / "latest")) == sorted([*FILES, "manifest.json"])
    assert resolve(exports / "best") == exports / "best"


def test_at_the_end_the_best_is_copied_under_the_name_it_would_have_had(run):
    best = run.save(1, value=0.25)
    saver = saver_of(run, save_latest_to="latest", save_best_to="best_{step}_{samples_seen}_{metric}")
    for _ in range(2):
        saver.complete(best.path, {}, {})
    assert [path.name for path in run.directory.glob("best*")] == ["best_1_10_0.25"]
    assert step_of(run.directory / "best_1_10_0.25") == 1
    assert not (run.directory / "latest").exists()
    saver_of(run, save_latest_to="latest").complete(best.path, {}, {})
    assert not (run.directory / "latest").exists()


def test_what_must_not_be_resumed_from_is_not_copied(run):
    saver = saver_of(run, save_latest_to="exports/latest", save_best_to="exports/best")
    durable = run.save(1)
    saver.save(dataclasses.replace(durable, is_latest=False, is_best=False))
    assert not (run.directory / "exports").exists()


def test_a_model_is_what_is_needed_to_act(run):
    run.save(1, saver_of(run, save_latest_to="model", save_type="model"))
    target = run.directory / "model"
    assert sorted(os.listdir(target)) == ["config.json", "manifest.json", "model.safetensors", "spec.json"]
    snapshot = read_checkpoint(target)
    assert sorted(snapshot.documents) == ["config.json", "spec.json"] and step_of(target) == 1
    assert read_manifest(target).step == 1


def test_templates_are_filled_and_old_copies_pruned_only_under_the_same_template(run, tmp_path):
    (run.directory / "exports").mkdir(parents=True)
    (run.directory / "exports" / "step_7_mine").mkdir()
    (run.directory / "exports" / "step_9").mkdir()
    (run.directory / "exports" / "step_9" / "notes.txt").write_text("mine")
    saver = saver_of(run, save_latest_to="exports/step_{step}", save_best_to=f"{tmp_path}/best_{{metric:.2f}}", keep=2)
    for step, value in [(1, 0.5), (2, None), (3, 0.25), (4, 0.125)]:
        run.save(step, saver, value, is_best=value is not None)
    assert sorted(os.listdir(run.directory / "exports")) == ["step_3", "step_4", "step_7_mine", "step_9"]
    assert (run.directory / "exports" / "step_9" / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.glob("best_*")) == ["best_0.12", "best_0.25"]


def test_copies_of_one_template_do_not_count_as_those_of_another(run):
    saver = saver_of(run, save_latest_to="all/step_{step:08d}", save_best_to="all/step_{step:08d}_best", keep=2)
    for step in range(1, 7):
        run.save(step, saver, 1 / step, is_best=step <= 3)
    found = sorted(os.listdir(run.directory / "all"))
    assert found == ["step_00000002_best", "step_00000003_best", "step_00000005", "step_00000006"]


def test_copies_named_by_a_metric_that_is_not_finite_are_pruned_too(run):
    saver = saver_of(run, save_latest_to="at_{step}_{metric:.2f}", keep=2)
    for step, value in enumerate([math.nan, math.inf, 0.5], 1):
        run.save(step, saver, value)
    assert sorted(path.name for path in run.directory.glob("at_*")) == ["at_2_none", "at_3_0.50"]


def test_copies_of_another_run_are_not_pruned_and_none_that_was_just_made(run, tmp_path):
    """Its copies have higher numbers, so each one of this run was deleted as the oldest by the call that made it."""
    places = {"save_latest_to": str(tmp_path / "shared" / "step_{step}"), "keep": 2}
    other = Run(tmp_path / "other")
    for one, steps in ((other, range(11, 16)), (run, range(1, 5))):
        for step in steps:
            one.save(step, saver_of(one, **places))
    other.lock.release()
    assert sorted(os.listdir(tmp_path / "shared")) == ["step_14", "step_15", "step_3", "step_4"]


def test_a_run_trained_anew_prunes_the_copies_of_its_first_life(run, tmp_path):
    places = {"save_latest_to": str(tmp_path / "shared" / "step_{step}"), "keep": 2}
    for step in range(11, 16):
        run.save(step, saver_of(run, **places))
    run.lock.release()
    again = Run(tmp_path / "again")  # whose saves are numbered from 1
    again.data_path = run.data_path
    again.save(1, saver_of(again, **places))
    again.lock.release()
    assert sorted(os.listdir(tmp_path / "shared")) == ["step_1", "step_15"]


def test_a_checkpoint_of_a_run_is_never_replaced_by_a_copy(run, tmp_path):
    """An export to its own checkpoint took its training state; one to another run's damaged that."""
    other = Run(tmp_path / "other")
    mine, others = run.save(1).path, other.save(2).path
    other.lock.release()
    before = {path: path.read_bytes() for path in (*mine.iterdir(), *others.iterdir())}
    for target in (mine, others):
        with pytest.raises(FileExistsError, match=naming(target)):
            copy_checkpoint(mine, target, MODEL_FILES)
    moved = others.parent.rename(tmp_path / "elsewhere") / others.name  # which its index tells
    with pytest.raises(FileExistsError, match=naming("elsewhere/step_00000002")):
        copy_checkpoint(mine, moved)
    moved.parent.rename(others.parent)
    assert before == {path: path.read_bytes() for path in (*mine.iterdir(), *others.iterdir())}
    with pytest.raises(
        ValueError, match=naming("save_latest_to", "'checkpoints/step_{step:08d}'", "another directory")
    ):
        LocalSaverConfig(save_latest_to="checkpoints/step_{step:08d}")


def test_without_keep_every_copy_stays(run):
    saver = saver_of(run, save_latest_to="{samples_seen:06d}")
    for step in (1, 2, 3):
        run.save(step, saver)
    assert sorted(path.name for path in run.directory.glob("0*")) == ["000010", "000020", "000030"]


@pytest.mark.parametrize("kind", ["file", "foreign directory", "copy with a foreign file", "link", "empty directory"])
def test_what_is_not_ours_is_never_replaced(run, kind, tmp_path):
    target = run.directory / "latest"
    saver = saver_of(run, save_latest_to="latest")
    if kind == "file":
        target.write_text("mine")
    elif kind == "copy with a foreign file":
        run.save(1, saver)
        (target / "notes.txt").write_text("mine")
    elif kind == "link":
        run.save(1, saver_of(run, save_latest_to=str(tmp_path / "elsewhere")))
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.mkdir()
        if kind == "foreign directory":
            (target / "manifest.json").write_text("{}")
    before = sorted(target.iterdir()) if target.is_dir() else target.read_text()
    with pytest.raises(FileExistsError, match=naming(target)):
        run.save(2, saver)
    assert (sorted(target.iterdir()) if target.is_dir() else target.read_text()) == before


def test_a_damaged_checkpoint_is_not_copied_and_the_old_copy_stays(run):
    saver = saver_of(run, save_latest_to="latest")
    run.save(1, saver)
    durable = run.save(2)
    path = durable.path / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(DamagedError, match=naming("step_00000002", "training.safetensors", "SHA-256")):
        saver.save(durable)
    assert step_of(run.directory / "latest") == 1
    assert not list(run.directory.glob(".tmp*"))


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_copy_that_fails_leaves_the_old_one(run, monkeypatch, call):
    saver = saver_of(run, save_latest_to="latest", save_best_to="new")
    run.save(1, saver)
    durable = run.save(2, is_best=True)

    def broken(*arguments):
        raise OSError("no")

    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match=naming("no")):
        saver.save(durable)
    monkeypatch.undo()
    assert step_of(run.directory / "latest") in (1, 2)
    assert not (run.directory / "new").exists()
    assert not list(run.directory.glob(".tmp*"))


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_call_a_reader_finds_the_old_copy_or_the_new_one(run, stride):
    """Every call of `os` that a copy makes is the last one of some child; the place is never empty."""
    target = run.directory / "latest"
    first, second = run.save(1).path, run.save(2).path
    for number in range(1, 100, stride):
        shutil.rmtree(target, ignore_errors=True)
        copy_checkpoint(first, target)
        child = os.fork()
        if child == 0:
            count = [0]

            def dying(function, number=number, count=count):
                def call(*arguments, **options):
                    count[0] += 1
                    if count[0] == number:
                        os._exit(77)
                    return function(*arguments, **options)

                return call

            try:
                for name in ("mkdir", "fsync", "rename", "unlink", "rmdir", "open"):
                    setattr(os, name, dying(getattr(os, name)))
                copy_checkpoint(second, target)
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert step_of(target) in (1, 2)
        copy_checkpoint(second, target)
        assert not list(run.directory.glob(".tmp*")), "the leftovers of the dead child stay"
        if code == 0:
            break
    assert code == 0 and number > 15


def test_only_leftovers_of_dead_processes_for_the_same_place_are_removed(run, monkeypatch):
    durable = run.save(1)
    target = run.directory / "latest"
    other = temporary_beside(run.directory / "other")
    alive = temporary_beside(target)
    for path in (other, alive):
        path.mkdir()
    copy_checkpoint(durable.path, target)
    assert other.exists() and alive.exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{epoch}", ("{epoch}", "{step}", "{samples_seen}", "{metric}")),
        ("{}", ("{}", "save_latest_to", "{step}")),
        ("{step.real}", ("save_latest_to", "'{step.real}'", "{samples_seen}")),
        ("{step!r}", ("save_latest_to", "'{step!r}'", "{samples_seen}")),
        ("{step:z}", ("save_latest_to", "'{step:z}'", "format")),
        ("{step", ("save_latest_to", "'{step'", "'}'")),
        ("../{step}", ("save_latest_to", "'../{step}'", "'..'")),
        ("a/../../b", ("save_latest_to", "'a/../../b'", "'..'")),
        ("", ("save_latest_to", "directory", "'..'")),
        ("/", ("save_latest_to", "directory", "'..'")),
        ("~", ("save_latest_to", "directory", "'..'")),
        ("{step}/model", ("save_latest_to", "'{step}/model'")),
        ("s3://bucket/x", ("save_latest_to", "'s3://bucket/x'", "URL", "'fsspec'")),
    ],
)
def test_a_template_that_cannot_be_filled_or_leads_elsewhere_is_refused(template, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        LocalSaverConfig(save_latest_to=template)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.none() | st.floats())
def test_what_is_filled_in_is_one_harmless_name(step, seen, metric):
    manifest = Manifest.model_construct(step=step, samples_seen=seen, metrics={"loss": metric})
    name = fill("a_{step:/>9}_{samples_seen:,}_{metric:+e}", manifest, "loss")
    assert "/" not in name and ".." not in name and "\0" not in name


def test_a_place_that_fails_does_not_keep_the_other_from_its_copy(run, tmp_path):
    (tmp_path / "file").touch()
    saver = saver_of(run, save_latest_to=str(tmp_path / "file" / "latest"), save_best_to="best")
    with pytest.raises(OSError, match=naming("file")):
        run.save(1, saver, value=0.5, is_best=True)
    assert step_of(run.directory / "best") == 1


def test_a_saver_without_a_place_or_with_one_place_twice_is_refused():
    with pytest.raises(ConfigError, match=naming("local saver", "save_latest_to", "save_best_to")):
        LocalSaverConfig()
    for same in ("a", "a/", "./a"):
        with pytest.raises(ConfigError, match=naming("'a'", "save_latest_to", "save_best_to")):
            LocalSaverConfig(save_latest_to="a", save_best_to=same)


def test_a_template_with_metric_needs_a_monitored_one(run):
    with pytest.raises(ValueError, match=naming("'{metric}'", "none")):
        saver_of(run, monitor=None, save_best_to="{metric}")


def test_a_copy_is_described_by_a_manifest_of_its_own_files(run):
    run.save(1, saver_of(run, save_latest_to="model", save_type="model"))
    manifest = json.loads((run.directory / "model" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["config.json", "model.safetensors", "spec.json"]


@pytest.mark.parametrize("can_swap", [True, False])
def test_exchange_swaps_directories(tmp_path, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "file").read_text() == "other"
    assert (tmp_path / "other" / "file").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EIO, errno.EACCES, errno.EBUSY], ids=errno.errorcode.get)
@pytest.mark.parametrize("can_swap", [True, False])
def test_an_exchange_that_fails_leaves_both_names(tmp_path, monkeypatch, can_swap, code):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    rename = os.rename

    def broken(source, target):
        if Path(source).name == "one":
            raise OSError(code, os.strerror(code))
        rename(source, target)

    class Library:
        def renameat2(self, *arguments):
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(os, "rename", broken)
    monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: Library() if can_swap else object())
    with pytest.raises(OSError, match=naming(os.strerror(code))) as failure:
        exchange(tmp_path / "one", tmp_path / "other")
    assert failure.value.errno == code
    assert {name: (tmp_path / name / "file").read_text() for name in os.listdir(tmp_path)} == {
        "one": "one",
        "other": "other",
    }
