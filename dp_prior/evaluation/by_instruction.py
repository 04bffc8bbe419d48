"""Scores by the instruction of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_prior.evaluation.interval import UNBOUNDED, mean_interval


def scores_by_instruction(
    texts: Sequence[str], scores: np.ndarray, successes: np.ndarray, limits: tuple[float, float] = UNBOUNDED
) -> list[dict[str, Any]]:
    """Mean score with its 95 % interval, share solved and number of episodes of each instruction; `limits` are a
    score's."""
    table = []
    for text in sorted(set(texts)):
        own = np.array([other == text for other in texts])
        low, high = mean_interval(scores[own], limits=limits)
        found = {"score": float(scores[own].mean()), "score_ci_low": low, "score_ci_high": high}
        table.append(
            {"instruction": text, **found, "success_rate": float(successes[own].mean()), "episodes": int(own.sum())}
        )
    return table
