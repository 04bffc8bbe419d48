"""The run directory: checks its content, notices that it was moved or deleted, and explains errors of its disk."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.checkpoints.lock import LOCK
from dp_prior.run.config import CONFIG
from dp_prior.run.exit_file import EXIT
from dp_prior.run.scores import RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import CUT, EVENTS, ROWS

_FILES = (LOCK, CONFIG, EXIT, RESULT, IDENTITY, ROWS, EVENTS, CUT)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class RunDirectory:
    """The directory of a run that is in progress."""

    def __init__(self, path: Path):
        """
        Raises:
            CheckpointError: the path of one of the run's files is not a regular file; a FIFO would block the run.
        """
        self.path = path
        self._descriptor: int | None = None
        wrong = [path / name for name in _FILES if (path / name).exists() and not (path / name).is_file()]
        if wrong:
            raise CheckpointError(f"{wrong[0]} is not a regular file, but the run writes one there; move it away")

    def open(self) -> None:
        """Hold a descriptor of the directory, which must exist."""
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def check(self) -> None:
        """
        Raises:
            CheckpointError: the path no longer leads to this directory.
        """
        if self._is_lost():
            raise CheckpointError(
                f"the run directory {self.path} was moved or deleted during the run, so nothing can be "
                f"saved; put it back, then start the same command again"
            )

    def explain(self, error: BaseException) -> BaseException:
        """The error to report: the state of the directory or its disk, if that caused `error`; else `error`."""
        try:
            self.check()
        except CheckpointError as lost:
            return lost
        is_missing = isinstance(error, (FileNotFoundError, FileExistsError))
        if isinstance(error, OSError) and not is_missing and (error.errno in _DISK or self._is_inside(error.filename)):
            place = error.filename or self.path
            return CheckpointError(f"cannot write {place}: {error.strerror}; repair or free it, then start again")
        return error

    def current(self) -> Path | None:
        """A path to the directory even if it was moved; None if there is none."""
        if not self._is_lost():
            return self.path
        held = Path(f"/proc/self/fd/{self._descriptor}")  # Linux only
        return held if held.is_dir() and os.fstat(self._descriptor).st_nlink else None

    def close(self) -> None:
        """Release the directory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_lost(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return True
        except OSError:  # a network disk that stalls is not a directory that is gone
            return False

    def _is_inside(self, name: object) -> bool:
        return isinstance(name, (str, os.PathLike)) and Path(name).is_relative_to(self.path)
