"""The run directory: checks the content, notices a move or deletion, and explains errors of the disk."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.errors import CheckpointError
from dp_prior.checkpoints.run_lock import LOCK, HeldDirectory, unwritable
from dp_prior.data.errors import UnreadableError
from dp_prior.files.durable import try_writing
from dp_prior.run.exit_file import EXIT
from dp_prior.run.scores import MEDIA, RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import CUT, EVENTS, ROWS

_WRITTEN_FILES = (LOCK, CONFIG, EXIT, RESULT, IDENTITY, ROWS, EVENTS, CUT)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


class RunDirectory(HeldDirectory):
    """The directory of a run that is in progress."""

    def inspect(self) -> None:
        """
        Raises:
            CheckpointError: the path of a file of the run holds something else, for example a FIFO, which would block
                the run, or a dangling link; or the path of the media folder holds no directory.
        """
        paths = [self.path / name for name in _WRITTEN_FILES]
        if self.path.exists() and not self.path.is_dir():
            remedy = "choose another directory with --set tracker.data_path=DIRECTORY"
            raise CheckpointError(
                f"{self.path} is a file, but the run directory (tracker.data_path) is a folder; {remedy}"
            )
        wrong = [path for path in paths if os.path.lexists(path) and not path.is_file()]
        if wrong:
            raise CheckpointError(f"{wrong[0]} is not a regular file, but the run writes one there; move it away")
        media = self.path / MEDIA
        if os.path.lexists(media) and not media.is_dir():
            raise CheckpointError(f"{media} is not a directory, but the run writes its pictures there; move it away")

    def try_writing(self) -> None:
        """Raises CheckpointError if the directory can be neither written nor created; leaves nothing behind."""
        try:
            try_writing(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def explain(self, error: BaseException) -> BaseException:
        """The error to report: the state of directory or disk, if it caused `error`; else `error`."""
        try:
            self.check()
        except CheckpointError as lost:
            return lost
        if not isinstance(error, OSError) or isinstance(error, (FileNotFoundError, FileExistsError, UnreadableError)):
            return error
        name = error.filename
        is_inside = isinstance(name, (str, os.PathLike)) and Path(name).is_relative_to(self.path)
        if is_inside or error.errno in _DISK:
            place = name or self.path
            return CheckpointError(f"cannot write {place}: {error.strerror}; repair or free it, then start again")
        return error

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Replace an error inside by the result of `explain`."""
        try:
            yield
        except BaseException as error:
            explained = self.explain(error)
            if explained is error:
                raise
            raise explained from error
