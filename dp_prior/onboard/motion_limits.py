"""MotionLimits: how fast a command may change, and `LimitedMotion`, which follows targets within these limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MotionLimits:
    """Limits per second of the numbers of a command: one limit for all, or as many as numbers. The velocity of a
    rotation is that about each axis, in radians per second; the least limit of its numbers counts, and its jerk is not
    limited.

    Raises:
        ValueError: a limit is not above 0, or the jerk is limited where the acceleration is not.
    """

    velocity: float | Sequence[float] = math.inf
    """Units per second."""

    acceleration: float | Sequence[float] = math.inf
    """Units per second squared. A target that moves at velocity v is followed at a distance of v^2 / (2 acceleration),
    so that a target that stops is never passed."""

    jerk: float | Sequence[float] = math.inf
    """Units per second cubed. It delays the command by acceleration / jerk seconds."""

    def __post_init__(self) -> None:
        for name in ("velocity", "acceleration", "jerk"):
            value = np.asarray(getattr(self, name), np.float64)
            if value.ndim > 1 or not (value > 0).all():
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected numbers above 0")
        jerk, acceleration = np.asarray(self.jerk, np.float64), np.asarray(self.acceleration, np.float64)
        if (np.isfinite(jerk) & ~np.isfinite(acceleration)).any():
            raise ValueError("jerk is limited where acceleration is not; limit the acceleration too")

    def of(self, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Velocity, acceleration and jerk (width,). Raises ValueError if another number of limits is given."""
        found = []
        for name in ("velocity", "acceleration", "jerk"):
            value = np.asarray(getattr(self, name), np.float64)
            if value.ndim and len(value) != width:
                raise ValueError(f"{name} has {len(value)} limits for a command of {width} numbers")
            found.append(np.broadcast_to(value, width))
        return found[0], found[1], found[2]


class Braking:
    """The velocity of each number on its way to a target: as fast as limits of velocity and acceleration allow, and
    never so fast that a target at rest would be passed."""

    def __init__(self, velocity: np.ndarray, acceleration: np.ndarray, dt: float):
        self._most, self._acceleration, self._dt = velocity, acceleration, dt
        self._velocity = np.zeros(len(velocity))

    def step(self, error: np.ndarray) -> np.ndarray:
        """The velocity of the next `dt` seconds. Args: error: target less position."""
        wanted = np.sign(error) * np.minimum(self._stoppable(np.abs(error)), self._most)
        change = self._acceleration * self._dt
        self._velocity = np.clip(wanted, self._velocity - change, self._velocity + change)
        return self._velocity

    def _stoppable(self, distance: np.ndarray) -> np.ndarray:
        """The largest velocity from which steps of deceleration end within a distance, this step included: with
        velocity n changes and a rest, the steps cover n (n + 1) / 2 changes and n + 1 rests."""
        change, dt = self._acceleration * self._dt, self._dt
        is_limited = np.isfinite(change)
        unit = np.where(is_limited, change, 1.0) * dt
        n = np.floor((np.sqrt(1 + 8 * distance / unit) - 1) / 2 + 1e-9)
        rest = (distance / unit - n * (n + 1) / 2) / (n + 1)
        return np.where(is_limited, (n + rest) * unit / dt, distance / dt)


class LimitedMotion:
    """Follows a moving target; every command differs from the last ones by no more than the limits.

    Velocity and acceleration are limited by `Braking`. The mean of the last commands then limits the jerk: over a time
    T an acceleration within +-a has a mean that changes by at most 2 a / T per second.
    """

    def __init__(self, limits: tuple[np.ndarray, np.ndarray, np.ndarray], rate: float, start: np.ndarray):
        """
        Args:
            limits: of velocity, acceleration and jerk, (n,) each.
            rate: commands per second.
            start: (n,) where the robot rests.
        """
        velocity, acceleration, jerk = limits
        self._braking, self._dt = Braking(velocity, acceleration, 1 / rate), 1 / rate
        self._position = np.array(start, np.float64)
        lengths = [1 if math.isinf(j) else math.ceil(2 * a / j * rate) for a, j in zip(acceleration, jerk)]  # noqa: B905 (Python 3.8)
        self._past = np.repeat(self._position[None], max(lengths, default=1), axis=0)
        self._weights = np.zeros(self._past.shape)  # of the last `length` commands, newest last
        for i, length in enumerate(lengths):
            self._weights[-length:, i] = 1 / length

    def step(self, target: np.ndarray) -> np.ndarray:
        """(n,) the next command."""
        self._position = self._position + self._braking.step(target - self._position) * self._dt
        self._past[:-1] = self._past[1:]
        self._past[-1] = self._position
        return (self._weights * self._past).sum(0)
