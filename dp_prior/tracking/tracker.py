"""The Tracker: one object that tells every logger, feeds every saver, and knows where to go on from.

It knows numbers and directories, not what a model is. Ranks other than the first get one with nobody to tell, so no
caller asks who it is. The log of record and the console are told at once; all others have a queue and a thread, so
training neither dies of a logger nor waits for one. What failed is counted and named at the end.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from dp_prior.clock import Progress
from dp_prior.metric_names import Metric
from dp_prior.places.saver import Durable, ResumePoint, Saver
from dp_prior.redact import redact
from dp_prior.tracking.identity import Identity
from dp_prior.tracking.isolation import Background, Contained, Message

RESERVED = ("step", "samples_seen", "nonfinite")
QUIET_S = 2.0  # the end of the run waits so long without a word
LEAVING_S = 6.0  # what is asked to leave may take so long to do so

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """What a logger learns of the run before anything else.

    Attributes:
        directory: the run directory; files of a logger go into a folder or file of its own in it.
        config: the resolved configuration as JSON values.
        patience_s: how long the end of the run waits for loggers.
        report: tells everybody else something that people should know, now and at the end of the run.
        metrics: descriptions of what will be logged; `find_metric` finds that of a name.
    """

    directory: Path
    identity: Identity
    config: dict[str, Any]
    patience_s: float
    report: Callable[[str], None]
    metrics: tuple[Metric, ...] = ()


class Logger(Protocol):
    """Somebody who is told how training goes. What it cannot show it ignores.

    `begin` comes first and again until it succeeds, then `rewind` with the place where the run goes on. All calls but
    the constructor come from one thread. Metrics are shared with other loggers and must not be changed.
    """

    name: str

    def begin(self, run: Run) -> None: ...

    def log(self, metrics: dict[str, float], progress: Progress) -> None: ...

    def log_images(self, images: dict[str, Path | np.ndarray], progress: Progress) -> None: ...

    def log_file(self, name: str, path: Path, progress: Progress) -> None: ...

    def log_error(self, message: str, progress: Progress) -> None: ...

    def rewind(self, progress: Progress) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Let go of what could hold up the end of the process. Called from another thread, after a call that hangs."""


