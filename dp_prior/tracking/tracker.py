"""The Tracker: forwards numbers, media and checkpoints to every logger and saver.

It knows numbers and directories, not models, and also serves a training loop of your own (docs/python.md). On all ranks
but the first it has no loggers, so callers need not check the rank. The log of record and the console are called
synchronously; all others have a queue and a thread, so a logger can neither stop nor slow training. Failures are
counted and reported at the end.
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from torch import Tensor

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.store import Saved
from dp_prior.files.printable import redact
from dp_prior.job.work import Done
from dp_prior.places.saver import Saver
from dp_prior.tracking.identity import RunIdentity, claim_identity
from dp_prior.tracking.isolation import Isolated, Message
from dp_prior.tracking.logger import Logger, RunFacts
from dp_prior.tracking.metric_names import Metric

if TYPE_CHECKING:
    from dp_prior.tracking import TrackerConfig
    from dp_prior.tracking.background import Background

RESERVED = ("step", "samples_seen", "nonfinite")
QUIET_S = 2.0  # longer waits at the end of the run are logged
LEAVING_S = 6.0  # time limit of a saver that was asked to stop

log = logging.getLogger(__name__)


class IsolatedSaver(Isolated):
    """A saver that retries failed checkpoints at the end of the run.

    Attributes:
        undelivered: a line for each checkpoint that the saver accepted but did not deliver; filled by `close`.
    """

    def __init__(self, saver: Saver, report: Callable[[str, Isolated], None]):
        super().__init__(saver, f"saver {saver.name!r}", report=report)
        self.undelivered: list[str] = []
        self._latest: Saved | None = None  # newest failed latest checkpoint, until a newer one is delivered
        self._best: Saved | None = None

    def save(self, saved: Saved) -> None:
        """Pass a checkpoint on. Remembers the newest failed latest and the newest failed best for the end."""
        undelivered = None if self.call(lambda saver: saver.save(saved)) else saved
        if saved.is_latest:
            self._latest = undelivered
        if saved.is_best:
            self._best = undelivered

    def close(self, leave: threading.Event) -> threading.Thread:
        """Retry failed checkpoints, then close the saver in the returned thread; `leave` ends the saver's waiting."""
        for saved in self._undelivered():
            if saved.path.is_dir():
                self.save(saved)

        def close(saver: Saver) -> None:
            self.undelivered += saver.close(leave)

        thread = threading.Thread(target=self.call, args=(close,), name=self.title, daemon=True)
        thread.start()
        return thread

    def summary(self) -> str | None:
        """See `Isolated`; with the steps of undelivered checkpoints."""
        line, undelivered = super().summary(), self._undelivered()
        if line is None or not undelivered:
            return line
        steps = " and ".join(str(saved.progress.global_step) for saved in undelivered)
        return f"{line}; the checkpoint of step {steps} did not reach it; the same command tries again"

    def _undelivered(self) -> list[Saved]:
        """Undelivered checkpoints, with the roles (latest, best) still to deliver; an old best never acts as latest."""
        if self._latest is self._best:
            return [] if self._best is None else [self._best]
        latest = [] if self._latest is None else [replace(self._latest, is_best=False)]
        best = [] if self._best is None else [replace(self._best, is_latest=False)]
        return best + latest


