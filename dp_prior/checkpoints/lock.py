"""One run, one directory: an exclusive lock that the system frees when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import re
import socket
import time
from pathlib import Path
from types import TracebackType

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.durable import is_alive

LOCK = "run.lock"


class LockedError(CheckpointError):
    """Another process works in the run directory."""


class RunLock:
    """Holds the exclusive lock of a run directory until released. The file stays; only the lock on it counts.

    Worker processes forked while the lock is held keep it alive as long as they live. So a dead holder is waited for,
    while a living one is refused at once.
    """

    def __init__(self, directory: Path, wait_s: float = 10.0):
        """
        Args:
            directory: the run directory; created if missing.
            wait_s: how long to wait for the orphans of a dead holder.

        Raises:
            LockedError: another process holds the lock.
            CheckpointError: the directory cannot be created or written.
        """
        self.directory = directory
        path = directory / LOCK
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 (lives as long as the lock)
        except OSError as error:
            raise CheckpointError(
                f"cannot write in run directory {directory}: {error.strerror}. Make it writable or choose another."
            ) from None
        deadline = time.monotonic() + wait_s
        while not self._try():
            holder = _read_holder(path)
            if _lives(holder) is not False or time.monotonic() >= deadline:
                self._file.close()
                raise LockedError(_refusal(directory, holder))
            time.sleep(0.05)
        self._file.truncate(0)
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
        with contextlib.suppress(OSError):  # a full disk must not keep a run from starting; only the message suffers
            self._file.write(json.dumps(holder).encode())
            self._file.flush()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            self._file.close()
            raise CheckpointError(
                f"cannot lock {self.directory / LOCK}: {error.strerror}. The file system does not support flock, "
                "so two runs could not be told apart; put the run directory on one that does."
            ) from None
        return True

    @property
    def is_held(self) -> bool:
        """Whether this object still keeps others out."""
        return not self._file.closed

    def release(self) -> None:
        """Let others in. Releasing twice is allowed."""
        if self.is_held:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read_holder(path: Path) -> dict:
    try:
        holder = json.loads(path.read_bytes())
        return holder if isinstance(holder, dict) else {}
    except (OSError, ValueError):
        return {}


def _lives(holder: dict) -> bool | None:
    """Whether the holder lives; None if that cannot be known."""
    if not isinstance(holder.get("host"), str) or not isinstance(holder.get("pid"), int):
        return None
    return is_alive(re.sub(r"[^A-Za-z0-9.-]", "-", holder["host"]), holder["pid"])


def _refusal(directory: Path, holder: dict) -> str:
    who = "another process"
    if holder:
        who = f"process {holder.get('pid')} on host {holder.get('host')}, started {holder.get('started')}"
    orphans = " That process is dead, but one of its worker processes lives on." if _lives(holder) is False else ""
    return (
        f"run directory {directory} is in use by {who}.{orphans} "
        "Stop that run, or give this one a directory of its own."
    )
