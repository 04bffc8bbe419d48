"""Orders with a fixed share of every epoch for each of several groups of samples, by weights or by rollouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isnan
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.data.errors import first_few
from dp_prior.data.samples.order import INSTRUCTION_CHARACTERS, Successes, SuccessOrder, epoch_order, sorted_by_hash


def shares(n: int, weights: Sequence[float]) -> list[int]:
    """n divided in proportion to weights: rounded down, the rest to the largest remainders, first come first served."""
    total = sum(map(Fraction, weights))
    parts = [n * Fraction(weight) / total for weight in weights]
    counts = [int(part) for part in parts]
    for number in sorted(range(len(parts)), key=lambda number: counts[number] - parts[number])[: n - sum(counts)]:
        counts[number] += 1
    return counts


@dataclass(frozen=True)
class Share:
    """Samples with a fixed share of every epoch.

    Attributes:
        ids: (k,) int64, k at least 1.
        count: samples of an epoch that are drawn from them.
    """

    ids: np.ndarray
    count: int


class WeightedOrder:
    """A full shuffle in which each of several groups of samples has a fixed share of every epoch, for data in memory.

    Each group is drawn from in passes: every sample of it once, in random order, before any comes again. An epoch
    continues the passes where the epoch before left them, and shuffles the samples drawn from all groups.
    """

    def __init__(self, seed: int, groups: Sequence[Share]):
        self.seed, self._groups = seed, groups
        self._epoch = lru_cache(2)(self._make_epoch)

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        return self._epoch(epoch)[begin:end]

    def _make_epoch(self, epoch: int) -> np.ndarray:
        drawn = [
            group.ids[self._drawn(number, epoch * group.count, (epoch + 1) * group.count)]
            for number, group in enumerate(self._groups)
        ]
        return np.concatenate(drawn)[epoch_order(self.seed, epoch, sum(map(len, drawn)))]

    def _drawn(self, number: int, begin: int, end: int) -> np.ndarray:
        """Places in a group's ids of draws begin to end - 1 from it since the start of the run."""
        size = len(self._groups[number].ids)
        first, stop = begin // size, -(-end // size)  # passes
        draws = np.arange(first * size, stop * size).reshape(-1, size)
        shuffled = sorted_by_hash(draws, self.seed, f"set/{number}").reshape(-1) % size
        return shuffled[begin - first * size : end - first * size]


class FollowingOrder(WeightedOrder, SuccessOrder):
    """A weighted order whose shares follow the success of rollouts: a pure function of (seed, successes, epoch,
    position), so that a run which stores the successes resumes anywhere.

    Attributes:
        successes: of the newest rollouts.
    """

    def __init__(
        self,
        seed: int,
        evaluators: Mapping[str, Collection[str]],
        divide: Callable[[Successes], Sequence[Share]],
        successes: Successes | None = None,
    ):
        """
        Args:
            evaluators: the instructions of the data that follow each, by its name.
            divide: the groups and their shares, given successes.

        Raises:
            ConfigError: an evaluator told successes, but none of instructions that follow it.
        """
        self.successes = successes or {}
        for name, texts in evaluators.items():
            _check_told(name, self.successes.get(name, {}), texts)
        super().__init__(seed, divide(self.successes))
        self._evaluators, self._divide = evaluators, divide

    def resumed(self, successes: Successes) -> FollowingOrder:
        """The order after these rollouts."""
        return FollowingOrder(self.seed, self._evaluators, self._divide, successes)

    def after(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> FollowingOrder:
        """The order after an evaluation; the same one if its evaluators had no part.

        Args:
            tables: rows by name; `<evaluator>/by_instruction` has `instruction`, `success_rate` and `episodes`. The
                rates are NaN until an environment that tells only success has told one.
        """
        measured: dict[str, dict[str, list[int]]] = {}
        for name in self._evaluators:
            for row in tables.get(f"{name}/by_instruction", ()):
                if not isnan(row["success_rate"]):
                    solved = round(row["success_rate"] * row["episodes"])
                    measured.setdefault(name, {})[row["instruction"]] = [solved, row["episodes"]]
        return self.resumed({**self.successes, **measured}) if measured else self


def _check_told(name: str, successes: Mapping[str, Sequence[int]], texts: Collection[str]) -> None:
    if successes and not successes.keys() & {text[:INSTRUCTION_CHARACTERS] for text in texts}:
        instructions = first_few(sorted(map(repr, set(texts))), 3)
        raise ConfigError(
            "data",
            [
                f'language.weights are "by_success", but evaluator {name!r} told {min(successes)!r}, and frames have '
                f"{instructions}; let it give the instructions of the data"
            ],
        )
