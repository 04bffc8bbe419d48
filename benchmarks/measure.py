"""Timing that a busy machine cannot bend: variants take turns, and medians with quartiles are compared."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one variant, in the unit of its case."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Case:
    """One thing measured for several variants; the first one is what the others are compared with."""

    name: str
    unit: str
    variants: dict[str, Timing]
    more_is_better: bool = False
    note: str = ""

    def ratio(self, variant: str) -> float:
        """How many times better a variant is than the first one."""
        first, this = next(iter(self.variants.values())).median, self.variants[variant].median
        better, worse = (this, first) if self.more_is_better else (first, this)
        return better / worse if worse else float("inf")


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure, and at which size."""

    quick: bool = False
    repeats: int | None = None
    widths: tuple[int, ...] = (256, 512, 1024)
    batch_size: int = 256
    image_batch: int = 64

    def times(self, thorough: int) -> int:
        """Repeats for something that deserves `thorough` of them."""
        return 2 if self.quick else self.repeats or thorough


def compare(variants: dict[str, Callable[[], object]], repeats: int, scale: float = 1e3) -> dict[str, Timing]:
    """Time each variant once per round, in turns and in alternating order, after one untimed round.

    Args:
        scale: units in a second; 1e3 gives milliseconds.
    """
    values: dict[str, list[float]] = {name: [] for name in variants}
    for function in variants.values():
        function()
    for turn in range(repeats):
        order = list(variants.items())
        for name, function in order if turn % 2 == 0 else reversed(order):
            gc.collect()
            gc.disable()
            start = time.perf_counter()
            function()
            values[name].append((time.perf_counter() - start) * scale)
            gc.enable()
    return {name: Timing(found) for name, found in values.items()}


def per_second(variants: dict[str, Callable[[], int]], repeats: int) -> dict[str, Timing]:
    """Like `compare`, for functions that return how many things they did: things per second."""
    counts: dict[str, int] = {}

    def counted(name: str) -> Callable[[], None]:
        def run() -> None:
            counts[name] = variants[name]()

        return run

    seconds = compare({name: counted(name) for name in variants}, repeats, scale=1.0)
    return {name: Timing([counts[name] / value for value in found.values]) for name, found in seconds.items()}
