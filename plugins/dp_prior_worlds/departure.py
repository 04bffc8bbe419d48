"""Where a replayed episode leaves its recording, and by how much."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Departures:
    """Departures of n episodes.

    Attributes:
        step: (n,) first step at which a number departs; -1 if none does.
        size: (n,) the largest difference of any number at any step, as a share of its range.
        number: (n,) the number that departs first; if none does, the number that differs most.
    """

    step: np.ndarray
    size: np.ndarray
    number: np.ndarray


@dataclass(frozen=True)
class Compared:
    """The D numbers of some observations, joined, and the scale of their differences.

    Attributes:
        shapes: of the observations, by key.
        widths: (D,) the recorded range of each number; the magnitude of a constant, at least 1.
        is_angle: (D,) bool; the differences of angles are at most half a turn.
    """

    shapes: Mapping[str, tuple[int, ...]]
    widths: np.ndarray
    is_angle: np.ndarray

    @classmethod
    def of(cls, obs: Mapping[str, np.ndarray], angles: Mapping[str, Collection[int]]) -> Compared:
        """Args: obs: (N, *shape) recorded, by key; angles: numbers that are angles in radians, by key."""
        if not obs:
            return cls({}, np.zeros(0), np.zeros(0, bool))
        shapes = {key: values.shape[1:] for key, values in obs.items()}
        is_angle = [np.isin(np.arange(int(np.prod(shape))), angles.get(key, ())) for key, shape in shapes.items()]
        values = cls(shapes, np.zeros(0), np.zeros(0)).joined(obs)
        widths = np.ptp(values, axis=0)
        widths = np.where(widths > 0, widths, np.maximum(np.abs(values).max(axis=0), 1.0))
        is_angle = np.concatenate([np.zeros(0, bool), *is_angle])
        return cls(shapes, np.where(is_angle, 2 * np.pi, widths), is_angle)

    @property
    def names(self) -> list[str]:
        """Such as `state[2]`, of each number."""
        names: list[str] = []
        for key, shape in self.shapes.items():
            names += [f"{key}[{number}]" for number in range(int(np.prod(shape)))]
        return names

    def joined(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, D) float64 of observations (n, *shape) by key."""
        n = len(next(iter(obs.values())))
        parts = [obs[key].reshape(n, -1).astype(np.float64) for key in self.shapes]
        return np.concatenate([np.zeros((n, 0)), *parts], axis=1)

    def departures(
        self, replayed: np.ndarray, recorded: np.ndarray, is_common: np.ndarray, tolerance: float
    ) -> Departures:
        """Compare replayed with recorded observations.

        Args:
            seen, recorded: (n, T, D).
            is_common: (n, T) bool, True where an episode has both.
            tolerance: share of the range beyond which a number departs.
        """
        difference = np.abs(replayed - recorded)
        nearest = np.abs((difference + np.pi) % (2 * np.pi) - np.pi)
        shares = np.where(self.is_angle, nearest, difference) / self.widths
        shares = np.where(is_common[..., None], np.nan_to_num(shares, nan=np.inf), 0.0)  # NaN follows nothing
        has_left = (shares > tolerance).any(axis=2)
        step = np.where(has_left.any(axis=1), has_left.argmax(axis=1), -1)
        at = np.where((step >= 0)[:, None], shares[np.arange(len(shares)), step], shares.max(axis=1))
        return Departures(step, shares.max(axis=(1, 2)), at.argmax(axis=1))
