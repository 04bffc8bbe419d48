"""How well measures order policies: rank correlations with the score, and by how much one exceeds another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.study.statistics import spearman
from dp_prior.evaluation.bootstrap import interval

DRAWS = 2000


class Relation(NamedTuple):
    """A measure and the score over policies; intervals (95 %) are of a bootstrap over policies.

    Attributes:
        spearman, kendall: rank correlations; -1 for a measure whose lowest value has the best policy, and so on.
        gain: by how much Spearman's is nearer to -1 than that of the baseline.
    """

    spearman: float
    limits: tuple[float, float]
    kendall: float
    gain: float
    gain_limits: tuple[float, float]


def relations(values: Mapping[str, np.ndarray], scores: np.ndarray, baseline: str) -> dict[str, Relation]:
    """Of each measure.

    Args:
        values: (n,) by measure, lower for better.
        scores: (n,) of the same n >= 4 policies.
        baseline: a key of `values`.
    """
    random = np.random.default_rng(0)
    draws = random.integers(len(scores), size=(DRAWS, len(scores)))
    draws = np.array([rows for rows in draws if len(set(rows.tolist())) > 2])
    known = {name: np.array([spearman(one[rows], scores[rows])[0] for rows in draws]) for name, one in values.items()}
    found = {}
    for name, one in values.items():
        rho, gains = spearman(one, scores)[0], known[baseline] - known[name]
        gain = spearman(values[baseline], scores)[0] - rho
        limits, gain_limits = (interval(drawn[np.isfinite(drawn)]) for drawn in (known[name], gains))
        found[name] = Relation(rho, limits, kendall(one, scores), gain, gain_limits)
    return found


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of n pairs, that is with ties."""
    orders = [np.sign(values[:, None] - values) for values in (a, b)]
    return float((orders[0] * orders[1]).sum() / np.sqrt(np.prod([np.abs(order).sum() for order in orders])))
