"""Ways in which files of a cache come to hold something else at the same size, for tests of what is trained on."""

import os
import shutil

import numpy as np
import pytest


def _flip(path):
    """One bit of one byte, as on a disk that fails."""
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def _flip_in_place(path):
    """Through a map, as another process that has the file open."""
    before, mapped = path.stat(), np.memmap(path, np.uint8, "r+")
    mapped[len(mapped) * 2 // 3] ^= 4
    mapped.flush()
    if path.stat().st_mtime_ns == before.st_mtime_ns:
        pytest.skip("NOT CHECKED: this file system notes no time of writes to a map, as tmpfs")


def _truncate_and_pad(path):
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def _replace(path):
    """By a new file, whose times are those of the old one."""
    status, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def _hide(path):
    """With the time of its last change set back."""
    status = path.stat()
    _flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


DAMAGES = {
    "a flipped bit": _flip,
    "a flipped bit of a mapped file": _flip_in_place,
    "cut and padded": _truncate_and_pad,
    "replaced": _replace,
    "with its time set back": _hide,
}


def rot(path, sealed, place=None):
    """Flip a bit without a trace in size and times, as a disk does: the times noted are those of the flipped file."""
    import json

    from dp_prior.files.json_text import seal, unseal

    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3 if place is None else place] ^= 4
    path.write_bytes(content)
    document = unseal(sealed.read_bytes())
    name, status = path.relative_to(sealed.parent).as_posix(), path.stat()
    document["files"][name][0] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    sealed.write_bytes(seal(json.loads(json.dumps(document))))


def swap(first, second):
    """Exchange two folders."""
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    shutil.move(spare, second)
