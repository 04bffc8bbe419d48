"""One checkpoint directory: what is written, in which order, and how every kind of damage is noticed."""

import errno
import hashlib
import json
import os
import stat

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dp_prior.checkpoints.format import (
    MANIFEST,
    CheckpointError,
    DamagedError,
    Manifest,
    read_checkpoint,
    read_manifest,
    verify,
    write_checkpoint,
)
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.files.json_text import seal, unseal
from tests.checkpoints.documents import progress_of
from tests.examples import examples
from tests.messages import naming

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


def manifest_of(**changes):
    return Manifest(
        **{"sequence": 1, "step": 7, "samples_seen": 70, "world_size": 1, "saved_at": "2026-01-01", **changes}
    )


def snapshot_of(value=1.0):
    return Snapshot(
        {
            "model.safetensors": {"weight": torch.full((3, 2), value), "count": torch.tensor(3)},
            "training.safetensors": {"moment": torch.full((5,), value, dtype=torch.bfloat16)},
        },
        {"config.json": {"lr": 1e-4, "name": "ä"}, "progress.json": progress_of(7)},
    )


def write(directory, snapshot=None, **changes):
    return write_checkpoint(directory, snapshot or snapshot_of(), manifest_of(**changes))[0]


def content(tensor):
    """The bytes of a tensor."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_same(one, other):
    assert one.documents == other.documents
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[name].keys()
        for key, tensor in tensors.items():
            twin = other.tensors[name][key]
            assert (tensor.dtype, tensor.shape) == (twin.dtype, twin.shape)
            assert content(tensor) == content(twin)


def random_tensor(dtype, shape, seed):
    """Any bit pattern but NaN and infinity."""
    tensor = torch.from_numpy(np.asarray(np.random.default_rng(seed).normal(size=shape) * 3))
    return tensor.to(dtype)


TENSORS = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
        lambda name: name != "__metadata__"
    ),
    st.builds(
        random_tensor,
        st.sampled_from(FLOATS + INTEGERS + UNSIGNED),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.integers(0, 99),
    ),
    max_size=6,
)


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(TENSORS)
def test_files_are_what_the_safetensors_library_reads(tmp_path_factory, tensors):
    directory = write(tmp_path_factory.mktemp("format") / "step_00000007", Snapshot({"model.safetensors": tensors}))
    read = safetensors.torch.load_file(directory / "model.safetensors")
    assert_same(Snapshot({"m": read}), Snapshot({"m": tensors}))
    assert_same(read_checkpoint(directory), Snapshot({"model.safetensors": tensors}))


def test_a_whole_checkpoint_comes_back(tmp_path):
    directory = write(tmp_path / "step_00000007", metrics={"loss": 0.5}, config_hash="ab")
    assert_same(read_checkpoint(directory), snapshot_of())
    assert read_manifest(directory).metrics == {"loss": 0.5}
    assert sorted(os.listdir(tmp_path)) == ["step_00000007"]


def test_only_the_files_asked_for_are_read_and_only_they_need_be_sound(tmp_path):
    directory = write(tmp_path / "c")
    damage = directory / "training.safetensors"
    damage.write_bytes(b"\0" * damage.stat().st_size)
    snapshot = read_checkpoint(directory, ["model.safetensors", "config.json"])
    assert list(snapshot.tensors) == ["model.safetensors"]
    assert snapshot.documents == {"config.json": {"lr": 1e-4, "name": "ä"}}
    with pytest.raises(FileNotFoundError, match=naming("other.json", "config.json")):
        read_checkpoint(directory, ["other.json"])


def test_manifest_states_size_and_sha256_of_every_file(tmp_path):
    directory = write(tmp_path / "c")
    manifest = json.loads((directory / MANIFEST).read_text())
    assert sorted(manifest["files"]) == sorted(set(os.listdir(directory)) - {MANIFEST})
    for name, entry in manifest["files"].items():
        data = (directory / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("size", [0, 1, 1000, (8 << 20) - 4096, 8 << 20, (8 << 20) + 1, 20 << 20])
def test_a_file_is_read_whole_however_it_is_cut_into_pieces(tmp_path, size):
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8))
    directory = write(tmp_path / "c", Snapshot({"model.safetensors": {"w": values}}))
    assert torch.equal(read_checkpoint(directory).tensors["model.safetensors"]["w"], values)
    verify(directory, read_manifest(directory))
    flip(directory / "model.safetensors", 8 * 4096 + 4 * size - 1)
    for look in (read_checkpoint, lambda path: verify(path, read_manifest(path))):
        with pytest.raises(DamagedError, match=naming("model.safetensors", "SHA-256" if size else "safetensors")):
            look(directory)


def test_what_is_read_owns_its_memory(tmp_path):
    directory = write(tmp_path / "c")
    snapshot = read_checkpoint(directory)
    path = directory / "model.safetensors"
    with open(path, "r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert_same(snapshot, snapshot_of())


@pytest.mark.promise("A10")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_obey_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        directory = write(tmp_path / "c")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in directory.iterdir()} == {mode}
    assert stat.S_IMODE(directory.stat().st_mode) == mode | (mode & 0o444) >> 2


@pytest.mark.promise("A2")
def test_data_are_synced_before_the_manifest_and_that_before_the_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append(("fsync", os.path.basename(path) if not is_temporary_name(path) else "TEMPORARY"))
        fsync(descriptor)

    def noted_rename(source, target):
        events.append(("rename", os.path.basename(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write(tmp_path / "step_00000007")
    files = ["config.json", "model.safetensors", "progress.json", "training.safetensors"]
    assert sorted(events[:4]) == [("fsync", name) for name in files]
    assert events[4:] == [
        ("fsync", MANIFEST),
        ("fsync", "TEMPORARY"),
        ("rename", "step_00000007"),
        ("fsync", tmp_path.name),
    ]


def is_temporary_name(path):
    return os.path.basename(path).startswith(".tmp_")


def test_a_failing_write_leaves_nothing_and_names_the_file(tmp_path, monkeypatch, own_threads):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=naming(os.strerror(errno.ENOSPC), "config.json")) as failure:
        write(tmp_path / "c")
    assert failure.value.filename.endswith("config.json")
    assert os.listdir(tmp_path) == []
    assert not own_threads("checkpoint")


def test_a_document_larger_than_any_that_is_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior.checkpoints.format.LARGEST_DOCUMENT", 10)
    with pytest.raises(CheckpointError, match=naming("bytes", "at most 10", ".json")):
        write(tmp_path / "c")
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("G3")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dtype, float(value))
        for dtype in FLOATS
        for value in ("nan", "inf", "-inf")
        if dtype is not torch.float8_e4m3fn or value == "nan"  # this type has no infinity
    ],
)
def test_a_tensor_that_is_not_finite_means_quarantine(tmp_path, dtype, value):
    tensor = torch.ones(3, 5).to(dtype)
    tensor[1, 2] = value
    final, manifest = write_checkpoint(
        tmp_path / "step_00000007", Snapshot({"model.safetensors": {"w": tensor, "v": torch.ones(2)}}), manifest_of()
    )
    assert final.name == "quarantine_step_00000007"
    assert manifest.nonfinite == ["model.safetensors:w"] == read_manifest(final).nonfinite


def files_of(directory):
    return sorted(path.name for path in directory.iterdir())


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.promise("A5")
def test_every_kind_of_damage_to_every_file_is_noticed(tmp_path):
    other = write(tmp_path / "other", snapshot_of(2.0), step=8)
    for name in files_of(other):
        size = (other / name).stat().st_size
        damages = {
            "first bit": lambda path: flip(path, 0),
            "middle bit": lambda path, size=size: flip(path, 4 * size),
            "last bit": lambda path, size=size: flip(path, 8 * size - 1),
            "one byte less": lambda path, size=size: os.truncate(path, size - 1),
            "one byte more": lambda path, size=size: os.truncate(path, size + 1),
            "emptied": lambda path: os.truncate(path, 0),
            "deleted": os.remove,
            "directory": lambda path: (os.remove(path), os.mkdir(path)),
        }
        if name.endswith("safetensors"):
            damages["from another step"] = lambda path, name=name: path.write_bytes((other / name).read_bytes())
        for kind, damage in damages.items():
            directory = write(tmp_path / f"{name} {kind}")
            damage(directory / name)
            try:
                read_checkpoint(directory)
            except DamagedError as refusal:
                assert name in str(refusal) and str(directory) in str(refusal), kind
            else:
                pytest.fail(f"{name}: {kind} went unnoticed")


@pytest.mark.promise("A5")
def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path):
    directory = write(tmp_path / "c", Snapshot({}, {"config.json": {}}), metrics={"loss": 0.25})
    sound = (directory / MANIFEST).read_bytes()
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=naming("SHA-256")):
            unseal(bytes(data))


@pytest.mark.promise("K2")
@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", "a/b.json", "..", "", "x.py", ".x.json", "x.json\n"])
def test_a_manifest_that_names_other_places_is_refused(tmp_path, name):
    directory = write(tmp_path / "c")
    content = json.loads((directory / MANIFEST).read_text())
    content.pop("sha256")
    content["files"][name] = {"size": 0, "sha256": "0" * 64}
    (directory / MANIFEST).write_bytes(seal(content))
    with pytest.raises(DamagedError, match=naming("manifest.json", repr(name))):
        read_manifest(directory)
    with pytest.raises(ValueError, match=naming(repr(name), "NAME.safetensors")):
        write(tmp_path / "d", Snapshot({}, {name: {}}))
    with pytest.raises(ValueError, match=naming(repr(MANIFEST), "NAME.safetensors")):
        write(tmp_path / "d", Snapshot({}, {MANIFEST: {}}))


def test_a_manifest_of_another_shape_is_damage_and_a_newer_format_says_so(tmp_path):
    directory = write(tmp_path / "c")
    content = json.loads((directory / MANIFEST).read_text())
    content.pop("sha256")
    (directory / MANIFEST).write_bytes(seal({**content, "step": -1}))
    with pytest.raises(DamagedError, match=naming("manifest.json", "step", 0)):
        read_manifest(directory)
    (directory / MANIFEST).write_bytes(seal({**content, "format": 2, "more": True}))
    with pytest.raises(CheckpointError, match=naming("format 2", "up to 1")):
        read_manifest(directory)


@pytest.mark.promise("K2", "K8")
def test_hostile_safetensors_with_a_right_hash_are_still_refused(tmp_path):
    def header(entries):
        text = json.dumps(entries).encode()
        return len(text).to_bytes(8, "little") + text

    def entry(begin, end, shape=(1,)):
        return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}

    for number, data in enumerate(
        [
            b"\x80\x04\x95" + b"\0" * 20,  # a pickle
            (1 << 62).to_bytes(8, "little"),
            header({"a": entry(0, 4), "b": entry(0, 4)}) + b"\0" * 4,
            header({"a": entry(0, 1 << 50, (1 << 48,))}) + b"\0" * 4,
            header({"a": entry(-4, 0)}),
            header({"a": entry(0, 4)}),
        ]
    ):
        directory = write(tmp_path / f"c{number}", Snapshot({"model.safetensors": {}}))
        (directory / "model.safetensors").write_bytes(data)
        content = json.loads((directory / MANIFEST).read_text())
        content.pop("sha256")
        content["files"]["model.safetensors"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (directory / MANIFEST).write_bytes(seal(content))
        with pytest.raises(DamagedError, match=naming("model.safetensors", "safetensors")):
            read_checkpoint(directory)


def test_reading_nothing_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "nothing")):
        read_checkpoint(tmp_path / "nothing")
    with pytest.raises(DamagedError, match=naming(tmp_path, "manifest.json", "No such file")):
        read_checkpoint(tmp_path)


def test_a_dtype_without_a_name_in_the_format_is_named(tmp_path):
    with pytest.raises(ValueError, match=naming("'z'", "torch.complex64")):
        write(tmp_path / "c", Snapshot({"model.safetensors": {"z": torch.zeros(1, dtype=torch.complex64)}}))
    assert os.listdir(tmp_path) == []
