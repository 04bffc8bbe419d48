"""One run per directory: an exclusive lock, which the kernel releases when the holder dies, even by kill -9."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from dp_prior.checkpoints.errors import CheckpointError
from dp_prior.checkpoints.held import HeldDirectory
from dp_prior.durable import is_alive, make_directory
from dp_prior.regular_files import read_object

LOCK = "run.lock"
_LARGEST_HOLDER = 4096  # bytes


class LockedError(CheckpointError):
    """Another process works in the run directory."""


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
        path = directory / LOCK
        with contextlib.ExitStack() as opened:
            try:
                make_directory(directory)
                self.open()
                opened.callback(super().close)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
                opened.callback(os.close, self._file)
                self._take(wait_s)
                opened.callback(fcntl.flock, self._file, fcntl.LOCK_UN)
                os.ftruncate(self._file, 0)
            except OSError as error:
                raise CheckpointError(
                    f"cannot write in run directory {directory}: {error.strerror} ({error.filename or path}). "
                    "Make it writable, free space, or choose another."
                ) from None
            self._opened = opened.pop_all()
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
        with contextlib.suppress(OSError):  # a full disk must not keep a run from starting; only the message suffers
            os.pwrite(self._file, json.dumps(holder).encode(), 0)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def _take(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while not self._try():
            holder, is_dead = _holder(self.path / LOCK)
            if not is_dead or time.monotonic() >= deadline:
                orphans = " That process is dead, but one of its worker processes is still running." if is_dead else ""
                raise LockedError(
                    f"run directory {self.path} is in use by {holder}.{orphans} "
                    "Stop that run, or choose another directory for this one."
                )
            time.sleep(0.05)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise CheckpointError(
                f"cannot lock {self.path / LOCK}: {error.strerror}. The file system does not support flock, "
                "so that two runs in one directory would not be noticed; use a file system that supports it."
            ) from None
        return True

    def release(self) -> None:
        """Release the lock. Releasing twice is allowed."""
        with contextlib.suppress(OSError):
            self._opened.close()

    close = release

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _holder(path: Path) -> tuple[str, bool]:
    """The process that holds the lock, for messages, and whether it is dead."""
    found = read_object(path, _LARGEST_HOLDER)
    host, pid = found.get("host"), found.get("pid")
    if not isinstance(host, str) or type(pid) is not int:
        return "another process", False
    started = found.get("started", "at an unknown time")
    return f"process {pid} on host {host}, started {started}", is_alive(host, pid) is False