class Tracker:
    """See the module. Safe to call from the training loop and from the thread that saves."""

    def __init__(
        self,
        data_path: Path,
        record: TrackerConfig,
        *,
        loggers: Sequence[Logger] = (),
        background: Sequence[Logger] = (),
        savers: Sequence[Saver] = (),
    ):
        """
        Args:
            data_path: the run directory.
            record: the limits that apply to loggers.
            loggers: called synchronously in this order; the first is the log of record.
            background: slow loggers; `begin` starts a thread for each.
        """
        self.data_path = data_path
        self._run_id, self._run_name = record.run_id, record.run_name
        self._patience_s = record.patience_s
        options = {"report": self._announce, "retry_s": record.retry_s}
        limits = [None, *[record.max_failures] * (len(loggers) - 1)]  # the log of record is never muted
        self._direct = [
            Isolated(part, f"logger {part.name!r}", max_failures=limit, **options)
            for part, limit in zip(loggers, limits, strict=False)
        ]
        options |= {"size": record.queue_size, "max_failures": record.max_failures}
        self._queued: list[Background] = []
        if background:
            from dp_prior.tracking.background import Background

            self._queued = [Background(part, f"logger {part.name!r}", **options) for part in background]
        self._savers = [IsolatedSaver(saver, self._announce) for saver in savers]
        self._lock = threading.RLock()
        self._progress = Progress()
        self._has_begun = self._is_placed = not (loggers or background)
        self._is_closed = False
        self._is_silent = False

    def begin(
        self,
        identity: RunIdentity | None = None,
        config: dict[str, Any] | None = None,
        metrics: tuple[Metric, ...] = (),
    ) -> None:
        """Open all loggers and start the threads; the first log call does this as well.

        Args:
            identity: identity of the run; None for the identity stored in the directory, or a new identity.
            config: JSON values that loggers show.
        """
        with self._lock:
            self._has_begun = True
            if identity is None:
                identity = claim_identity(self.data_path, run_id=self._run_id, name=self._run_name)
            for logger in (*self._direct, *self._queued):
                run = RunFacts(self.data_path, identity, config or {}, self._patience_s, logger.remark, metrics)
                logger.begin(lambda part, run=run: part.begin(run))

    def log(self, metrics: dict[str, Any], progress: Progress | SupportsIndex) -> None:
        """Log numbers. May be called again at the same step with more numbers; the step never decreases.

        Args:
            metrics: numbers, or tensors and arrays of one element; NaN and infinity are passed on.
            progress: the clock, or a step alone, which then counts as one sample. Without a call of `rewind`, the first
                clock is the start of this process: rows of this and later steps are no longer part of the run.

        Raises:
            ValueError: the name is reserved, or the step precedes a logged step.
            RuntimeError: the tracker is closed.
        """
        for name in metrics:
            if name in RESERVED:
                raise ValueError(f"metric name {name!r} is reserved; choose another")
        numbers = {str(name): _number(name, value) for name, value in metrics.items()}
        with self._lock:
            progress = self._open_at(progress)
            if progress.global_step < self._progress.global_step:
                raise ValueError(
                    f"metrics of step {progress.global_step} come after those of step {self._progress.global_step}; "
                    "call rewind() before logging earlier steps"
                )
            self._progress = progress
            self._tell(lambda logger: logger.log(numbers, progress))

    def log_images(self, images: dict[str, Path], progress: Progress | SupportsIndex) -> None:
        """Log files of pictures and videos by name; see `log` for the clock."""
        if images:
            copied, now = dict(images), self._open_at(progress)  # loggers behind queues read the copy later
            self._tell(lambda logger: logger.log_images(copied, now))

    def log_file(self, path: Path, progress: Progress | SupportsIndex) -> None:
        """Log a file of the run; see `log` for the clock."""
        now = self._open_at(progress)
        self._tell(lambda logger: logger.log_file(path.name, path, now))

    def log_error(self, error: str | BaseException, progress: Progress | None = None) -> None:
        """Log an error, without secrets in its text."""
        message = _words(error)
        self._tell(lambda logger: logger.log_error(message, progress or self._progress))

    def log_work(self, done: Done) -> None:
        """Show the progress of an evaluation on loggers that are called synchronously."""
        with self._lock:
            for logger in self._direct:
                logger.call(lambda part: part.log_work(done))

    def rewind(self, progress: Progress) -> None:
        """The run starts or resumes here; rows of later steps no longer belong to the run."""
        with self._lock:
            self._progress, self._is_placed = progress, True
            self._tell(lambda logger: logger.rewind(progress), insist=True)

    def sync(self) -> None:
        """Make logged rows durable. Call before each save, since a resume from the checkpoint logs only later steps."""
        self._tell(lambda logger: logger.sync())

    def save(self, saved: Saved) -> None:
        """Pass an immutable checkpoint to the savers. A failed saver gets the checkpoint again at the end."""
        for saver in self._savers:
            saver.save(saved)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: pass the best checkpoint, pictures by file name and final scores to the savers."""
        for saver in self._savers:
            saver.call(lambda part: part.complete(directory, media, scores))

    def close(self, limit_s: float = math.inf, is_in_a_hurry: Callable[[], bool] = lambda: False) -> list[str]:
        """Close all savers and loggers. An interrupt ends the waiting, not the closing.

        Args:
            limit_s: total time limit in seconds; the part for loggers is reserved.
            is_in_a_hurry: polled; returns whether to stop waiting.

        Returns:
            One line for each failed part; a second call returns an empty list.
        """
        if self._is_closed:
            return []
        self._is_closed = True
        end = time.monotonic() + limit_s
        leave = threading.Event()
        closing = [saver.close(leave) for saver in self._savers]  # in parallel, since each may wait for a remote place
        patience_s = max((saver.part.patience_s for saver in self._savers), default=0.0) + LEAVING_S
        if not _wait(closing, min(end - self._patience_s, time.monotonic() + patience_s), is_in_a_hurry):
            end, is_in_a_hurry = min(end, time.monotonic() + QUIET_S), lambda: False
        leave.set()
        for thread in closing:
            thread.join(LEAVING_S)
        for logger in self._queued:
            logger.finish()
        threads = [logger.thread for logger in self._queued if logger.thread is not None]
        _wait(threads, min(end, time.monotonic() + self._patience_s), is_in_a_hurry)
        for logger in self._queued:
            logger.give_up()
        with self._lock:
            for logger in self._direct:
                logger.call(lambda part: part.close(), insist=True)
            self._is_silent = True
        lines = [part.summary() for part in (*self._direct, *self._queued, *self._savers)]
        summaries = [line for line in lines if line is not None]
        return summaries + list(itertools.chain.from_iterable(saver.undelivered for saver in self._savers))

    @property
    def has_failed_savers(self) -> bool:
        """Whether a saver raised an error, so that it may lack a checkpoint."""
        return any(saver.failures for saver in self._savers)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_interrupt = isinstance(error, KeyboardInterrupt)  # the user's decision, no error of the run
        if error is not None and not is_interrupt:
            self._tell(lambda logger: logger.log_end(_words(error), self._progress))
        for line in self.close(self._patience_s if is_interrupt else math.inf):
            log.warning(line)

    def _open_at(self, progress: Progress | SupportsIndex) -> Progress:
        """Convert `progress` to a clock; before the first log call, call `begin` and `rewind` if the caller did not."""
        now = progress
        if not isinstance(now, Progress):
            step = operator.index(progress)
            now = Progress(step, step)
        with self._lock:
            if self._is_silent:
                raise RuntimeError(
                    f"step {now.global_step} was logged after close(), so no logger would have it; log before close(), "
                    f"or open another Tracker"
                )
            if not self._has_begun:
                self.begin()
            if not self._is_placed:
                self.rewind(Progress(now.samples_seen, max(0, now.global_step - 1)))
        return now

    def _tell(self, message: Message, *, insist: bool = False) -> None:
        with self._lock:
            for logger in (*self._direct, *self._queued):
                logger.call(message, insist=insist)

    def _announce(self, message: str, source: Isolated) -> None:
        """Log a failure of `source` with all other loggers. Called from any thread, also after the run has ended."""
        if self._is_silent:
            return
        if all(logger is source for logger in self._direct[1:]):  # no other logger can show the message
            log.warning(message)
        with self._lock:
            for logger in (*self._direct, *self._queued):
                if logger is not source:
                    logger.call(lambda part: part.log_error(message, self._progress))


def _words(error: str | BaseException) -> str:
    """An error in a line for loggers, without secrets in its text."""
    kind = "" if isinstance(error, str) else type(error).__name__
    return redact(": ".join(filter(None, (kind, str(error)))))


def _wait(threads: list[threading.Thread], end: float, is_in_a_hurry: Callable[[], bool]) -> bool:
    """Join threads until `end` on the monotonic clock; False if hurried or interrupted. Logs a wait above `QUIET_S`."""
    begin, is_reported = time.monotonic(), False
    try:
        while alive := [thread for thread in threads if thread.is_alive()]:
            now = time.monotonic()
            if now >= end or is_in_a_hurry():
                return now >= end
            if now - begin >= QUIET_S and not is_reported:
                is_reported = True
                names = ", ".join(thread.name for thread in alive)
                log.warning(f"the end of the run waits for {names}, {end - now:.0f} s at most; Ctrl-C ends the wait")
            alive[0].join(0.1)
    except KeyboardInterrupt:
        return False
    return True


def _number(name: str, value: Any) -> float | int:
    """Convert a number, tensor or array of one element to a Python number."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        if math.prod(value.shape) != 1:
            raise TypeError(f"metric {name!r} has shape {tuple(value.shape)}; expected a number, or one element")
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"metric {name!r} is {value!r} ({type(value).__name__}); expected a number")
