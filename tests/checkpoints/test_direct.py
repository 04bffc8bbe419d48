"""Writing past the page cache gives the same file as writing through it."""

import errno
import fcntl
import mmap
import os

import numpy as np
import pytest

from dp_prior.checkpoints.direct import write_file
from tests.messages import naming

MEBIBYTE = 1 << 20
SIZES = {
    "aligned": [2 * MEBIBYTE, MEBIBYTE],
    "with a rest": [2 * MEBIBYTE, 1234],
    "small first": [100, 2 * MEBIBYTE],
    "page first": [4096, 2 * MEBIBYTE, 7],
    "odd large": [MEBIBYTE + 1, MEBIBYTE],
    "empty pieces": [0, MEBIBYTE, 0],
    "nothing": [],
}


def pieces_of(sizes):
    """Neighbouring pieces of page-aligned memory."""
    memory = mmap.mmap(-1, max(1, sum(sizes)))
    memory[:] = np.random.default_rng(0).bytes(len(memory))
    edges = np.cumsum([0, *sizes])
    return [memoryview(memory)[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_the_file_holds_the_pieces_end_to_end(tmp_path, sizes):
    pieces = pieces_of(sizes)
    write_file(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("refusal", ["file system", "device"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_a_file_system_or_device_that_refuses_gets_the_same_file(tmp_path, monkeypatch, sizes, refusal):
    write, switch, refused = os.write, fcntl.fcntl, []

    def refusing_write(descriptor, data):
        if switch(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, data)

    def refusing_switch(descriptor, command, value=0):
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            refused.append(value)
            raise OSError(errno.EINVAL, "Invalid argument")
        return switch(descriptor, command, value)

    if refusal == "device":
        monkeypatch.setattr(os, "write", refusing_write)
    else:
        monkeypatch.setattr(fcntl, "fcntl", refusing_switch)
    pieces = pieces_of(sizes)
    write_file(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert refused or sizes not in (SIZES["aligned"], SIZES["with a rest"], SIZES["page first"])


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: max(1, len(data) // 2)]))
    pieces = pieces_of([MEBIBYTE, 77])
    write_file(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_an_existing_file_is_never_overwritten_and_errors_name_the_file(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match=naming(tmp_path / "file")):
        write_file(tmp_path / "file", pieces_of([10]))
    assert (tmp_path / "file").read_text() == "mine"

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=naming(tmp_path / "other")) as failure:
        write_file(tmp_path / "other", pieces_of([10]))
    assert failure.value.errno == errno.ENOSPC
