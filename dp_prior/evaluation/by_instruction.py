"""Scores by the instruction of an episode.

Ranks exchange numbers, so a text is sent as the numbers of its characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_prior.data.samples.order import INSTRUCTION_CHARACTERS
from dp_prior.evaluation.interval import UNBOUNDED, mean_interval


def encode(texts: np.ndarray, characters: int = INSTRUCTION_CHARACTERS) -> np.ndarray:
    """(n, characters) numbers of the characters of n texts, 0 after the end."""
    return texts.astype(f"<U{characters}").view("<u4").reshape(len(texts), -1).astype(np.float64)


def decode(numbers: np.ndarray) -> str:
    """(characters,) numbers -> the text; the inverse of `encode`."""
    return "".join(chr(int(number)) for number in numbers if number)


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
