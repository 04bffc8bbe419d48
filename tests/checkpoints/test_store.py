"""The store: what it finds, what it falls back to, what it deletes and what it never touches."""

import errno
import json
import logging
import math
import os
import shutil
import sys

import pytest
import torch

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import MANIFEST, CheckpointError, read_checkpoint, read_manifest
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.run_lock import LockedError
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import INDEX, CheckpointStore
from dp_prior.config import Config
from dp_prior.files.json_text import encode_document
from dp_prior.files.temporary import temporary_beside
from dp_prior.run.exit_file import UNSAVED, classify
from tests.audited import events_of
from tests.checkpoints.documents import progress_of, recover
from tests.limits import file_sizes_up_to
from tests.messages import naming, told
from tests.open_files import open_below

MONITOR = "validation/ema/loss"


def snapshot_of(step):
    """Every number in it is the step."""
    tensors = {
        "model.safetensors": {"w": torch.full((4, 3), float(step))},
        "training.safetensors": {"m": torch.full((50,), float(step))},
    }
    return Snapshot(tensors, {"config.json": {"seed": 1}, "progress.json": progress_of(step)})


def is_of(snapshot, step):
    tensors = [tensor for content in snapshot.tensors.values() for tensor in content.values()]
    return all((tensor == step).all() for tensor in tensors) and snapshot.documents["progress.json"] == progress_of(
        step
    )


def open_store(run, retention=None, **options):
    store = CheckpointStore(
        run / "checkpoints", retention or RetentionConfig(), **{"monitor": MONITOR, "mode": "min", **options}
    )
    store.lock_held = store.lock(wait_s=0)
    return store


def save(store, step, value=None, **options):
    metrics = {} if value is None else {MONITOR: value}
    return store.write(snapshot_of(step), Progress(10 * step, step), metrics, **options)


def reopen(store, **options):
    store.lock_held.release()
    return open_store(store.root.parent, store.retention, **options)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path / "run")
    yield store
    store.lock_held.release()


def names(store):
    return sorted(path.name for path in store.root.iterdir() if path.name != INDEX)


def test_newest_and_best_are_found_and_the_rest_is_pruned(store):
    for step, value in [(10, 0.5), (20, 0.3), (30, 0.4), (40, 0.3), (50, None), (60, math.nan)]:
        saved = save(store, step, value, is_best=value == 0.5)
        assert saved.is_latest and saved.is_best == (step == 10)
        assert saved.path == store.latest()
    assert names(store) == ["step_00000020", "step_00000050", "step_00000060"]
    assert store.best().name == "step_00000020"
    assert [stored.manifest.progress for stored in store.good()] == [Progress(10 * n, n) for n in (60, 50, 20)]
    index = json.loads((store.root / INDEX).read_text())
    assert (index["latest"], index["best"]) == ("step_00000060", "step_00000020")
    assert [kept["name"] for kept in index["kept"]] == ["step_00000060", "step_00000050", "step_00000020"]
    path, snapshot = recover(store)
    assert path.name == "step_00000060" and is_of(snapshot, 60)


def test_an_empty_store_has_neither(store):
    assert (store.latest(), store.best(), recover(store), list(store.good())) == (None, None, None, [])


@pytest.mark.promise("B4")
def test_a_restart_remembers_everything_from_the_manifests(store):
    for step, value in [(10, 0.3), (20, 0.9), (30, 0.8), (40, 0.7)]:
        save(store, step, value)
    (store.root / INDEX).unlink()
    again = reopen(store)
    assert (again.best().name, again.latest().name) == ("step_00000010", "step_00000040")
    save(again, 50, 0.4)
    assert names(again) == ["step_00000010", "step_00000040", "step_00000050"]
    assert read_manifest(again.latest()).sequence == 5


def test_the_manifest_repeats_what_matters(store):
    class Whole(Config):
        seed: int = 1

    saved = store.write(
        Snapshot({}, {"config.json": {"seed": 1}}), Progress(70, 7), {MONITOR: 0.5, "other": math.inf}, is_best=True
    )
    manifest = read_manifest(saved.path)
    assert manifest.config_hash == Whole().digest()
    assert (manifest.step, manifest.samples_seen, manifest.world_size, manifest.sequence) == (7, 70, 1, 1)
    assert (manifest.metrics, manifest.monitor, manifest.mode) == ({MONITOR: 0.5, "other": None}, MONITOR, "min")


