"""The Tracker: one object that tells every logger, feeds every saver, and knows where to go on from.

It knows numbers and directories, not what a model is. Ranks other than the first get one with nobody to tell, so no
caller asks who it is. Training never dies of a logger: one that raises is contained, counted, and named at the end.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from dp_prior.clock import Progress

RESERVED = ("step", "samples_seen", "nonfinite")

log = logging.getLogger(__name__)


class Logger(Protocol):
    """Somebody who is told how training goes. What it cannot show it ignores."""

    name: str

    def log(self, metrics: dict[str, float], progress: Progress) -> None: ...

    def log_images(self, images: dict[str, Path | np.ndarray], progress: Progress) -> None: ...

    def log_file(self, name: str, path: Path, progress: Progress) -> None: ...

    def log_error(self, message: str, progress: Progress) -> None: ...

    def rewind(self, progress: Progress) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Durable:
    """A checkpoint directory that will not change any more, as savers receive it.

    Attributes:
        metrics: measured at this very step.
        is_latest: False for one that must not be resumed from.
        is_best: whether the monitored metric had its best value here.
    """

    directory: Path
    progress: Progress
    metrics: dict[str, float]
    is_latest: bool
    is_best: bool


class Saver(Protocol):
    """Somebody who receives checkpoints. Saving the same one twice does no harm."""

    name: str

    def save(self, durable: Durable) -> None: ...

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None: ...

    def close(self) -> list[str] | None: ...


class Loader(Protocol):
    """Where a run goes on from."""

    def can_recall(self) -> bool: ...

    def recall(self) -> str | None: ...


class Tracker:
    """See the module. Safe to call from the training loop and from the thread that saves."""

    def __init__(
        self,
        data_path: Path,
        *,
        loggers: Sequence[Logger],
        savers: Sequence[Saver],
        loader: Loader | None,
        max_failures: int,
    ):
        """
        Args:
            data_path: the run directory.
            loggers: told in this order; the first is the log of record.
            max_failures: failures in a row after which a logger is not called any more.
        """
        self.data_path = data_path
        self.loader = loader
        self._loggers = [_Contained(logger, f"logger {logger.name!r}", max_failures) for logger in loggers]
        self._savers = [_Contained(saver, f"saver {saver.name!r}", None) for saver in savers]
        self._unsaved: dict[int, Durable] = {}
        self._lock = threading.RLock()
        self._progress = Progress()
        self._is_closed = False

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

    def log_images(self, images: dict[str, Path | np.ndarray], progress: Progress) -> None:
        """Show pictures and videos: files, or (height, width, 3) uint8 arrays, by name."""
        if images:
            self._tell(lambda logger: logger.log_images(images, progress))

    def log_file(self, path: Path, progress: Progress, name: str | None = None) -> None:
        """Point out a file of the run."""
        self._tell(lambda logger: logger.log_file(name or path.name, path, progress))

    def log_error(self, error: str | BaseException, progress: Progress | None = None) -> None:
        """Tell that something went wrong."""
        message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._tell(lambda logger: logger.log_error(message, progress or self._progress))

    def rewind(self, progress: Progress) -> None:
        """The run goes on from here: what was logged beyond is no longer part of it."""
        with self._lock:
            self._progress = progress
            self._tell(lambda logger: logger.rewind(progress))

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
                self._report(saver)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: hand its best checkpoint, pictures by file name and final scores to the savers."""
        for saver in self._savers:
            if not saver.call(lambda one: one.complete(directory, media, scores)):
                self._report(saver)

    @property
    def can_recall(self) -> bool:
        """Whether there is something to go on from."""
        return self.loader is not None and self.loader.can_recall()

    def recall(self) -> str | None:
        """Reference of the checkpoint to go on from, None if there is none."""
        return self.loader.recall() if self.can_recall else None

    def close(self) -> list[str]:
        """Say farewell to all loggers. Returns one line for each part that failed; a second call returns none."""
        if self._is_closed:
            return []
        self._is_closed = True
        for index, durable in list(self._unsaved.items()):
            if durable.directory.is_dir() and self._savers[index].call(lambda one, durable=durable: one.save(durable)):
                del self._unsaved[index]
        waiting: list[str] = []
        farewells = [  # together, since each may wait for a place of its own
            threading.Thread(target=saver.call, args=(lambda one: waiting.extend(one.close() or []),), daemon=True)
            for saver in self._savers
        ]
        for farewell in farewells:
            farewell.start()
        for farewell in farewells:
            farewell.join()
        self._tell(lambda logger: logger.close())
        missing = {
            index: f"; the checkpoint of step {durable.progress.global_step} did not reach it"
            for index, durable in self._unsaved.items()
        }
        lines = [part.summary() for part in self._loggers if part.failures]
        lines += [part.summary() + missing.get(index, "") for index, part in enumerate(self._savers) if part.failures]
        return lines + waiting

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self.close():
            log.warning(line)

    def _tell(self, message: Callable[[Any], None]) -> None:
        with self._lock:
            for logger in self._loggers:
                if not logger.call(message):
                    self._report(logger)

    def _report(self, part: _Contained) -> None:
        """Once per part and kind of failure, to whoever still listens."""
        message = part.news()
        if message is None:
            return
        log.warning(message)
        with self._lock:
            for logger in self._loggers:
                if logger is not part:
                    logger.call(lambda one: one.log_error(message, self._progress))


class _Contained:
    """A logger or saver whose exceptions end here."""

    def __init__(self, part: Any, title: str, max_failures: int | None):
        self._part = part
        self._title = title
        self._max_failures = max_failures
        self._in_a_row = 0
        self._last = ""
        self._told: set[str] = set()
        self.failures = 0
        self.dropped = 0

    @property
    def is_muted(self) -> bool:
        """Whether it has failed too often to be called again."""
        return self._max_failures is not None and self._in_a_row >= self._max_failures

    def call(self, message: Callable[[Any], None]) -> bool:
        """Returns False on a failure that happened now; calls to a muted part are only counted."""
        if self.is_muted:
            self.dropped += 1
            return True
        try:
            message(self._part)
        except Exception as error:
            self._in_a_row += 1
            self.failures += 1
            self._last = f"{type(error).__name__}: {error}"
            return False
        self._in_a_row = 0
        return True

    def news(self) -> str | None:
        """What to report of the last failure; None if the like was reported before."""
        kind = f"{self._last.partition(':')[0]}, muted {self.is_muted}"
        if kind in self._told:
            return None
        self._told.add(kind)
        muted = f"; after {self._in_a_row} failures in a row it is not called any more" if self.is_muted else ""
        return f"{self._title} failed: {self._last}{muted}. Training goes on."

    def summary(self) -> str:
        """One line for the end of the run."""
        times = f"{self.failures} time" + ("s" if self.failures != 1 else "")
        muted = f", was not called any more and missed {self.dropped} calls" if self.is_muted else ""
        return f"{self._title} failed {times}{muted}; last: {self._last}"


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
