"""Headers of arrays in files."""

import errno
import io
import os
import re
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.lib import format as npy_format

from dp_prior.data import files
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.files import (
    MOST_CHUNK_BYTES,
    MOST_KEYS,
    MOST_ROW_BYTES,
    check_array,
    check_count,
    decoding,
    load_npy,
    load_npz,
    map_npy,
    npy_header,
)
from tests.frame import files as sources
from tests.messages import naming


def read_by_name(path):
    return load_npz(path, ["values"])["values"]


def read_stream(path):
    with zipfile.ZipFile(path) as archive, archive.open("values.npy") as stream:
        return load_npy(stream)


def read_mapped(path):
    return map_npy(path.with_suffix(".npy"))


@pytest.mark.parametrize("read", [read_by_name, read_stream, read_mapped])
def test_headers_are_parsed_one_at_a_time_however_many_threads_read(read, tmp_path, monkeypatch):
    """CPython 3.11 raises SystemError where several threads parse at once."""
    original, inside, most = npy_format.read_array_header_1_0, [], []

    def parse(stream):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return original(stream)

    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.savez(tmp_path / "a.npz", values=values)
    np.save(tmp_path / "a.npy", values)
    monkeypatch.setattr(npy_format, "read_array_header_1_0", parse)
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(read, [tmp_path / "a.npz"] * 50))
    assert len(most) == 50 and max(most) == 1
    assert all(np.array_equal(array, values) for array in held)


def test_no_module_reads_arrays_with_numpys_own_function():
    """It parses headers without a lock."""
    pattern = re.compile(r"\b(np|numpy)\.load\(|open_memmap|read_array\(")
    assert [path for path in sources() if pattern.search(path.read_text(encoding="utf-8"))] == []