def test_world_size_and_mode_are_used(tmp_path):
    store = open_store(tmp_path, mode="max", world_size=3)
    for step, value in [(1, 0.1), (2, 0.3), (3, 0.2), (4, 0.0)]:
        save(store, step, value)
    assert store.best().name == "step_00000002"
    assert read_manifest(store.best()).world_size == 3
    unmonitored = reopen(store, monitor=None)
    assert unmonitored.best() is None
    unmonitored.lock_held.release()


FILES = ["config.json", MANIFEST, "model.safetensors", "progress.json", "training.safetensors"]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def shorten(path):
    os.truncate(path, path.stat().st_size - 1)


def take_from_another_step(path):
    path.write_bytes((path.parent.parent / "step_00000001" / path.name).read_bytes())


DAMAGES = {
    "flipped": flip_a_bit,
    "shortened": shorten,
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": os.remove,
    "swapped": take_from_another_step,
}


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, id=f"{name} {kind}")
        for name in FILES
        for kind, damage in DAMAGES.items()
        if (name, kind) != ("config.json", "swapped")  # it is the same file in both steps
    ],
)
def test_damage_is_set_aside_and_named_and_the_previous_one_used(store, caplog, name, damage):
    for step in (1, 2):
        save(store, step, 1.0 / step)
    damage(store.root / "step_00000002" / name)
    again = reopen(store)
    with caplog.at_level(logging.WARNING):
        path, snapshot = recover(again)
    assert path.name == "step_00000001" and is_of(snapshot, 1)
    assert names(again) == ["damaged_step_00000002", "step_00000001"]
    assert again.latest() == again.best() == path
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step_00000002 is damaged: " in warning and name in warning
    assert told(warning, "step_00000002", "damaged_step_00000002")
    again.lock_held.release()


def test_nothing_is_renamed_without_the_lock(store, caplog):
    for step in (1, 2):
        save(store, step)
    flip_a_bit(store.root / "step_00000002" / "model.safetensors")
    before = names(store)
    reader = CheckpointStore(store.root, RetentionConfig())
    assert reader.latest().name == "step_00000001"
    assert "skipping checkpoint" in caplog.text
    assert names(store) == before
    with pytest.raises(RuntimeError, match=naming("lock()", "write()")):
        save(reader, 3)
    store.lock_held.release()
    with pytest.raises(RuntimeError, match=naming("lock()", "write()")):
        save(store, 3)


def test_damage_that_cannot_be_set_aside_is_an_error_with_its_path_and_what_to_do(store, monkeypatch):
    for step in (1, 2):
        save(store, step)
    path = store.root / "step_00000002"
    flip_a_bit(path / "model.safetensors")
    again, rename = reopen(store), os.rename

    def refuse(source, target, **options):
        if "damaged_" in str(target):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", refuse)
    said = (path, "model.safetensors", os.strerror(errno.EROFS), "rename")
    with pytest.raises(CheckpointError, match=naming(*said)):
        recover(again)
    again.lock_held.release()


def test_damaged_names_do_not_collide(store):
    for _ in range(2):
        save(store, 1)
        os.truncate(store.root / "step_00000001" / "model.safetensors", 0)
        assert list(store.good()) == []
    assert names(store) == ["damaged_step_00000001", "damaged_step_00000001_2"]


@pytest.mark.promise("A5")
def test_retention_counts_only_good_checkpoints(store):
    """The two newest are found damaged just when they would have made the last good ones superfluous."""
    for step in (1, 2, 3, 4):
        save(store, step)
    again = reopen(store)
    flip_a_bit(again.root / "step_00000004" / "model.safetensors")
    save(again, 5)
    assert names(again) == ["damaged_step_00000004", "step_00000003", "step_00000005"]
    again.lock_held.release()


def test_a_step_saved_twice_exists_twice_until_retention_drops_the_older(store):
    first, second = save(store, 5), save(store, 5)
    assert (first.path.name, second.path.name) == ("step_00000005", "step_00000005_2")
    assert store.latest() == second.path
    save(store, 6)
    assert names(store) == ["step_00000005_2", "step_00000006"]


def test_newest_means_saved_last_also_when_a_run_went_back(store):
    save(store, 100)
    save(store, 50)
    assert store.latest().name == "step_00000050"


