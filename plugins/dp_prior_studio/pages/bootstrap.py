"""Scores folded over training seeds and episodes: the stratified bootstrap, for every statistic of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dp_prior.evaluation.episode_metrics import worst_tenth

RESAMPLES = 2000

Statistic = Callable[[np.ndarray], np.ndarray]
"""(..., n) scores -> (...)."""


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean score."""
    return scores.mean(-1)


def solved(scores: np.ndarray) -> np.ndarray:
    """Share of episodes with the full score."""
    return (scores >= 1).mean(-1)


STATISTICS: dict[str, Statistic] = {"score": mean, "solved": solved, "worst tenth": worst_tenth}


def bootstrap(
    groups: Sequence[np.ndarray], statistic: Statistic, draws: int = RESAMPLES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The statistic of each group, and of bootstrap samples of all groups.

    Training seeds are drawn with replacement within each group, its stratum (Agarwal et al. 2021, arXiv:2108.13264),
    and a draw takes the same ones from all groups of as many: a seed gives them one order of samples. It takes the same
    episodes from all groups too, so differences between groups are paired. What is drawn for a group does not depend on
    the others. With one training seed the intervals cover other episodes, but not other trainings.

    Args:
        groups: N of (training seeds, episodes), both in one order; episodes are common to all.

    Returns:
        (N,) and (draws, N).
    """
    episodes = groups[0].shape[1]
    columns = np.random.default_rng(seed).integers(episodes, size=(draws, episodes))
    sampled_statistics = np.empty((draws, len(groups)))
    for index, scores in enumerate(groups):
        n = len(scores)
        seeds = np.random.default_rng((seed, n)).integers(n, size=(draws, n))
        sampled = scores[seeds[:, :, None], columns[:, None, :]]  # (draws, seeds, episodes)
        sampled_statistics[:, index] = statistic(sampled.reshape(draws, -1))
    return np.array([statistic(scores.reshape(-1)) for scores in groups]), sampled_statistics


def interval(draws: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of (draws,) bootstrap values."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
