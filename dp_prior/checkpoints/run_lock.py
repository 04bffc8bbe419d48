"""One run per directory: an exclusive lock, which the kernel releases when the holder dies, even by kill -9. The
directory is held open, so that a run notices when its path leads elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dp_prior.checkpoints.errors import CheckpointError
from dp_prior.files.durable import make_directory
from dp_prior.files.locks import POLL_S, FileLock, NoLocksError, holder_of

LOCK = "run.lock"


class LockedError(CheckpointError):
    """Another process works in the run directory."""


class HeldDirectory:
    """A directory; between `open` and `close` also a descriptor, which still refers to a directory that was moved."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> None:
        """Hold the directory, which must exist."""
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Release the directory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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

    def current(self) -> Path | None:
        """A path that reaches the directory, also after a move; None if the directory was deleted."""
        if not self._is_lost():
            return self.path
        held = Path(f"/proc/self/fd/{self._descriptor}")  # Linux only
        return held if held.is_dir() and os.fstat(self._descriptor).st_nlink else None

    def _is_lost(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network disk that stalls is not a directory that is gone
            return False


class RunLock(HeldDirectory):
    """Holds the exclusive lock of a run directory until released. The file stays; only the kernel's lock counts.

    Worker processes forked by the holder keep the lock until they end. `RunLock` therefore waits if the holder is
    dead, and raises at once if the holder is alive.
    """

    def __init__(self, directory: Path, wait_s: float = 10.0):
        """
        Args:
            directory: the run directory; created if missing.
            wait_s: how long to wait for the orphans of a dead holder.

        Raises:
            LockedError: another process holds the lock.
            CheckpointError: the directory cannot be created, written or locked.
        """
        super().__init__(directory)
        self._lock: FileLock | None = None
        try:
            make_directory(directory)
            self.open()
            self._lock = self._take(directory / LOCK, time.monotonic() + wait_s)
        except NoLocksError as error:
            raise CheckpointError(
                f"cannot lock {error.filename}: {error.strerror}. The file system does not support flock, "
                "so that two runs in one directory would not be noticed; use a file system that supports it."
            ) from None
        except OSError as error:
            raise unwritable(directory, error) from None
        finally:
            if self._lock is None:
                super().close()

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def _take(self, path: Path, deadline: float) -> FileLock:
        while (lock := FileLock.take(path)) is None:
            holder, is_dead = holder_of(path)
            if not is_dead or time.monotonic() >= deadline:
                orphans = " That process is dead, but one of its worker processes is still running." if is_dead else ""
                raise LockedError(
                    f"run directory {self.path} is in use by {holder}.{orphans} "
                    "Stop that run, or choose another directory for this one."
                )
            time.sleep(POLL_S)
        return lock

    def release(self) -> None:
        """Release the lock. Releasing twice is allowed."""
        self._lock.release()
        super().close()

    close = release

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def unwritable(directory: Path, error: OSError) -> CheckpointError:
    """The error of a run directory in which `error` says that nothing can be written, with what to do."""
    place, problem = Path(error.filename or directory / LOCK), error.strerror
    if isinstance(error, FileNotFoundError | NotADirectoryError):  # as /proc says that nothing can be made there
        place = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
        problem = "it is a file" if place.is_file() else "no directory can be made there"
    return CheckpointError(
        f"cannot write in run directory {directory}: {problem} ({place}). Make {place} writable, free space, or train "
        f"in another directory with --set tracker.data_path=DIRECTORY"
    )
