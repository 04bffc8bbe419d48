"""RangeWatch: notices observations far outside the range of training."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dp_prior_client.onboard.obs_spec import ObsSpec, Reads

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangeLimits:
    """How far an observation may lie from the middle of its range in training, in half ranges: 1 is the range itself.

    A number that was constant in training has as half range its magnitude, at least 1, as in the normalizer.

    Raises:
        ValueError: a factor is NaN or below 1, or refuse < tell, which makes `tell` unreachable.
    """

    tell: float = 2.0
    """Beyond this factor a line of the log names key and dimension, once per dimension."""

    refuse: float = math.inf
    """Beyond this factor the observation is refused."""

    def __post_init__(self) -> None:
        for name in ("tell", "refuse"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= 1:
                raise ValueError(f"{name} is {value!r}; expected a factor from 1, where 1 is the range of training")
        if self.refuse < self.tell:
            problem = f"refuse is {self.refuse:g}, below tell, which is {self.tell:g}"
            raise ValueError(f"{problem}, so nothing would ever be told; lower tell, or raise refuse")


class RangeWatch:
    """Compares observations with the ranges of a policy's training.

    Attributes:
        keys: of the observations whose range is known.
    """

    def __init__(self, reads: ObsSpec, limits: RangeLimits | None = None, tell: Callable[[str], None] = log.warning):
        """Args: limits: None for the defaults; tell: receives the lines of the log."""
        self._limits, self._tell = limits or RangeLimits(), tell
        self._observations = {key: read for key, read in reads.observations.items() if read.range is not None}
        self.keys = tuple(self._observations)
        self._bounds = {}
        for key, observation in self._observations.items():
            middle, half = _middle_and_half(observation)
            self._bounds[key] = middle - self._limits.tell * half, middle + self._limits.tell * half
        self._reported: set[tuple[str, int]] = set()

    def check(self, obs: Mapping[str, np.ndarray]) -> None:
        """Log or refuse observations that lie outside.

        Args:
            obs: (..., *shape) by key, finite; other keys, and texts of an instruction, are passed over.

        Raises:
            ValueError: a number is beyond `RangeLimits.refuse`.
        """
        for key, value in obs.items():
            if key not in self._bounds:
                continue
            low, high = self._bounds[key]
            if value.shape[value.ndim - low.ndim :] == low.shape and ((value < low).any() or (value > high).any()):
                self._judge(key, value)

    def _judge(self, key: str, value: np.ndarray) -> None:
        observation = self._observations[key]
        middle, half = _middle_and_half(observation)
        rows = value.reshape(-1, middle.size)
        factors = np.abs(rows - middle.ravel()) / half.ravel()
        for dimension, row in enumerate(factors.argmax(0)):
            factor = factors[row, dimension]
            if factor <= self._limits.tell:
                continue
            low, high = (end.flat[dimension] for end in observation.range)
            name = f" ({observation.names[dimension]!r})" if observation.names else ""
            problem = (
                f"observation {key!r}, dimension {dimension}{name}, is {rows[row, dimension]:.4g}; in training it lay "
                f"from {low:.4g} to {high:.4g}, so it is {factor:.3g} half ranges from the middle"
            )
            if factor > self._limits.refuse:
                again = "The observation was not remembered: call again with a good one"
                raise ValueError(f"{problem}, and the limit is {self._limits.refuse:g} (ranges.refuse). {again}")
            if (key, dimension) not in self._reported:
                self._reported.add((key, dimension))
                self._tell(f"{problem}; are its unit and the order of the numbers those of the data?")


def _middle_and_half(observation: Reads) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half of a range, float64; a number without range has an infinite half."""
    low, high = (np.asarray(end, np.float64) for end in observation.range)
    is_known = np.isfinite(low) & np.isfinite(high)
    middle = np.where(is_known, (np.where(is_known, low, 0) + np.where(is_known, high, 0)) / 2, 0)
    half = np.where(is_known, (np.where(is_known, high, 0) - np.where(is_known, low, 0)) / 2, np.inf)
    return middle, np.where(half > 0, half, np.maximum(np.abs(middle), 1.0))
