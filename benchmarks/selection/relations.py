"""How well measures order policies: rank correlations with the score, and by how much one exceeds another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.study.statistics import ranks
from dp_prior_studio.pages.bootstrap import interval

DRAWS = 10_000


class Relation(NamedTuple):
    """A measure and the score over policies; intervals (95 %) are of a bootstrap over trainings and episodes.

    Attributes:
        rho: Spearman's correlation; -1 for a measure whose lowest value has the best policy, and so on.
        gain: rho of the baseline minus rho.
    """

    rho: float
    rho_limits: tuple[float, float]
    gain: float
    gain_limits: tuple[float, float]


def relations(
    values: Mapping[str, np.ndarray], scores: np.ndarray, baseline: str, draws: int = DRAWS
) -> dict[str, Relation]:
    """Compute the relation of each measure.

    A draw takes the same trainings, each with all its checkpoints, and the same episodes for all measures: checkpoints
    of a training resemble each other, and all policies play the same episodes.

    Args:
        values: (trainings, checkpoints) by measure, lower for better.
        scores: (trainings, checkpoints, episodes).
        baseline: a key of `values`.
    """
    random, (trainings, _, episodes) = np.random.default_rng(0), scores.shape
    drawn = random.integers(trainings, size=(draws, trainings))
    weights = random.multinomial(episodes, np.full(episodes, 1 / episodes), size=draws) / episodes
    means = np.einsum("tce,de->dtc", scores, weights, optimize=True)
    sampled = np.take_along_axis(means, drawn[:, :, None], 1).reshape(draws, -1)
    rho, sample, by_measure = {}, {}, {}
    for name, measure_values in values.items():
        rho[name] = correlation(measure_values.ravel(), scores.mean(-1).ravel())
        sample[name] = correlation(measure_values[drawn].reshape(draws, -1), sampled)
    for name in values:
        gains = sample[baseline] - sample[name]
        gain = float(rho[baseline] - rho[name])
        by_measure[name] = Relation(float(rho[name]), interval(sample[name]), gain, interval(gains))
    return by_measure


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis; 0 if `a` or `b` is constant."""
    first, second = (ranks(values) - (values.shape[-1] - 1) / 2 for values in (a, b))
    size = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
    return (first * second).sum(-1) / np.where(size == 0, 1, size)
