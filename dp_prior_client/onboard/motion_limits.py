"""MotionLimits: where and how fast a command may move, and `LimitedMotion`, which follows targets within them."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LONGEST_S = 120.0
"""Seconds of commands whose mean may limit the jerk; they are kept in memory."""

AT_REST = 1e-6
"""A motion rests within this share of the change that one tick may bring."""


class NumberLimits(NamedTuple):
    """The limits of each number of a command, (n,) each; infinite without a limit."""

    velocity: np.ndarray
    acceleration: np.ndarray
    jerk: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    def of(self, numbers: np.ndarray | slice) -> NumberLimits:
        """The limits of some numbers."""
        return NumberLimits._make(limit[numbers] for limit in self)


@dataclass(frozen=True)
class MotionLimits:
    """Limits of the numbers of a command: one limit for all, or one for each number.

    Of a rotation the angular velocity and acceleration are limited about any axis, in radians, by the least limits of
    its numbers. Its jerk is not limited, and its `lowest` and `highest` must be infinite.

    Raises:
        ValueError: a limit is not above 0, lowest is above highest, or the jerk is limited where the acceleration is
            not, or so that the acceleration takes minutes.
    """

    velocity: float | Sequence[float] = math.inf
    """Units per second."""

    acceleration: float | Sequence[float] = math.inf
    """Units per second squared. A target that moves at velocity v is followed at a distance of v^2 / (2 acceleration),
    so that a target that stops is never passed."""

    jerk: float | Sequence[float] = math.inf
    """Units per second cubed. It delays the command by acceleration / jerk seconds, or by sqrt(velocity / jerk) if
    that is less."""

    lowest: float | Sequence[float] = -math.inf
    """The least value of a command. Targets beyond are clipped, and the motion brakes in time."""

    highest: float | Sequence[float] = math.inf
    """The largest value of a command."""

    def __post_init__(self) -> None:
        for name in ("velocity", "acceleration", "jerk"):
            value = np.asarray(getattr(self, name), np.float64)
            if value.ndim > 1 or not (value > 0).all():
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected numbers above 0")
        jerk, acceleration = _matched(self, "jerk", "acceleration")
        if (np.isfinite(jerk) & ~np.isfinite(acceleration)).any():
            raise ValueError("jerk is limited where acceleration is not; limit the acceleration too")
        longest_s = _window_s(*_matched(self, "velocity", "acceleration", "jerk")).max(initial=0.0)
        if longest_s > LONGEST_S:
            raise ValueError(
                f"acceleration is {self.acceleration!r}, jerk {self.jerk!r}, which delays commands by "
                f"{longest_s / 2:.3g} s; lower the acceleration or the velocity, or raise the jerk"
            )
        lowest, highest = _matched(self, "lowest", "highest")
        if not ((lowest <= highest) & (lowest < math.inf) & (highest > -math.inf)).all():
            raise ValueError(
                f"lowest is {self.lowest!r}, highest {self.highest!r}; expected lowest numbers of at most the highest, "
                f"and -inf and inf for no limit"
            )

    def of(self, width: int) -> NumberLimits:
        """The limits of a command (width,). Raises ValueError if another number of limits is given."""
        limits = []
        for name in NumberLimits._fields:
            value = np.asarray(getattr(self, name), np.float64)
            if value.ndim and len(value) != width:
                raise ValueError(f"{name} has {len(value)} limits for a command of {width} numbers")
            limits.append(np.broadcast_to(value, width))
        return NumberLimits._make(limits)


def _matched(limits: MotionLimits, *names: str) -> list[np.ndarray]:
    """Limits side by side. Raises ValueError if they are of different numbers of numbers."""
    values = [np.asarray(getattr(limits, name), np.float64) for name in names]
    try:
        return np.broadcast_arrays(*values)
    except ValueError:
        lengths = " and ".join(f"{name} {value.shape}" for name, value in zip(names, values))  # noqa: B905 (Python 3.8)
        raise ValueError(f"the shapes of {lengths} differ; give one limit for all numbers, or one for each") from None


def _window_s(velocity: np.ndarray, acceleration: np.ndarray, jerk: np.ndarray) -> np.ndarray:
    """Seconds of commands whose mean keeps the jerk, 0 where it is not limited: 2 a / j at the acceleration a. Motion
    from rest to the velocity v reaches sqrt(v j) at most; to allow more would only lengthen the window."""
    is_smooth = np.isfinite(jerk)
    smooth_jerk = np.where(is_smooth, jerk, 1.0)
    reached = np.minimum(acceleration, np.sqrt(velocity * smooth_jerk))
    return np.where(is_smooth, 2 * reached / smooth_jerk, 0.0)


class Braking:
    """How far a number may move in a tick toward a target: as far as limits of velocity and acceleration allow, and
    never so far that a target at rest would be passed.

    Attributes:
        change: (n,) most by which a move may differ from the last one.
    """

    def __init__(self, velocity: np.ndarray, acceleration: np.ndarray, dt: float):
        self.change = acceleration * dt**2
        self._furthest = velocity * dt
        self._is_limited = np.isfinite(self.change)
        self._unit = np.where(self._is_limited, self.change, 1.0)

    def move(self, distance: np.ndarray) -> np.ndarray:
        """The move of the next tick at a distance from the target, both (n,) from 0.

        A move from which steps of deceleration end within the distance, this move included: with n changes and a rest,
        the steps cover n (n + 1) / 2 changes and n + 1 rests.
        """
        changes = distance / self._unit
        n = np.floor((np.sqrt(1 + 8 * changes) - 1) / 2 + 1e-9)
        rest = (changes - n * (n + 1) / 2) / (n + 1)
        return np.minimum(np.where(self._is_limited & (n > 0), (n + rest) * self._unit, distance), self._furthest)


class MotionWithinLimits(abc.ABC):
    """Follows a moving target; no command breaks a limit, from rest or in motion."""

    def __init__(self, limits: NumberLimits, stops_dead: np.ndarray):
        """
        Args:
            stops_dead: (n,) bool, the numbers whose velocity may change at once.
        """
        self._limits, self._stops_dead = limits, stops_dead

    @property
    @abc.abstractmethod
    def at_rest(self) -> np.ndarray:
        """(n,) bool: numbers that may keep their last command from now on: no limit breaks, and no velocity lasts."""

    @abc.abstractmethod
    def step(self, target: np.ndarray) -> np.ndarray:
        """(n,) the next command."""

    @abc.abstractmethod
    def brake(self) -> np.ndarray:
        """(n,) the next command of a stop at the largest deceleration; velocities go to 0."""

    @property
    def may_jump(self) -> np.ndarray:
        """(n,) bool: numbers that rest, or have no limit that a jump to another value would break."""
        return self.at_rest | (self._stops_dead & np.isinf(self._limits.velocity))

    def clipped(self, target: np.ndarray) -> np.ndarray:
        """(n,) the target within the limits of position."""
        return np.clip(target, self._limits.lowest, self._limits.highest)

    def _walls(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The limits of position, widened where the position lies beyond."""
        return np.minimum(self._limits.lowest, position), np.maximum(self._limits.highest, position)