class Tracker:
    """See the module. Safe to call from the training loop and from the thread that saves."""

    def __init__(
        self,
        data_path: Path,
        *,
        loggers: Sequence[Logger],
        savers: Sequence[Saver],
        loader: ResumePoint | None,
        background: Sequence[Logger] = (),
        max_failures: int = 3,
        retry_s: float = 10.0,
        queue_size: int = 1000,
        patience_s: float = 10.0,
    ):
        """
        Args:
            data_path: the run directory.
            loggers: told in this order before a call returns; the first is the log of record.
            background: loggers that may take their time, each with a thread of its own that starts with `begin`.
            max_failures: failures in a row after which a logger is muted.
            retry_s: a muted logger is tried again after so many seconds, then ever less often.
            queue_size: calls that may wait for a background logger.
            patience_s: `close` waits so long for all background loggers together.
        """
        self.data_path = data_path
        self.loader = loader

        def contain(logger: Logger, limit: int | None = max_failures) -> Contained:
            title = f"logger {logger.name!r}"
            return Contained(logger, title, report=self._announce, max_failures=limit, retry_s=retry_s)

        record = [contain(logger, None) for logger in loggers[:1]]  # a row of this one is never given up untried
        self._direct = [*record, *(contain(logger) for logger in loggers[1:])]
        self._queued = [Background(contain(logger), size=queue_size) for logger in background]
        self._savers = [Contained(saver, f"saver {saver.name!r}", report=self._announce) for saver in savers]
        self._patience_s = patience_s
        self._unsaved: dict[int, Durable] = {}
        self._lock = threading.RLock()
        self._progress = Progress()
        self._is_closed = False
        self._is_silent = False

    def begin(self, identity: Identity, config: dict[str, Any], metrics: tuple[Metric, ...] = ()) -> None:
        """Tell everybody which run this is; background loggers wake up. `rewind` tells next where it goes on."""

        def greet(contained: Contained) -> Message:
            run = Run(self.data_path, identity, config, self._patience_s, contained.remark, metrics)
            return lambda logger: logger.begin(run)

        with self._lock:
            for logger in self._direct:
                logger.call(greet(logger))
            for logger in self._queued:
                logger.begin(greet(logger.contained))

    def log(self, metrics: dict[str, Any], progress: Progress) -> None:
        """Tell numbers. At one step this may be called again with more of them, but the clock never goes back.

        Args:
            metrics: numbers, or tensors and arrays of one element; NaN and infinity are passed on.
        """
        for name in metrics:
            if name in RESERVED:
                raise ValueError(f"metric name {name!r} is reserved; choose another")
        numbers = {str(name): _number(name, value) for name, value in metrics.items()}
        with self._lock:
            if progress.global_step < self._progress.global_step:
                raise ValueError(
                    f"metrics of step {progress.global_step} come after those of step {self._progress.global_step}; "
                    "a run that goes back calls rewind() first"
                )
            self._progress = progress
            self._tell(lambda logger: logger.log(numbers, progress))

    def log_images(self, images: dict[str, Any], progress: Progress) -> None:
        """Show pictures and videos by name: files, (height, width, 3) uint8 arrays, or figures of matplotlib.

        A figure is saved in the folder `media` of the run, and told as that file.
        """
        shown: dict[str, Path | np.ndarray] = {}
        for name, image in images.items():
            try:
                shown[name] = self._as_shown(name, image, progress)
            except OSError as error:
                self.log_error(error, progress)
        if shown:
            self._tell(lambda logger: logger.log_images(shown, progress))

    def log_file(self, path: Path, progress: Progress, name: str | None = None) -> None:
        """Point out a file of the run."""
        self._tell(lambda logger: logger.log_file(name or path.name, path, progress))

    def log_error(self, error: str | BaseException, progress: Progress | None = None) -> None:
        """Tell that something went wrong."""
        message = redact(error if isinstance(error, str) else f"{type(error).__name__}: {error}")
        self._tell(lambda logger: logger.log_error(message, progress or self._progress))

    def rewind(self, progress: Progress) -> None:
        """The run goes on from here: what was logged beyond is no longer part of it."""
        with self._lock:
            self._progress = progress
            self._tell(lambda logger: logger.rewind(progress), insist=True)

    def save(
        self,
        directory: Path,
        progress: Progress,
        metrics: dict[str, float],
        is_latest: bool = True,
        is_best: bool = False,
    ) -> None:
        """Hand a durable checkpoint to the savers. One that fails gets its checkpoint again at the end."""
        self._tell(lambda logger: logger.sync())
        durable = Durable(directory, progress, metrics, is_latest, is_best)
        for index, saver in enumerate(self._savers):
            if saver.call(lambda one: one.save(durable)):
                if index in self._unsaved and (is_best or not self._unsaved[index].is_best):
                    del self._unsaved[index]
            else:
                self._unsaved[index] = durable

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: hand its best checkpoint, pictures by file name and final scores to the savers."""
        for saver in self._savers:
            saver.call(lambda one: one.complete(directory, media, scores))

    @property
    def can_recall(self) -> bool:
        """Whether there is something to go on from."""
        return self.loader is not None and self.loader.can_recall()

    def recall(self) -> str | None:
        """Reference of the checkpoint to go on from, None if there is none."""
        return self.loader.recall() if self.can_recall else None

    def close(self, limit_s: float = math.inf, is_in_a_hurry: Callable[[], bool] = lambda: False) -> list[str]:
        """Say farewell to all savers and loggers. An interrupt ends the waiting, not the farewell.

        Args:
            limit_s: seconds that all may wait; savers leave loggers their share of it.
            is_in_a_hurry: whether somebody wants the end now; asked again and again.

        Returns:
            One line for each part that failed; a second call returns none.
        """
        if self._is_closed:
            return []
        self._is_closed = True
        end = time.monotonic() + limit_s
        for index, durable in list(self._unsaved.items()):
            if durable.directory.is_dir() and self._savers[index].call(lambda one, durable=durable: one.save(durable)):
                del self._unsaved[index]
        waiting: list[str] = []
        leave = threading.Event()
        farewells = [  # together, since each may wait for a place of its own
            threading.Thread(
                target=saver.call,
                args=(lambda one: waiting.extend(one.close(leave) or []),),
                name=saver.title,
                daemon=True,
            )
            for saver in self._savers
        ]
        for farewell in farewells:
            farewell.start()
        patience_s = max((saver.part.patience_s for saver in self._savers), default=0.0) + LEAVING_S
        if not _wait(farewells, min(end - self._patience_s, time.monotonic() + patience_s), is_in_a_hurry):
            end, is_in_a_hurry = min(end, time.monotonic() + QUIET_S), lambda: False
        leave.set()
        for farewell in farewells:
            farewell.join(LEAVING_S)
        for logger in self._queued:
            logger.finish()
        threads = [logger.thread for logger in self._queued if logger.thread is not None]
        _wait(threads, min(end, time.monotonic() + self._patience_s), is_in_a_hurry)
        for logger in self._queued:
            logger.give_up()
        with self._lock:
            for logger in self._direct:
                logger.call(lambda one: one.close(), insist=True)
            self._is_silent = True
        missing = {
            index: f"; the checkpoint of step {durable.progress.global_step} did not reach it"
            for index, durable in self._unsaved.items()
        }
        lines = [logger.summary() for logger in (*self._direct, *self._queued)]
        lines += [
            line + missing.get(index, "")
            for index, saver in enumerate(self._savers)
            if (line := saver.summary()) is not None
        ]
        return [line for line in lines if line is not None] + waiting

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.log_error(error)
        for line in self.close(self._patience_s if kind is KeyboardInterrupt else math.inf):
            log.warning(line)

    def _tell(self, message: Message, *, insist: bool = False) -> None:
        with self._lock:
            for logger in (*self._direct, *self._queued):
                logger.call(message, insist=insist)

    def _announce(self, message: str, source: Contained) -> None:
        """Tell of a failure whoever still listens; called from any thread, which at the end may outlive the run."""
        if self._is_silent:
            return
        if all(logger is source for logger in self._direct[1:]):  # nobody else shows it to people
            log.warning(message)
        with self._lock:
            for logger in (*self._direct, *self._queued):
                if source not in (logger, getattr(logger, "contained", None)):
                    logger.call(lambda one: one.log_error(message, self._progress))

    def _as_shown(self, name: str, image: Any, progress: Progress) -> Path | np.ndarray:
        """What loggers understand; an array is copied, since it may be shown later."""
        if isinstance(image, (str, Path)):
            return Path(image)
        if hasattr(image, "savefig"):
            stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
            path = self.data_path / "media" / f"{stem}_{progress.global_step:08d}.png"
            if self._direct:
                path.parent.mkdir(parents=True, exist_ok=True)
                image.savefig(path, format="png")
            return path
        array = np.array(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise ValueError(
                f"image {name!r} has shape {array.shape} and type {array.dtype}; expected (height, width, 3) uint8"
            )
        return array


def _wait(threads: list[threading.Thread], end: float, is_in_a_hurry: Callable[[], bool]) -> bool:
    """Wait for threads until a moment of the monotonic clock; False if somebody does not want to wait any longer.

    People are told when that takes a while.
    """
    begun, is_told = time.monotonic(), False
    try:
        while alive := [thread for thread in threads if thread.is_alive()]:
            now = time.monotonic()
            if now >= end or is_in_a_hurry():
                return now >= end
            if now - begun >= QUIET_S and not is_told:
                is_told = True
                names = ", ".join(thread.name for thread in alive)
                log.warning(f"the end of the run waits for {names}, {end - now:.0f} s at most; Ctrl-C ends that")
            alive[0].join(0.1)
    except KeyboardInterrupt:
        return False
    return True


def _number(name: str, value: Any) -> float | int:
    """A Python number from a number, tensor or array of one element."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"metric {name!r} is {value!r} ({type(value).__name__}); expected a number")


def is_finite(value: float) -> bool:
    """Whether a number has a place in JSON; integers of any size have."""
    return isinstance(value, int) or math.isfinite(value)
