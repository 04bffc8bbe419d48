"""Which of several policies is better, told with a stated error however often the scores are looked at.

The policies are scored on the same starts, and each start gives a difference of scores. Bet a share of a wealth of 1 on
one policy at every start: the wealth is multiplied by 1 + share * difference, which on average is no gain unless that
policy is better on average. So the wealth reaches 1 / error at any time with a probability of at most error (Ville's
inequality), and whoever stops there is wrong no more often. The wealth is averaged over shares spread evenly in (0, 1),
so that no difference has to be guessed. Scores may be 0 and 1, parts of a task, or continuous within limits.

Sources: Ville 1939, "Etude critique de la notion de collectif"; Waudby-Smith and Ramdas 2024, "Estimating means of
bounded random variables by betting" (arXiv:2010.09686); Holm 1979, "A simple sequentially rejective multiple test
procedure"; for policies of robots Snyder et al. 2026 (arXiv:2603.13616).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SHARES = (np.arange(64) + 0.5) / 64
"""Shares of the wealth that are bet."""

MOST_GROUPS = 702
"""Groups of policies that are not told apart, each of which has a letter: a to zz."""


def log_wealth(gains: np.ndarray, mean: float = 0.0) -> np.ndarray:
    """Logarithm of the wealth of a bet that gains exceed `mean` on average, after each gain.

    Args:
        gains: (..., n) in [-1, 1], in the order in which they came; NaN where none was measured.
        mean: in (-1, 1].

    Returns:
        (..., n); the wealth is at most 1 in expectation if the mean of each gain, whatever came before, is at most
        `mean`.
    """
    scaled = np.nan_to_num((gains - mean) / (1 + mean))
    wealth = np.log1p(SHARES * scaled[..., None]).cumsum(axis=-2)
    return np.logaddexp.reduce(wealth, axis=-1) - math.log(len(SHARES))


def mean_limits(values: np.ndarray, error: float) -> tuple[float, float]:
    """An interval of the mean of n >= 1 values in [-1, 1]: the means against which no bet has won 2 / error.

    Taken after every value, without an end, these intervals miss the mean with a probability of at most `error`.
    """
    distinct, counts = np.unique(values, return_counts=True)
    return _lower_limit(distinct, counts, error), -_lower_limit(-distinct, counts, error)


def _lower_limit(values: np.ndarray, counts: np.ndarray, error: float) -> float:
    """The largest mean, to 1e-10, against which a bet that the mean is higher has won 2 / error."""
    needed = math.log(2 / error * len(SHARES))
    under, over = -1.0, 1.0  # the wealth falls as the mean rises
    while over - under > 1e-10:
        middle = (under + over) / 2
        wealth = counts @ np.log1p(SHARES * ((values - middle) / (1 + middle))[:, None])
        has_won = np.logaddexp.reduce(wealth) >= needed
        under, over = (middle, over) if has_won else (under, middle)
    return under


@dataclass(frozen=True)
class Pair:
    """Two policies compared.

    Attributes:
        first, second: their numbers.
        starts: that both were scored on.
        difference: mean score of the first minus that of the second; NaN without starts.
        limits: of the mean difference; they hold for all pairs together and at every look, with the stated error.
        better: the policy said to be better; None if they are not told apart.
        after: the number of starts after which that was known; None if they are not told apart.
    """

    first: int
    second: int
    starts: int
    difference: float
    limits: tuple[float, float]
    better: int | None
    after: int | None


@dataclass(frozen=True)
class Comparison:
    """Scores of two or more policies on the same starts, and what they tell.

    Attributes:
        scores: (policies, starts) within `limits`, by the order of measuring; NaN where a policy was not measured.
        limits: the lowest and the highest possible score.
        error: the probability that at least one of the policies said to be better is not; over all pairs and looks.
    """

    scores: np.ndarray
    limits: tuple[float, float]
    error: float

    @property
    def rollouts(self) -> int:
        """The number of scores."""
        return int((~np.isnan(self.scores)).sum())

    def gains(self) -> np.ndarray:
        """(policies, policies, starts): by how much the first scored higher, in [-1, 1]."""
        return (self.scores[:, None] - self.scores[None]) / (self.limits[1] - self.limits[0])

    def log_evidence(self) -> np.ndarray:
        """(policies, policies, starts): log of the largest wealth so far, of the bet that the first is better."""
        gains = self.gains()
        evidence = np.zeros_like(gains)
        for pair in itertools.permutations(range(len(gains)), 2):  # in a loop, since a bet takes 1 kB a start
            evidence[pair] = np.maximum.accumulate(log_wealth(gains[pair]))
        return evidence

    def decided(self) -> np.ndarray:
        """(policies, policies): the start, counted from 1, at which the first was known to be better; 0 for not known.

        One error for all: the bets of all pairs in both directions by Holm's procedure, on wealth in place of p-values.
        """
        policies, starts = self.scores.shape
        is_pair = ~np.eye(policies, dtype=bool)
        starts_needed = np.zeros((policies, policies), int)
        if not starts:
            return starts_needed
        evidence = self.log_evidence()[is_pair]
        order = np.argsort(-evidence, axis=0, kind="stable")
        limits = np.log(np.arange(len(evidence), 0, -1) / self.error)[:, None]
        is_enough = np.logical_and.accumulate(np.take_along_axis(evidence, order, 0) >= limits, axis=0)
        is_decided = np.zeros(evidence.shape, dtype=bool)
        np.put_along_axis(is_decided, order, is_enough, 0)
        starts_needed[is_pair] = np.where(is_decided.any(axis=1), is_decided.argmax(axis=1) + 1, 0)
        is_later = (starts_needed.T > 0) & (starts_needed > starts_needed.T)
        return np.where(is_later, 0, starts_needed)  # the first of two opposite verdicts stands

    def apart(self) -> np.ndarray:
        """(policies,) the start, counted from 1, at which each was told apart from the last other one; 0 for not."""
        decided = self.decided()
        of_others = np.maximum(decided, decided.T)[~np.eye(len(decided), dtype=bool)].reshape(len(decided), -1)
        return np.where((of_others > 0).all(axis=1), of_others.max(axis=1), 0)

    def undecided(self) -> list[int]:
        """The policies that are not yet told apart from each other one."""
        return np.flatnonzero(self.apart() == 0).tolist()

    def pairs(self) -> list[Pair]:
        """Every pair, the policies of each in their order."""
        decided, all_gains = self.decided(), self.gains()
        numbers = list(itertools.combinations(range(len(decided)), 2))
        width = self.limits[1] - self.limits[0]
        pairs = []
        for first, second in numbers:
            gains = all_gains[first, second]
            gains = gains[~np.isnan(gains)]
            low, high = mean_limits(gains, self.error / len(numbers)) if len(gains) else (-1.0, 1.0)
            better, after = None, None
            for winner, loser in ((first, second), (second, first)):
                if decided[winner, loser]:
                    better, after = winner, int(decided[winner, loser])
            pairs.append(
                Pair(
                    first,
                    second,
                    starts=len(gains),
                    difference=float(gains.mean() * width) if len(gains) else math.nan,
                    limits=(low * width, high * width),
                    better=better,
                    after=after,
                )
            )
        return pairs

    def means(self) -> list[tuple[float, float, float]]:
        """Mean score of each policy and its limits, which hold for all policies together and at every look; NaN for a
        policy without a score."""
        low, high = self.limits
        means = []
        for scores in self.scores:
            scores = scores[~np.isnan(scores)]
            if not len(scores):
                means.append((math.nan, low, high))
                continue
            ends = mean_limits(2 * (scores - low) / (high - low) - 1, self.error / len(self.scores))
            means.append((float(scores.mean()), *(low + (end + 1) / 2 * (high - low) for end in ends)))
        return means

    def letters(self) -> list[str]:
        """A compact letter display: policies that share a letter are not told apart; `a` has the highest mean.

        Source: Piepho 2004, "An algorithm for a letter-based representation of all-pairwise comparisons".
        """
        decided = self.decided()
        alike = (decided == 0) & (decided.T == 0)
        means = [mean for mean, _, _ in self.means()]
        best_first = sorted(range(len(means)), key=lambda policy: -means[policy])
        places = {policy: place for place, policy in enumerate(best_first)}
        groups = sorted(_cliques(alike), key=lambda group: sorted(places[policy] for policy in group))
        letters = [""] * len(means)
        for number, group in enumerate(groups):
            for policy in group:
                letters[policy] += _letter(number)
        return letters


def _cliques(alike: np.ndarray) -> list[frozenset[int]]:
    """Groups of policies that are all alike and that no other such group contains, of which two alike ones share one.

    All such groups, unless there are more than `MOST_GROUPS`: N policies have up to 3^(N/3), of which N^2 suffice.
    """
    neighbours = [frozenset(np.flatnonzero(row).tolist()) - {policy} for policy, row in enumerate(alike)]
    groups = list(itertools.islice(_largest(frozenset(), {*range(len(alike))}, set(), neighbours), MOST_GROUPS + 1))
    if len(groups) <= MOST_GROUPS:
        return groups
    covers: list[frozenset[int]] = []
    for policy, alike_ones in enumerate(neighbours):
        for other in sorted(alike_ones - {*range(policy)}) or [policy]:
            if not any({policy, other} <= cover for cover in covers):
                start = frozenset({policy, other})
                candidates = frozenset.intersection(*(neighbours[member] for member in start))
                covers.append(next(_largest(start, {*candidates}, set(), neighbours)))
    return covers


def _largest(
    group: frozenset[int], candidates: set[int], excluded: set[int], neighbours: list[frozenset[int]]
) -> Iterator[frozenset[int]]:
    """The groups that contain `group`, further candidates and none of `excluded`, and that cannot be enlarged.

    Source: Bron and Kerbosch 1973, "Finding all cliques of an undirected graph"; with a pivot, as Tomita et al. 2006.
    """
    if not candidates and not excluded:
        yield group
        return
    pivot = max(sorted(candidates | excluded), key=lambda policy: len(candidates & neighbours[policy]))
    for policy in sorted(candidates - neighbours[pivot]):
        near = neighbours[policy]
        yield from _largest(group | {policy}, candidates & near, excluded & near, neighbours)
        candidates = candidates - {policy}
        excluded = excluded | {policy}


def _letter(number: int) -> str:
    """a to z, then aa, ab and so on."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
