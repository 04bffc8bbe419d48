"""Direct I/O: bypasses the page cache, so that writing gigabytes neither costs a copy nor evicts other pages.

The hash is then the only CPU time of a save. Small or unaligned pieces, and file systems or devices without O_DIRECT,
use ordinary writes; the file is the same.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dp_prior.checkpoints.snapshot import MEMORY_PAGE

_DIRECT = getattr(os, "O_DIRECT", 0)
_LEAST_DIRECT_BYTES = 1 << 20  # bytes; a smaller direct write costs more than a copy


def write_file(path: Path, pieces: Iterable[memoryview]) -> None:
    """Write a new file and sync it. Its mode obeys the umask."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for piece in pieces:
                _write(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write(descriptor: int, piece: memoryview) -> None:
    """Write a piece, directly where it is aligned and the device can; the flag is clear afterwards."""
    is_direct = _is_aligned(descriptor, piece) and _switch(descriptor, _DIRECT)
    while len(piece):
        try:
            piece = piece[os.write(descriptor, piece) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not is_direct:
                raise
            is_direct = _switch(descriptor, 0)  # the block size of the device exceeds a page
    if is_direct:
        _switch(descriptor, 0)


def _is_aligned(descriptor: int, piece: memoryview) -> bool:
    """Whether a piece is large, and page-aligned both in memory and in the file."""
    if len(piece) < _LEAST_DIRECT_BYTES:
        return False
    address = np.frombuffer(piece, np.uint8).ctypes.data
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    return (address | position | len(piece)) % MEMORY_PAGE == 0


def _switch(descriptor: int, direct: int) -> bool:
    """Set or clear O_DIRECT; returns whether the flag is now set, since some file systems refuse it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct)
    except OSError:
        return False
    return direct != 0