ARRAYS = {
    "rows": np.arange(12, dtype=np.float32).reshape(3, 4),
    "columns": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "scalar": np.array(7, np.int16),
    "empty": np.zeros((0, 5), np.uint8),
    "texts": np.array(["one", "and another"]),
    "no_letters": np.array(["", ""]),
    "big_endian": np.arange(5, dtype=">i4"),
    "moments": np.array(["2026-01-01", "NaT"], "datetime64[D]"),
    "records": np.zeros(3, [("at", "<f8"), ("step", "<i4")]),
    "long": np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_numpy_reads(save, tmp_path):
    save(tmp_path / "a.npz", **ARRAYS)
    held = load_npz(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as expected:
        assert list(held) == expected.files
        for name, array in held.items():
            assert array.dtype == expected[name].dtype and array.shape == expected[name].shape
            assert array.flags["F_CONTIGUOUS"] == expected[name].flags["F_CONTIGUOUS"]
            assert array.tobytes() == expected[name].tobytes()
    assert list(load_npz(tmp_path / "a.npz", ["texts", "rows"])) == ["texts", "rows"]


@pytest.mark.parametrize("name", ["long", "rows", "columns"])
def test_a_cut_a_flipped_bit_and_objects_are_errors(name, tmp_path):
    stored, size = io.BytesIO(), ARRAYS[name].nbytes
    np.save(stored, ARRAYS[name])
    with pytest.raises(ValueError, match=naming(f"{size - 1:,} of {size:,} bytes")):
        load_npy(io.BytesIO(stored.getvalue()[:-1]))
    np.savez(tmp_path / "a.npz", **{name: ARRAYS[name]})
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(ARRAYS[name].tobytes("A")[-8:])] ^= 1
    with pytest.raises(zipfile.BadZipFile, match=naming(f"{name}.npy")):
        load_npz(io.BytesIO(content))
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    objects.seek(0)
    with pytest.raises(ValueError, match=naming("objects")):
        load_npy(objects)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_the_stream_stands_at_the_values_after_the_header(version):
    array, stored = np.arange(6.0).reshape(2, 3), io.BytesIO()
    npy_format.write_array(stored, array, version)
    stored.seek(0)
    assert npy_header(stored) == (array.shape, False, array.dtype)
    assert stored.read() == array.tobytes()


def test_more_keys_and_longer_rows_or_chunks_than_any_sane_ones_are_refused():
    check_count("here", MOST_KEYS, "keys")
    with pytest.raises(DataError, match=naming("here", f"{MOST_KEYS + 1} keys", MOST_KEYS)):
        check_count("here", MOST_KEYS + 1, "keys")
    byte = np.dtype(np.uint8)
    check_array("here", (1, MOST_ROW_BYTES), byte)
    with pytest.raises(DataError, match=naming("here", f"{MOST_ROW_BYTES + 1:,} bytes", f"{MOST_ROW_BYTES:,}")):
        check_array("here", (1, MOST_ROW_BYTES + 1), byte)
    with pytest.raises(DataError, match=naming("here", f"{MOST_CHUNK_BYTES + 1:,} bytes", f"{MOST_CHUNK_BYTES:,}")):
        check_array("here", (1, 1), byte, chunk=MOST_CHUNK_BYTES + 1)


@pytest.mark.parametrize(
    ("header", "said"),
    [("{'descr': '<f4', ", "header"), ("{'descr': 5}", "['descr']"), ("(" * 400, "header"), ("'" * 3, "header")],
)
def test_a_header_that_is_no_dictionary_is_refused(header, said):
    stored = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with pytest.raises(ValueError, match=naming(said)):
        npy_header(io.BytesIO(stored))


def test_a_pointer_of_git_lfs_is_called_so_whatever_should_be_there(tmp_path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 146946961\n"
    for name in ("a.npz", "a.hdf5", "a.parquet"):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=naming(name, "LFS", "hf")), decoding(tmp_path / name):
            raise ValueError("magic bytes")
    with pytest.raises(DataError, match=naming("b.npz", "magic bytes")), decoding(tmp_path / "b.npz"):
        raise ValueError("magic bytes")


def test_filters_and_locks_of_hdf5_have_a_remedy(tmp_path):
    with pytest.raises(DataError, match=naming("a", "hdf5plugin", "--import")), decoding("a"):
        raise OSError("can't open directory (/usr/local/lib/plugin). Please verify its existence")
    with pytest.raises(UnreadableError, match=naming("another process", "HDF5")), decoding("a"):
        raise BlockingIOError(errno.EAGAIN, "unable to lock file")


def test_the_memory_of_a_container_is_what_its_control_groups_leave(tmp_path, monkeypatch):
    """Of version 2, of version 1, of both, and of groups around the one of the process."""
    groups, limits = tmp_path / "cgroup", tmp_path / "limits"
    monkeypatch.setattr(files, "GROUPS_OF_PROCESS", groups)
    monkeypatch.setattr(files, "CONTROL_GROUPS", limits)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert files.memory_bytes() == machine, "a system without control groups"
    groups.write_text("1:cpu:/job_7/step_0\n0::/job_7/step_0\n")
    assert files.memory_bytes() == machine, "groups without a limit"

    def limit(place, text):
        (limits / place).parent.mkdir(parents=True, exist_ok=True)
        (limits / place).write_text(f"{text}\n")

    limit("job_7/step_0/memory.max", "max")
    limit("job_8/memory.max", 1)
    assert files.memory_bytes() == machine
    limit("job_7/memory.max", 5_000_000)
    assert files.memory_bytes() == files.free_memory_bytes() == 5_000_000, "as SLURM limits a job, not its step"
    limit("job_7/step_0/memory.max", 4_000_000)
    assert files.memory_bytes() == 4_000_000
    groups.write_text("9:memory:/docker/1f\n1:name=systemd:/docker/1f\n0::/\n")
    limit("memory/memory.limit_in_bytes", 3_000_000)
    assert files.memory_bytes() == 3_000_000, "a container sees its own group as the root"
    limit("memory/memory.limit_in_bytes", 2**63 - 4096)
    limit("memory.max", 2_000_000)
    assert files.memory_bytes() == 2_000_000
    with pytest.raises(DataError, match=naming("here", "2,000,001", "2,000,000")):
        files.check_memory("here", 2_000_001)