class LimitedMotion(MotionWithinLimits):
    """Follows a moving target; every command differs from the last ones by no more than the limits.

    Position, velocity and acceleration are limited by `Braking`. The mean of the last commands then limits the jerk:
    over a time T an acceleration within +-a has a mean that changes by at most 2 a / T per second, see `_window_s`.
    """

    def __init__(self, limits: NumberLimits, rate: float, start: np.ndarray, velocities: np.ndarray | None = None):
        """
        Args:
            rate: commands per second.
            start: (n,) where the robot rests. From beyond `lowest` or `highest` commands lead back, never further out.
            velocities: (n,) bool, the numbers that are velocities, which `brake` leads to 0; None for none.
        """
        self._position = self._command = np.array(start, np.float64)
        self._velocities = np.zeros(len(start), bool) if velocities is None else velocities
        window_s = _window_s(limits.velocity, limits.acceleration, limits.jerk)
        is_smooth = np.isfinite(limits.jerk)
        acceleration = limits.acceleration.copy()
        acceleration[is_smooth] = window_s[is_smooth] * limits.jerk[is_smooth] / 2
        self._braking = Braking(limits.velocity, acceleration, 1 / rate)
        super().__init__(limits, stops_dead=np.isinf(acceleration))
        self._stopped = np.clip(0.0, limits.lowest, limits.highest)  # of velocities
        self._move = np.zeros(len(start))
        lengths = np.maximum(np.ceil(window_s * rate), 1).astype(np.int64)
        self._past = np.repeat(self._position[None], lengths.max(initial=1), axis=0)
        self._weights = np.zeros(self._past.shape)  # of the last `length` commands, newest last
        for i, length in enumerate(lengths):
            self._weights[-length:, i] = 1 / length

    @property
    def at_rest(self) -> np.ndarray:
        """(n,) bool: numbers that may keep their last command from now on: no limit breaks, and no velocity lasts."""
        is_past = self._weights > 0
        least = np.where(is_past, self._past, math.inf).min(0)
        largest = np.where(is_past, self._past, -math.inf).max(0)
        is_still = np.maximum(np.abs(self._move), largest - least) <= AT_REST * self._braking.change
        is_stopped = (least == self._stopped) & (largest == self._stopped)
        return (is_still | self._stops_dead) & (is_stopped | ~self._velocities)

    def step(self, target: np.ndarray) -> np.ndarray:
        """(n,) the next command."""
        return self._step(np.clip(target, *self._walls(self._position)))

    def brake(self) -> np.ndarray:
        """(n,) the next command of a stop at the largest deceleration; velocities go to 0."""
        return self._step(np.where(self._velocities, self._stopped, self._position))

    def _step(self, target: np.ndarray) -> np.ndarray:
        error = target - self._position
        move = np.sign(error) * self._braking.move(np.abs(error))
        self._move = np.clip(move, self._move - self._braking.change, self._move + self._braking.change)
        position = np.where(self._move == error, target, self._position + self._move)
        self._position = np.clip(position, *self._walls(self._position))
        self._past[:-1] = self._past[1:]
        self._past[-1] = self._position
        self._command = np.clip((self._weights * self._past).sum(0), *self._walls(self._command))
        return self._command
