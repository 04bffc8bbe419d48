"""Places whose files are odd or hostile: one clear error, in bounded time and memory, and nothing is followed."""

import json
import os
import time

import pytest

from benchmarks import memory
from dp_prior.checkpoints.format import CheckpointError, DamagedError, parse_manifest, read_manifest
from dp_prior.config import ConfigError
from dp_prior.files.durable import seal
from dp_prior.places.local import LocalSaverConfig, copy_checkpoint
from dp_prior.places.pointer import LARGEST_POINTER, Pointer, movable
from dp_prior.places.reference import resolve
from dp_prior.places.source import RemoteError
from tests.places.parcels import Run

GOOD = {
    **{"folder": "checkpoints/step_00000001", "manifest_sha256": "0" * 64, "step": 1, "samples_seen": 10},
    **{"monitor": "loss", "mode": "min", "value": 0.5},
}


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    yield run
    run.lock.release()


def test_a_pointer_comes_back_as_it_was_written():
    assert json.loads(Pointer.parse(json.dumps(GOOD).encode()).encode()) == GOOD
    assert Pointer.parse(json.dumps({**GOOD, "of a newer version": [1]}).encode()) == Pointer(**GOOD)


@pytest.mark.parametrize(
    "change",
    [
        *({"step": value} for value in (-1, 1.5, "1", True, 10**400)),
        *({"samples_seen": value} for value in (-1, 0.5)),
        *({"value": value} for value in ("0.5", [1], 10**400)),
        *({"folder": value} for value in ("../x", "/etc", "checkpoints/../x", "checkpoints/step_1", "a/step_00000001")),
        {"folder": f"checkpoints/step_{'9' * 300}"},
        {"manifest_sha256": "0" * 63},
        {"mode": "least"},
    ],
)
def test_a_pointer_with_an_impossible_value_is_none(change):
    assert Pointer.parse(json.dumps({**GOOD, **change}).encode()) is None


@pytest.mark.parametrize("data", [b"", b"[" * 60_000, b"\xff", b'{"value": NaN}', b" " * (LARGEST_POINTER + 1)])
def test_what_is_no_pointer_is_none(data):
    assert Pointer.parse(data) is None


def test_a_best_is_compared_with_one_of_the_same_metric_alone():
    ours, there = Pointer(**GOOD), Pointer(**{**GOOD, "value": 0.25})
    both = ("latest", "best")
    kinds, remark = movable(both, there, ours)
    assert kinds == ("latest",) and "loss 0.25, here 0.5; it stays" in remark
    assert movable(("latest",), there, ours) == (("latest",), None)
    assert movable(both, ours, there) == movable(both, ours, ours) == movable(both, None, ours) == (both, None)
    for change in ({"monitor": "score"}, {"mode": "max"}, {"value": None}):
        assert movable(both, Pointer(**{**GOOD, "value": 0.25, **change}), ours) == (both, None)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
@pytest.mark.parametrize("name", ["manifest.json", "best.json", "model.safetensors"])
def test_what_is_no_file_is_refused_and_never_waited_for(run, tmp_path, name, kind):
    directory = run.save(1).path
    path = (directory if name != "best.json" else tmp_path) / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    if name != "best.json":
        with pytest.raises(DamagedError):
            read_manifest(directory)
        with pytest.raises((OSError, CheckpointError)):
            copy_checkpoint(directory, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    place = directory if name != "best.json" else tmp_path
    with pytest.raises((RemoteError, DamagedError, FileNotFoundError)):
        resolve(f"file://{place}", cache=tmp_path / "cache")


def test_a_large_pointer_and_a_large_manifest_are_not_read(tmp_path):
    for name in ("best.json", "manifest.json"):
        place = tmp_path / name.partition(".")[0]
        place.mkdir()
        with open(place / name, "wb") as file:
            file.truncate(100 << 20)
        before = memory.resident()
        with pytest.raises(RemoteError, match=f"{name} is larger than [0-9]+ bytes"):
            resolve(f"file://{place}", cache=tmp_path / "cache")
        assert memory.peak() - before < 60e6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({str(number): 0 for number in range(200_000)}, "has an unknown key '0'"),
        ({"files": {str(number): 0 for number in range(200_000)}}, "lists 200000 files, expected at most 1000"),
        ({"files": {"../a.json": {"size": 1, "sha256": "0" * 64}}}, "is not a manifest"),
    ],
)
def test_a_manifest_with_a_million_entries_is_one_error(content, message):
    start = time.process_time()
    with pytest.raises(DamagedError, match=message):
        parse_manifest(seal(content), "here")
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "template", ["{step:999999999d}", "{step:0100}", "{metric:.100000f}", "{step:{samples_seen}}", "a\0b", "../{step}"]
)
def test_a_template_with_a_huge_format_or_a_trick_is_refused(template):
    with pytest.raises(ConfigError, match="template"):
        LocalSaverConfig(save_latest_to=template)


@pytest.mark.parametrize("kind", ["target", "dangling target", "parent", "dangling parent"])
def test_a_copy_is_never_made_nor_deleted_behind_a_symbolic_link(run, tmp_path, kind):
    saver = LocalSaverConfig(save_latest_to="exports/copy_{step}", keep=1).create(run.directory, None)
    elsewhere = tmp_path / "elsewhere"
    if not kind.startswith("dangling"):
        copy_checkpoint(run.save(1).path, elsewhere if kind == "target" else elsewhere / "copy_1")
    before = sorted(path.relative_to(tmp_path) for path in elsewhere.rglob("*"))
    link = run.directory / ("exports/copy_2" if kind.endswith("target") else "exports")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    durable = run.save(2)
    with pytest.raises(FileExistsError, match="symbolic link|holds more than a checkpoint"):
        saver.save(durable)
    assert sorted(path.relative_to(tmp_path) for path in elsewhere.rglob("*")) == before
    assert link.is_symlink() and elsewhere.exists() == (not kind.startswith("dangling"))


def test_pruning_leaves_links_to_copies_alone(run, tmp_path):
    saver = LocalSaverConfig(save_latest_to="copy_{step}", keep=1).create(run.directory, None)
    copy_checkpoint(run.save(1).path, tmp_path / "elsewhere")
    (run.directory / "copy_1").symlink_to(tmp_path / "elsewhere")
    for step in (2, 3):
        saver.save(run.save(step))
    assert (run.directory / "copy_1").is_symlink() and read_manifest(tmp_path / "elsewhere").step == 1
    assert not (run.directory / "copy_2").exists()
