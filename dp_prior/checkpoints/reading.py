"""Reads in bounded time and memory that distinguish a damaged file from one that cannot be read.

Damage is a file that is missing or differs from the manifest. Any other failure to read (permissions, a failing disk or
network, no descriptors or memory left) says nothing about the checkpoint: the read is retried for about a second, then
raises `UnreadableCheckpointError`, and the checkpoint is left unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dp_prior.checkpoints.errors import (
    CheckpointError,
    DamagedError,
    GoneError,
    NewerFormatError,
    UnreadableCheckpointError,
)
from dp_prior.files.regular_files import UnfitError

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)
_WAITS_S = (0.05, 0.25, 0.7)

Read = TypeVar("Read")


class Patience:
    """Retries reads that fail with `UnreadableCheckpointError`; those of one instance share a second."""

    def __init__(self) -> None:
        self._waits = iter(_WAITS_S)

    def __call__(self, read: Callable[[], Read]) -> Read:
        """Call `read` and return its result; on failure wait and call again, while the budget lasts."""
        while True:
            try:
                return read()
            except NewerFormatError:
                raise
            except UnreadableCheckpointError:
                wait = next(self._waits, None)
                if wait is None:
                    raise
                time.sleep(wait)


@contextlib.contextmanager
def told_apart(directory: Path, name: str) -> Iterator[None]:
    """Convert errors inside: `DamagedError` for a missing file, `UnreadableCheckpointError` for all others.

    Raises:
        GoneError: the directory was deleted or replaced; without this check the error would look like damage.
    """
    before = _identity(directory)
    try:
        yield
    except (OSError, UnfitError, DamagedError) as error:
        if isinstance(error, OSError) and error.errno not in _MISSING:
            raise UnreadableCheckpointError(directory, f"{name} cannot be read: {error.strerror or error}") from None
        if before is None or _identity(directory) != before:
            raise GoneError(directory) from None
        if isinstance(error, DamagedError):
            raise
        problem = error.problem if isinstance(error, UnfitError) else f"cannot be read: {error.strerror or error}"
        raise DamagedError(directory, f"{name} {problem}") from None
    except MemoryError as error:
        raise UnreadableCheckpointError(directory, f"no memory to read {name} ({error})") from None
    except RuntimeError as error:
        if isinstance(error, CheckpointError) or "thread" not in str(error):
            raise
        raise UnreadableCheckpointError(directory, f"{name} cannot be read: {error}") from None


def _identity(directory: Path) -> tuple[int, int, int] | None:
    """Changes when a directory is renamed or replaced, even if the new one gets the same inode; None if it is gone."""
    try:
        status = os.stat(directory)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise UnreadableCheckpointError(directory, error.strerror or str(error)) from None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def holds_links(directory: Path) -> bool:
    """Whether a checkpoint, or a file in it, is a symbolic link: an archived checkpoint, which is never changed."""
    if os.path.islink(directory):
        return True
    with os.scandir(directory) as entries:
        return any(entry.is_symlink() for entry in entries)
