"""How many starts a comparison of two policies takes, by simulation of its own test on policies with known rates.

Outcomes are solved or not solved, and independent: on common starts that are hard for both policies a comparison takes
fewer. The evidence then depends on two counts alone, starts that only the first policy solved and starts that only the
second solved, so that a thousand studies take a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dp_prior_lab.verdict import SHARES

RATES = (
    *((0.5, 0.6), (0.5, 0.7), (0.5, 0.8)),
    *((0.7, 0.8), (0.7, 0.9)),
    *((0.8, 0.85), (0.8, 0.9), (0.8, 0.95)),
    *((0.9, 0.95), (0.9, 0.98)),
)
"""Pairs of rates in the table, of the worse and of the better policy."""

ERRORS = (0.1, 0.05, 0.01)

POWER = 0.8
"""Share of the studies that are to end with the right verdict."""

MOST_STARTS = 1000
"""Starts of a study unless the user states others."""

STUDIES = 1000


@dataclass(frozen=True)
class Studies:
    """Simulated comparisons of two policies that solve known shares of the starts.

    Attributes:
        right, wrong: (studies,) the start, a multiple of the starts between two looks, at which the better or the
            worse policy was said to be better; 0 for no verdict.
        most: starts of each study at most.
    """

    right: np.ndarray
    wrong: np.ndarray
    most: int

    def starts_for(self, power: float) -> int | None:
        """The starts after which this share of the studies has told the better policy; None for more than `most`."""
        starts = np.sort(np.where(self.right > 0, self.right, self.most + 1))
        needed = int(starts[math.ceil(power * len(starts)) - 1])
        return None if needed > self.most else needed


def simulate(
    worse: float, better: float, error: float, most: int, per_round: int, *, studies: int = STUDIES, seed: int = 0
) -> Studies:
    """Compare two policies on the same starts in many studies, by the test of `Comparison`.

    Args:
        worse, better: the share of the starts that each policy solves.
        error: the probability of a wrong verdict.
        most: starts at most.
        per_round: starts between two looks.
    """
    random = np.random.default_rng(seed)
    difference = random.random((studies, most)) < better
    difference = difference.astype(np.int8) - (random.random((studies, most)) < worse)
    looks = np.minimum(np.arange(per_round, most + per_round, per_round), most)
    wins = np.cumsum(difference > 0, axis=1)[:, looks - 1]
    losses = np.cumsum(difference < 0, axis=1)[:, looks - 1]
    needed = math.log(2 / error)  # the first verdict of two bets by Holm's procedure
    right = _first_look(wins, losses, needed, looks)
    wrong = _first_look(losses, wins, needed, looks)
    is_right_first = (right > 0) & ((wrong == 0) | (right <= wrong))
    return Studies(np.where(is_right_first, right, 0), np.where(is_right_first, 0, wrong), most)


def _first_look(wins: np.ndarray, losses: np.ndarray, needed: float, looks: np.ndarray) -> np.ndarray:
    """(studies,) the start of the first look at which the bet on the winner has won enough; 0 for none."""
    counts, places = np.unique(wins.astype(np.int64) * (looks[-1] + 1) + losses, return_inverse=True)
    won, lost = np.divmod(counts, looks[-1] + 1)
    wealth = won[:, None] * np.log1p(SHARES) + lost[:, None] * np.log1p(-SHARES)
    evidence = np.logaddexp.reduce(wealth, axis=1) - math.log(len(SHARES))
    is_enough = (evidence >= needed)[places.reshape(wins.shape)]
    return np.where(is_enough.any(axis=1), looks[is_enough.argmax(axis=1)], 0)


def plan_lines(errors: Sequence[float], most: int, per_round: int) -> Iterator[str]:
    """The table for the console: starts of each policy until most studies tell the better one, by rates and error."""
    yield f"starts of each policy until {POWER:.0%} of the comparisons tell the better one, looked at every {per_round}"
    yield f"{'share solved':<16}" + "".join(f"{f'error {error:g}':>12}" for error in errors)
    for worse, better in RATES:
        cells = []
        for error in errors:
            starts = simulate(worse, better, error, most, per_round).starts_for(POWER)
            cells.append(f"{f'over {most}' if starts is None else starts:>12}")
        yield f"{f'{worse:g} and {better:g}':<16}" + "".join(cells)
    shares = []
    for error in errors:
        studies = simulate(0.8, 0.8, error, most, per_round)
        shares.append(f"{np.mean((studies.right > 0) | (studies.wrong > 0)):.1%} at {error:g}")
    yield f"two that solve 0.8 each: told apart, wrongly, in {', '.join(shares)} of the comparisons of {most} starts"
    yield "policies on the same starts agree on easy and hard ones, and then need fewer; raise --most for more starts"
