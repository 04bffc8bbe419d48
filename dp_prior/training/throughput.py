"""The time of a run: duration of the training, samples per second, and the share of the time spent waiting."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

SLOW_DATA = 0.1
"""A larger share of the time spent waiting for batches is worth a warning."""


class Throughput:
    """Measures from `begin` or the last `row` on; what is done inside `paused` does not count."""

    def __init__(self, *, warns: bool):
        """Args: warns: whether to warn of slow data; on one rank only."""
        self._warns = warns
        self._slow_rows, self.paused_s = 0, 0.0
        self.begin(0)

    def begin(self, samples_seen: int) -> None:
        """Measure from here on."""
        self._samples_before, self._since = samples_seen, time.perf_counter()
        self._waited_s, self._batches = 0.0, 0

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """Pass batches on and measure the wait for each."""
        begun = time.perf_counter()
        for batch in batches:
            self._waited_s += time.perf_counter() - begun
            self._batches += 1
            yield batch
            begun = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count; `paused_s` is that of the last pause."""
        begun = time.perf_counter()
        yield
        self.paused_s = time.perf_counter() - begun
        self._since += self.paused_s

    def row(self, samples_seen: int) -> dict[str, float]:
        """The metrics since the row before, by name."""
        elapsed = time.perf_counter() - self._since
        rate, share = (samples_seen - self._samples_before) / elapsed, self._waited_s / elapsed
        self._warn_of_slow_data(share, self._waited_s / max(self._batches, 1))
        self.begin(samples_seen)
        return {"train/samples_per_second": rate, "train/data_share": share}

    def _warn_of_slow_data(self, share: float, waited_s: float) -> None:
        """Warn once, at the second row over the limit: the first row of a start includes its first batch.

        Args:
            share: of the time that was spent waiting for batches.
            waited_s: the same in seconds per step; a millisecond is not worth a word.
        """
        is_slow = share > SLOW_DATA and waited_s > 1e-3
        self._slow_rows += is_slow
        if is_slow and self._slow_rows == 2 and self._warns:
            finding = f"training waits {100 * share:.0f} % of its time for batches (train/data_share)"
            log.warning("%s; docs/cameras.md says what helps", finding)


class Stopwatch:
    """Seconds of a run in which a process was training or evaluating, for cadences in minutes.

    Every rank has a stopwatch; all decide by the first rank's reading, which `PolicyTrainer` exchanges with stop
    requests.

    Attributes:
        seen: (before, now) in seconds, as the ranks agreed after the last step that was checked, and after this one.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, is_stored: bool = True):
        """
        Args:
            is_stored: whether checkpoints hold the time; False without a cadence in minutes, so that checkpoints of
                such runs do not depend on the time.
        """
        self._is_stored = is_stored
        self.load((0.0, 0.0))

    def state(self) -> tuple[float, float] | None:
        """`self.seen`, to save in a checkpoint."""
        return self.seen if self._is_stored else None

    def load(self, state: Sequence[float] | None) -> None:
        """Continue from a `state`; None is that of a run that did not store the time."""
        if state:
            before, now = state
            self.seen = (before, now)
            self.start()

    def start(self) -> None:
        """Go on from now; the time since the last step does not count."""
        self._zero = self.clock() - self.seen[1]

    def read(self) -> float:
        """Seconds now, on this rank."""
        return self.clock() - self._zero

    def agree(self, seconds: float) -> None:
        """Adopt the first rank's reading."""
        self.seen = (self.seen[0], seconds)

    def check(self) -> None:
        """Mark the work of this step as done."""
        self.seen = (self.seen[1], self.seen[1])
