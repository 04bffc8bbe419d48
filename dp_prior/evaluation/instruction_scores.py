"""The scores of episodes by the instruction that each was given."""

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
        has_text = np.array([other == text for other in texts])
        low, high = mean_interval(scores[has_text], limits=limits)
        row = {"instruction": text, "score": float(scores[has_text].mean()), "score_ci_low": low, "score_ci_high": high}
        row |= {"success_rate": float(successes[has_text].mean()), "episodes": int(has_text.sum())}
        table.append(row)
    return table
