"""Metrics of episodes in an environment, played by a policy or by recorded actions."""

from __future__ import annotations

import math

import numpy as np

from dp_prior.tracking.metric_names import Metric

SCORE = Metric("<name>/score", "score", "higher", "Mean score over the episodes, as the environment defines it.")
SCORE_INTERVAL = (
    Metric("<name>/score_ci_low", "score", "higher", "Lower end of the 95 % interval of the mean (Student's t)."),
    Metric("<name>/score_ci_high", "score", "higher", "Upper end of that interval."),
)
SUCCESS = (
    Metric("<name>/success_rate", "share", "higher", "Share of episodes solved; NaN if success is not reported."),
    Metric("<name>/success_ci_low", "share", "higher", "Lower end of the 95 % interval of the share (Wilson)."),
    Metric("<name>/success_ci_high", "share", "higher", "Upper end of that interval."),
)
EPISODES = Metric("<name>/episodes", "episodes", None, "Episodes run.")


def with_failures(successes: np.ndarray) -> np.ndarray:
    """(n,) 1 for a solved episode, 0 for an unsolved one; NaN if the environment reports no success at all. An
    environment that reports only success means that the rest failed."""
    return successes if np.isnan(successes).all() else np.nan_to_num(successes)


def told_success(success: float) -> bool | None:
    """Whether an episode is solved, for a table; None if the environment does not say."""
    return None if math.isnan(success) else bool(success)


def worst_tenth(scores: np.ndarray) -> np.ndarray:
    """Mean of the lowest tenth, rounded up to whole episodes; NaN if a score is, for it may be among the lowest."""
    count = math.ceil(scores.shape[-1] / 10)
    lowest = np.sort(scores, axis=-1)[..., :count].mean(-1)
    return np.where(np.isnan(scores).any(-1), np.nan, lowest)[()]