@pytest.mark.promise("G3")
def test_what_is_not_finite_is_quarantined(store, caplog):
    save(store, 1, 0.5)
    bad = snapshot_of(2)
    bad.tensors["training.safetensors"]["m"][3] = math.nan
    saved = store.write(bad, Progress(20, 2), {MONITOR: 0.1}, is_best=True)
    assert (saved.is_latest, saved.is_best) == (False, False)
    assert saved.path.name == "quarantine_step_00000002"
    assert store.latest().name == store.best().name == "step_00000001"
    assert told(caplog.text, "NaN", "training.safetensors:m")
    save(store, 3, 0.4)
    assert names(store) == ["quarantine_step_00000002", "step_00000001", "step_00000003"]


def test_foreign_files_and_directories_are_left_alone(store):
    (store.root / "notes.txt").write_text("mine")
    (store.root / "step_backup").mkdir()
    (store.root / "step_00000009").symlink_to(store.root / "step_backup")
    for step in (1, 2, 3, 4):
        save(store, step)
    again = reopen(store)
    assert (again.root / "notes.txt").read_text() == "mine"
    assert (again.root / "step_backup").is_dir()
    again.lock_held.release()


@pytest.mark.promise("A6")
def test_the_lock_proves_leftovers_stale_but_a_living_process_may_write_in_the_run_directory(store, monkeypatch):
    """A container has another host name and the same process ids at each start."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    owners = {"dead": child, "alive": os.getppid(), "own": os.getpid()}
    left = {}
    for kind, pid in owners.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda pid=pid: pid)
            left[kind] = temporary_beside(store.root / "step_00000001")
    left["elsewhere"] = store.root / ".tmp_elsewhere_1_01234567_step_00000001"
    left["no pid"] = store.root / ".tmp_elsewhere_99999999999999999999_01234567_step_00000001"
    beside = {kind: store.root.parent / f"{path.name}.json" for kind, path in left.items()}
    for path in left.values():
        path.mkdir()
        (path / "model.safetensors").write_text("half")
    for path in beside.values():
        path.write_text("half")
    reopen(store).lock_held.release()
    assert names(store) == []
    assert {kind for kind, path in beside.items() if path.exists()} == {"alive"}


@pytest.mark.promise("A6")
@pytest.mark.parametrize("call", ["rename", "unlink", "rmdir"])
def test_a_deletion_that_was_killed_is_finished_by_the_next_lock(store, monkeypatch, call):
    """As a container would: the next start has another host name."""
    for step in (1, 2):
        save(store, step)

    class Killed(BaseException):
        pass

    function, count = getattr(os, call), [0]

    def die(*arguments, **options):
        count[0] += 1
        if call == "rename" and "step_00000001" not in str(arguments[0]):
            return function(*arguments, **options)
        if call == "rename":
            function(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, call, die)
        patch.setattr("dp_prior.files.temporary._host", lambda: "container-1")
        with pytest.raises(Killed):
            save(store, 3)
    assert any(name.startswith(".tmp_container-1_") for name in names(store))
    again = reopen(store)
    assert names(again) == ["step_00000002", "step_00000003"]
    again.lock_held.release()


@pytest.mark.promise("A7")
def test_a_second_store_is_refused(store):
    with pytest.raises(LockedError, match=naming(store.root.parent, f"process {os.getpid()}")):
        open_store(store.root.parent)


@pytest.fixture
def failing(store, monkeypatch):
    """Makes one call of a function of `os` fail; the count runs from 1."""

    def fail(name, number, code):
        function, count = getattr(os, name), [0]

        def once(*arguments, **options):
            count[0] += 1
            if count[0] == number:
                raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, once)

    return fail


@pytest.mark.promise("A3")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize(("call", "number"), [("write", 1), ("write", 4), ("fsync", 2), ("rename", 1), ("mkdir", 1)])
def test_a_failed_save_leaves_older_checkpoints_and_says_what_is_wrong(store, failing, call, number, code):
    save(store, 1)
    failing(call, number, code)
    remedy = "ulimit -f" if code == errno.EFBIG else "Free space"
    named = ("step_00000002", store.root, os.strerror(code), "0.00 MB", "step_00000001", remedy, "same command")
    with pytest.raises(CheckpointError, match=naming(*named)):
        save(store, 2)
    assert names(store) == ["step_00000001"]
    assert is_of(recover(store)[1], 1)
    save(store, 3)
    assert store.latest().name == "step_00000003"


@pytest.mark.promise("A9")
@pytest.mark.parametrize("call", ["fsync", "write"])
def test_after_one_input_output_error_everything_is_written_anew(store, failing, call, caplog):
    failing(call, 2, errno.EIO)
    saved = save(store, 1)
    assert is_of(read_checkpoint(saved.path), 1)
    assert names(store) == ["step_00000001"]
    assert told(caplog.text, store.root / "step_00000001", "again")


def test_a_disk_that_keeps_failing_is_reported(store, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CheckpointError, match=naming(os.strerror(errno.EIO), "step_00000001", "config.json")):
        save(store, 1)
    assert names(store) == []


def test_a_full_disk_is_noticed_before_it_is_filled(store, monkeypatch):
    save(store, 1)
    status = os.statvfs(store.root)
    fields = list(status)
    fields[4] = 0  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "mkdir", None)
    with pytest.raises(CheckpointError, match=naming(os.strerror(errno.ENOSPC), "0.00 MB", "step_00000001")):
        save(store, 2)


def test_a_file_system_that_does_not_tell_its_size_is_written_to(store, monkeypatch):
    fields = [0] * 10
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    save(store, 1)
    monkeypatch.setattr(os, "rename", None)
    monkeypatch.setattr(os, "write", lambda *arguments: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(CheckpointError, match=naming("step_00000002", "0.00 MB", "unknown amount")):
        save(store, 2)


@pytest.mark.promise("A3")
def test_the_limit_on_file_sizes_is_an_error_like_a_full_disk(tmp_path):
    store = open_store(tmp_path)
    save(store, 1)
    large = Snapshot({"model.safetensors": {"w": torch.zeros(1 << 20)}})
    with file_sizes_up_to(1 << 16), pytest.raises(CheckpointError, match=naming(os.strerror(errno.EFBIG))):
        store.write(large, Progress(2, 2), {})
    assert names(store) == ["step_00000001"]


def test_failing_index_and_failing_deletion_are_warnings(store, failing, monkeypatch, caplog):
    for step in (1, 2, 3):
        save(store, step)

    def refuse(*arguments, **options):
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("dp_prior.checkpoints.store.replace_file", refuse)
        patch.setattr("shutil.rmtree", refuse)
        save(store, 4)
    assert told(caplog.text, "index.json")
    assert told(caplog.text, "step_00000002", "deleted")
    assert store.latest().name == "step_00000004"


def test_deletion_takes_the_manifest_first(store, monkeypatch):
    removed = []
    unlink = os.unlink

    def noted(path, *arguments, **options):
        removed.append(os.path.basename(path))
        unlink(path, *arguments, **options)

    for step in (1, 2):
        save(store, step)
    monkeypatch.setattr(os, "unlink", noted)
    save(store, 3)
    assert removed[0] == MANIFEST and sorted(removed) == FILES


@pytest.mark.promise("A4")
def test_a_directory_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file")
    with pytest.raises(
        CheckpointError, match=naming(os.strerror(errno.EEXIST), "run/checkpoints", "another directory")
    ):
        open_store(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").unlink()
    open_store(tmp_path / "run").lock_held.release()


def test_a_hash_is_compared_once_in_the_life_of_a_process(store, monkeypatch):
    for step in (1, 2):
        save(store, step)
    again = reopen(store)
    hashed = []
    monkeypatch.setattr(
        "dp_prior.checkpoints.format._compare",
        lambda directory, name, *rest: hashed.append((directory.name, name)),
    )
    for step in (3, 4):
        again.latest()
        save(again, step)
    assert sorted(hashed) == [("step_00000002", name) for name in FILES if name != MANIFEST]
    again.lock_held.release()


CALLS = {"open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
LOOKS = ("stat", "lstat", "statvfs", "readlink")  # of which the interpreter reports nothing


def looking(function):
    """A function of `os` that reports its calls."""
    return lambda *arguments, **options: (sys.audit("looks"), function(*arguments, **options))[1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_cost_of_a_save_does_not_depend_on_how_many_checkpoints_are_kept(tmp_path, is_restarted):
    """Counted in calls: files opened, directories listed, and files looked at without being opened."""
    counts = {}
    for kept in (6, 24):
        store = open_store(tmp_path / str(kept), RetentionConfig(keep_latest=2, keep_best=1, keep_every=1))
        for step in range(1, kept + 1):
            save(store, step, 1.0 / step)
        if is_restarted:
            store = reopen(store)
            save(store, kept + 1)  # the first one after a start reads the directory, and compares what it relies on
        with pytest.MonkeyPatch.context() as patch:
            for name in LOOKS:
                patch.setattr(os, name, looking(getattr(os, name)))
            kinds = [kind for kind, _ in events_of(lambda: save(store, kept + 2), CALLS | {"looks"})]  # noqa: B023
        counts[kept] = len(kinds), kinds.count("looks")
        assert len(names(store)) >= kept
        store.lock_held.release()
    assert counts[6] == counts[24]
    assert counts[24][0] < 100 and counts[24][1] > 0


def test_the_first_save_after_a_start_compares_only_what_it_relies_on(store, monkeypatch):
    """A run of hundreds of checkpoints must not be hashed whole before it goes on."""
    store.retention = RetentionConfig(keep_latest=2, keep_best=1, keep_every=1)
    for step in range(1, 20):
        save(store, step, step)
    again = reopen(store)
    hashed = set()
    monkeypatch.setattr("dp_prior.checkpoints.format._compare", lambda directory, *rest: hashed.add(directory.name))
    save(again, 20)
    assert hashed == set()  # nothing is dropped, so nothing has to be good
    again.retention = RetentionConfig(keep_latest=2, keep_best=1, keep_every=10)
    save(again, 21)
    assert hashed == {"step_00000001", "step_00000010"}  # the best, and the one that stays of its ten
    assert names(again) == [f"step_000000{n}" for n in ("01", "10", "20", "21")]
    again.lock_held.release()


def test_the_index_is_the_document_that_it_says(store):
    store.retention = RetentionConfig(keep_latest=9)
    for step, value in [(1, 0.5), (2, None), (3, math.nan), (4, 0.25)]:
        save(store, step, value)
        text = (store.root / INDEX).read_bytes()
        assert text == encode_document(json.loads(text))
    assert [(one["step"], one["value"]) for one in json.loads(text)["kept"]] == [
        (4, 0.25),
        (3, None),
        (2, None),
        (1, 0.5),
    ]


def test_what_is_deleted_by_hand_while_a_run_works_is_not_counted(store):
    for step in (1, 2):
        save(store, step)
    shutil.rmtree(store.root / "step_00000002")
    save(store, 3)
    assert names(store) == ["step_00000001", "step_00000003"]
    os.truncate(store.root / "step_00000003" / "model.safetensors", 3)
    save(store, 4)
    assert names(store) == ["damaged_step_00000003", "step_00000001", "step_00000004"]


@pytest.mark.promise("A4")
@pytest.mark.parametrize("kind", ["removed", "moved", "replaced", "removed and made anew"])
def test_a_run_directory_that_goes_away_is_an_error_and_is_not_made_anew(store, tmp_path, kind):
    save(store, 1)
    run = store.root.parent
    shutil.move(run, tmp_path / "elsewhere")
    if kind.startswith("removed"):
        shutil.rmtree(tmp_path / "elsewhere")
    if kind in ("replaced", "removed and made anew"):
        store.root.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=naming(run)) as failure:
            save(store, 2)
        assert classify(failure.value)[1] == UNSAVED
    assert run.exists() == (kind in ("replaced", "removed and made anew"))
    assert not list(run.rglob("*.safetensors"))


def test_a_checkpoints_directory_that_goes_away_is_an_error(store):
    save(store, 1)
    shutil.rmtree(store.root)
    with pytest.raises(CheckpointError, match=naming("step_00000002", os.strerror(errno.ENOENT))):
        save(store, 2)
    assert not store.root.exists()
    store.root.mkdir()
    save(store, 3)
    assert names(store) == ["step_00000003"]


@pytest.mark.promise("A4")
@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param(call, code, marks=[pytest.mark.slow] * (i % 5 != j), id=f"{call}-{errno.errorcode[code]}")
        for i, call in enumerate(["mkdir", "open", "fsync", "rename", "ftruncate", "listdir"])
        for j, code in enumerate([errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES])
    ],
)
def test_a_disk_that_fails_at_the_start_is_one_clear_error_with_the_path(tmp_path, monkeypatch, call, code):
    """At every call of a start: it works, or it is a `CheckpointError`, nothing stays open, and the next one works."""
    function, count = getattr(os, call), [0]
    for number in range(1, 30):
        run, failed = tmp_path / str(number) / "run", []

        def once(*arguments, number=number, failed=failed, **options):
            count[0] += 1
            if count[0] == number:
                failed.append(arguments)
                raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        count[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, call, once)
            try:
                open_store(run).lock_held.release()
            except CheckpointError as error:
                assert str(run.parent) in str(error) and os.strerror(code) in str(error)
                assert classify(error)[1] == UNSAVED
        assert open_below(tmp_path) == []
        store = open_store(run)
        save(store, 1)
        assert store.latest().name == "step_00000001" and not [path for path in run.rglob(".tmp*")]
        store.lock_held.release()
        if not failed:
            break
    assert number > 1 and not failed
