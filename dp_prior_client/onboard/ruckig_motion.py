"""RuckigMotion: follows targets by the library ruckig, which plans the fastest motion within the limits at every tick.

Berscheid and Kroeger, "Jerk-limited Real-time Trajectory Generation with Arbitrary Target States", RSS 2021.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dp_prior_client.onboard.motion_limits import AT_REST, LimitedMotion, MotionWithinLimits, NumberLimits

REACH = 4
"""Targets further away than this many times the distance of a stop change no command, and are taken to be there."""

APART = 1e-9
"""Share by which the velocity limits of two plans in a row differ. Where a motion comes up to its limit of velocity,
ruckig 0.12 and 0.19 often find only a plan of twice the duration for the same limit."""


class RuckigMotion(MotionWithinLimits):
    """Follows a moving target like `LimitedMotion`, delayed half as much by a limited jerk.

    Ruckig plans positions whose velocity and acceleration are limited; `LimitedMotion` moves all other numbers.
    """

    def __init__(self, limits: NumberLimits, rate: float, start: np.ndarray, velocities: np.ndarray | None = None):
        """
        Args:
            rate: commands per second.
            start: (n,) where the robot rests. From beyond `lowest` or `highest` commands lead back, never further out.
            velocities: (n,) bool, the numbers that are velocities, which `brake` leads to 0; None for none.

        Raises:
            ModuleNotFoundError: ruckig is not installed.
        """
        super().__init__(limits, stops_dead=np.isinf(limits.acceleration))
        self._ruckig = ruckig_library()
        self._position = np.array(start, np.float64)
        is_velocity = np.zeros(len(self._position), bool) if velocities is None else velocities
        is_planned = np.isfinite(limits.velocity) & np.isfinite(limits.acceleration) & ~is_velocity
        self._planned, self._others = np.flatnonzero(is_planned), np.flatnonzero(~is_planned)
        rest = self._others
        self._unplanned = LimitedMotion(limits.of(rest), rate, self._position[rest], is_velocity[rest])
        self._begin(limits.of(self._planned), rate)

    def _begin(self, limits: NumberLimits, rate: float) -> None:
        """Set up ruckig for the planned numbers, at rest."""
        ramp_s = np.minimum(limits.acceleration / limits.jerk, np.sqrt(limits.velocity / limits.jerk))
        self._reach = REACH * limits.velocity * (limits.velocity / limits.acceleration + ramp_s + 1 / rate)
        self._resting = AT_REST * np.minimum(limits.acceleration, limits.jerk / rate)
        self._resting_velocity = self._resting / rate
        size, ruckig = len(self._planned), self._ruckig
        self._planner = ruckig.Ruckig(size, 1 / rate)
        self._state, self._output = ruckig.InputParameter(size), ruckig.OutputParameter(size)
        self._state.synchronization = ruckig.Synchronization.No  # each number as it does alone
        self._state.current_position = self._position[self._planned]
        self._limits_in_turn = itertools.cycle([limits.velocity, limits.velocity * (1 - APART)])
        self._state.max_acceleration = limits.acceleration
        self._state.max_jerk = limits.jerk

    @property
    def at_rest(self) -> np.ndarray:
        """(n,) bool: numbers that may keep their last command from now on: no limit breaks, and no velocity lasts."""
        velocity, acceleration = self._state.current_velocity, self._state.current_acceleration
        is_resting = np.empty(len(self._position), bool)
        is_resting[self._others] = self._unplanned.at_rest
        is_resting[self._planned] = (np.abs(velocity) <= self._resting_velocity) & (
            np.abs(acceleration) <= self._resting
        )
        return is_resting

    def step(self, target: np.ndarray) -> np.ndarray:
        """(n,) the next command."""
        position = self._position[self._planned]
        near = np.clip(target, *self._walls(self._position))[self._planned]
        self._state.target_position = np.clip(near, position - self._reach, position + self._reach)
        try:
            self._plan(self._ruckig.ControlInterface.Position)
        except (self._ruckig.RuckigError, ValueError):  # no plan from here to there: brake for a tick, and plan again
            self._plan(self._ruckig.ControlInterface.Velocity)
        return self._joined(self._unplanned.step(target[self._others]))

    def brake(self) -> np.ndarray:
        """(n,) the next command of a stop at the largest deceleration; velocities go to 0."""
        self._plan(self._ruckig.ControlInterface.Velocity)
        return self._joined(self._unplanned.brake())

    def _plan(self, interface: Any) -> None:
        """Advance the planned numbers by a tick, toward the target position or, by velocity, to a stop.

        Raises:
            RuckigError, ValueError: there is no plan; the latter is a result that has no name in Python.
        """
        if len(self._planned):
            self._state.control_interface = interface
            self._state.max_velocity = next(self._limits_in_turn)
            self._planner.update(self._state, self._output)
            self._output.pass_to_input(self._state)

    def _joined(self, others: np.ndarray) -> np.ndarray:
        """(n,) the command of the planned and the other numbers, which is the last one from now on."""
        command = np.empty(len(self._position))
        command[self._others], command[self._planned] = others, self._state.current_position
        self._position = np.clip(command, *self._walls(self._position))  # against rounding
        return self._position.copy()


def ruckig_library() -> Any:
    """The module ruckig.

    Raises:
        ModuleNotFoundError: ruckig is not installed.
    """
    try:
        import ruckig
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'motion is "ruckig", whose package is not installed: pip install "dp_prior[ruckig]"', name="ruckig"
        ) from error
    return ruckig
