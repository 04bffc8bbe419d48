"""Exit codes, and `exit.json` in the run directory: how the run ended, since launchers hide the codes of their workers.

Written where training begins with reason `running`, so that a killed run differs from an ended run. Any rank may write
the end. A root cause is never overwritten by an error that merely followed from it, and the end of a finished run not
by the refusal of a later start, which trained nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import math
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.errors import CheckpointError
from dp_prior.checkpoints.run_lock import LockedError, RunLock
from dp_prior.checkpoints.scan import scan
from dp_prior.config import ConfigError, PartError, own_version
from dp_prior.data.errors import DataError, UnreachableError, UnreadableError, UnwritableError
from dp_prior.files.durable import FULL, replace_file
from dp_prior.files.json_text import encode_document
from dp_prior.files.locks import POLL_S, FileLock, NoLocksError
from dp_prior.files.regular_files import read_object
from dp_prior.files.temporary import is_alive
from dp_prior.job.stop import LOST, RankLostError, StoppedEarly, Verdict
from dp_prior.training.divergence import DivergedError
from dp_prior.training.guard import NotFiniteError

EXIT = "exit.json"
RUNNING, REFUSED = "running", "refused"
UNDELIVERED = "undelivered"
DONE, FAILED, BAD_CONFIG, BAD_DATA = 0, 1, 64, 65
UNAVAILABLE, BUSY, UNSAVED, STOPPED, INTERRUPTED = 69, 73, 74, 75, 130
REASONS: dict[type[BaseException], tuple[str, int]] = {  # the first match wins
    ConfigError: ("configuration", BAD_CONFIG),
    FileNotFoundError: ("configuration", BAD_CONFIG),
    FileExistsError: ("configuration", BAD_CONFIG),
    ImportError: ("configuration", BAD_CONFIG),
    PartError: ("configuration", BAD_CONFIG),
    UnreachableError: ("unavailable", UNAVAILABLE),
    UnreadableError: ("unreadable", UNSAVED),
    UnwritableError: ("not saved", UNSAVED),
    DataError: ("data", BAD_DATA),
    NotFiniteError: ("not finite", BAD_DATA),
    DivergedError: ("diverged", BAD_DATA),
    LockedError: ("busy", BUSY),
    CheckpointError: ("not saved", UNSAVED),
    StoppedEarly: ("preempted", STOPPED),
    KeyboardInterrupt: ("interrupted", INTERRUPTED),
}
_REFUSALS = (FAILED, BAD_CONFIG, BAD_DATA)
"""Codes that a repeat of the start would give again; schedulers read the others in `exit.json`."""
_SYSTEM_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, *FULL}
"""Errors of the operating system whose message and file name are explanation enough."""


def classify(error: BaseException) -> tuple[str, int]:
    """Reason in `exit.json` and exit code of an error; `error` and 1 for an unexpected one."""
    if isinstance(error, RankLostError):
        return error.verdict.reason, error.verdict.code
    if isinstance(error, CheckpointError) and error.is_remote:
        return "unavailable", UNAVAILABLE
    for kind, reason_and_code in REASONS.items():
        if isinstance(error, kind):
            return reason_and_code
    if isinstance(error, OSError) and error.errno in (_SYSTEM_ERRORS if error.filename else FULL):
        return REFUSED, UNSAVED
    return "error", FAILED


class ExitFile:
    """`exit.json` of a run, as one rank writes it.

    Attributes:
        was_cut_short: whether the previous process was killed, stopped, or ended with an error or with a saver that had
            failed; False before `begin`.
    """

    def __init__(self, directory: Path, rank: int = 0, ranks: int = 1):
        self.path = directory / EXIT
        self.rank, self.ranks = rank, ranks
        self.clock: Callable[[], Progress] = Progress
        self.was_cut_short = False
        self._started = _now()
        self._has_begun = self._is_closed = False
        self._lock = threading.Lock()

    def begin(self) -> str | None:
        """Write `running`. Returns a line if the previous process was killed."""
        before, self._has_begun = read_object(self.path), True
        self.was_cut_short = before.get("code", DONE) != DONE or UNDELIVERED in before
        with contextlib.suppress(OSError):
            self._write({"reason": RUNNING, "code": None, "message": "the run is in progress, or was killed"})
        host, pid = before.get("host"), before.get("pid")
        if before.get("reason") != RUNNING or not isinstance(pid, int) or is_alive(str(host), pid) is not False:
            return None
        durable = self._durable()
        saved = f"its last save is of step {durable['global_step']}" if durable else "it had saved nothing"
        return f"process {pid}, started {before.get('started')}, was killed; {saved}"

    def end(self, reason: str, code: int, message: str, **facts: Any) -> None:
        """Write how the run ended; the first call wins. Never raises: a full disk must not hide the real error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            with contextlib.suppress(OSError), self._alone():
                before = read_object(self.path)
                is_refusal = not self._has_begun and code in _REFUSALS and before.get("code") == DONE
                if not is_refusal and not self._has_root_cause(before, code):
                    self._write({"reason": reason, "code": code, "message": message, **facts})

    def fail(self, error: BaseException) -> None:
        """Write the error that ended the run; nothing if the directory belongs to another process. The message of an
        early stop then names the checkpoint at which the run resumes."""
        if isinstance(error, StoppedEarly):
            if durable := self._durable():
                error.args = (f"{error}: {durable['checkpoint']}",)
            self.end(*classify(error), str(error), rank=error.rank, stopped_by=error.reason)
        elif not isinstance(error, LockedError):
            self.lose(explain(error, self.rank))

    def lose(self, verdict: Verdict) -> None:
        """Write why the run cannot go on, on this rank or another."""
        self.end(verdict.reason, verdict.code, verdict.message, rank=verdict.rank, traceback=verdict.trace)

    def _has_root_cause(self, before: dict[str, Any], code: int) -> bool:
        """Whether another rank of this run has written the root cause already. A stop that follows from a lost rank
        does not replace the loss, since a launcher stops the ranks that wait."""
        if self.ranks == 1 or before.get("code") is None:
            return False
        if before["code"] == LOST and code != STOPPED:
            return False
        return _moment(before.get("ended")) >= _moment(self._started)

    def _write(self, content: dict[str, Any]) -> None:
        if self.path.exists() and not self.path.is_file():
            raise FileExistsError(f"{self.path} is not a regular file")
        usual = {
            "rank": self.rank,
            "ranks": self.ranks,
            "host": socket.gethostname(),
            "dp_prior": own_version(),
            "pid": os.getpid(),
            "started": self._started,
            "ended": None if content["reason"] == RUNNING else _now(),
            "progress": vars(self.clock()),
            "durable": self._durable(),
            "traceback": None,
        }
        added = {name: value for name, value in usual.items() if name not in content}
        replace_file(self.path, encode_document(content | added))

    def _durable(self) -> dict[str, Any] | None:
        """The newest complete checkpoint on disk, by sizes; hashes are verified when a checkpoint is loaded."""
        try:
            stored = next(iter(scan(self.path.parent / "checkpoints")[0]), None)
        except CheckpointError:  # a checkpoint is unreadable; how the run ended matters more
            return None
        return None if stored is None else {"checkpoint": stored.path.name, **vars(stored.manifest.progress)}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the run directory against other ranks, for at most two seconds, where the file system supports it."""
        lock, end = None, time.monotonic() + 2
        with contextlib.suppress(NoLocksError):
            while (lock := FileLock.take(self.path.parent, folder=True)) is None and time.monotonic() < end:
                time.sleep(POLL_S)
        with lock or contextlib.nullcontext():
            yield


@contextlib.contextmanager
def recorded(directory: Path) -> Iterator[ExitFile]:
    """Write an error inside to `exit.json`, if no other process uses the run directory; only a stop creates the file.

    Yields the `ExitFile`, as that of rank 0 of 1; the caller sets `rank` and `ranks` once known.
    """
    exits = ExitFile(directory)
    try:
        yield exits
    except BaseException as error:
        with contextlib.suppress(CheckpointError, OSError):
            if isinstance(error, StoppedEarly):
                directory.mkdir(parents=True, exist_ok=True)
            if directory.is_dir():
                with RunLock(directory, wait_s=0):
                    exits.fail(error)
        raise


def explain(error: BaseException, rank: int) -> Verdict:
    """An error in the form that other ranks and `exit.json` receive."""
    if isinstance(error, RankLostError):
        return error.verdict
    reason, code = classify(error)
    message = str(error) or type(error).__name__
    if code == FAILED:
        message = f"{type(error).__name__}: {message}"
    trace = "".join(traceback.format_exception(error))[-20_000:]
    return Verdict(rank, code, message, reason, trace)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _moment(text: Any) -> float:
    """Seconds since the epoch of a time in `exit.json`, written in any zone; the past if the text is no time."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return -math.inf
