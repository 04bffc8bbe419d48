"""Opening files of a data set: only regular files, and errors that tell damage from a system that would not read.

A named pipe would block a reader forever, so nothing but a regular file is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dp_prior.data.errors import DataError, UnreadableError

REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ENODEV,
    errno.EREMOTEIO,
}
"""Errors that say nothing about the content of a file."""

LARGEST_DOCUMENT = 256 << 20
"""Most bytes of a metadata document; JSON takes some ten times its size in memory."""


def is_refusal(error: BaseException) -> bool:
    """Whether the system refused to read, memory included, rather than read something wrong."""
    return isinstance(error, (MemoryError, UnreadableError)) or (isinstance(error, OSError) and error.errno in REFUSED)


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Report errors of the operating system while a file is read.

    Raises:
        UnreadableError: the system refused to read it.
        DataError: there is no such file, or its path leads to something else.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, UnreadableError):
            raise
        if is_refusal(error):
            raise UnreadableError(error.errno, f"cannot be read now: {error.strerror or error}", str(path)) from error
        raise DataError(str(path), [f"cannot be read: {error.strerror or error}"]) from None


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file for reading, unbuffered reads left to the caller.

    Raises:
        DataError: it is a named pipe, a socket or a device.
        OSError: as `open`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path | str, mode: int) -> None:
    """Raises DataError unless `mode`, of the file at path, is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a named pipe, socket or device"
        raise DataError(str(path), [f"is {kind}; expected a regular file"])


def read_document(path: Path | str) -> bytes:
    """All bytes of a metadata document.

    Raises:
        DataError: it is missing, no regular file, or larger than `LARGEST_DOCUMENT`.
        UnreadableError: the system refused to read it.
    """
    with reading(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_DOCUMENT:
            raise DataError(str(path), [f"has {size} bytes; expected metadata of at most {LARGEST_DOCUMENT}"])
        return file.read()


def check_memory(where: str, n_bytes: int, *, stored: int | None = None, ratio: int = 1) -> None:
    """Refuse an array before memory is taken for it.

    Args:
        n_bytes: what its metadata declare.
        stored: bytes of it on disk, and `ratio`, the most that its compression can achieve; None if unknown.

    Raises:
        DataError: it is larger than the memory of this machine, or than what is stored could decode to.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if n_bytes > memory:
        found = f"declares {n_bytes:,} bytes, but this machine has {memory:,} bytes of memory"
        raise DataError(where, [f"{found}; the metadata are damaged, or the data set is too large to be held"])
    if stored is not None and n_bytes > stored * ratio + SLACK:
        found = f"declares {n_bytes:,} bytes, but only {stored:,} bytes are stored, which cannot decode to that"
        raise DataError(where, [f"{found}; the metadata are damaged or the copy is incomplete"])


SLACK = 64 << 20
"""Bytes that may be declared whatever is stored; so much does no harm."""
