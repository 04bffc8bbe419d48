"""Controller: from the actions of a policy to the commands of a controller that runs 10 to 100 times as fast.

An action is where the robot should be at the end of its control step. Commands lead from the last action to it:
numbers in a straight line, rotations by the shorter way at constant angular velocity, grippers at once if they should.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dp_prior_client.onboard.limited_turn import LimitedTurn
from dp_prior_client.onboard.motion_limits import LimitedMotion, MotionLimits, MotionWithinLimits, NumberLimits
from dp_prior_client.onboard.rotation_check import WIDTHS, is_rotation, not_a_rotation
from dp_prior_client.onboard.ruckig_motion import RuckigMotion, ruckig_library
from dp_prior_client.onboard.slerp import between, from_quaternion, slerp, to_quaternion

log = logging.getLogger(__name__)

MOTIONS: dict[str, type[MotionWithinLimits]] = {"mean": LimitedMotion, "ruckig": RuckigMotion}
"""How numbers follow their targets within the limits, by the values of `motion`."""


class Acting(Protocol):
    """Gives one action per control step: an `Agent`, a `PolicyClient`, or a `RealtimeAgent`, which does not block."""

    def act(self, obs: Mapping[str, Any]) -> np.ndarray:
        """(action_dim,)."""


class Controller:
    """Commands at `rate` from an agent at `fps`: `reset(position)` at the start, then `command(observe)` at every tick.

    The limits hold from command to command, whatever the agent does. After an error (the agent or `observe` raises, or
    the action is no command) the next commands are those of a braked stop, during which the agent is not asked. The
    error is raised when the commands rest, so a loop that ends there, or catches the error and sends nothing, leaves
    the arm standing within its limits. The next call asks the agent again, and its action begins from rest.
    A `KeyboardInterrupt`, like all that is no `Exception`, passes at once; a loop that ends in mid-motion, for this or
    any reason, sends `brake()` until `at_rest`.

    Commands are counted and know no time: a loop at another rate than `rate` scales velocities by the ratio, and after
    a stall the next command is as close to the last one as without.

    Attributes:
        error: the last error, until the agent acts again; None without.
    """

    def __init__(
        self,
        agent: Acting,
        *,
        fps: float,
        rate: float,
        limits: MotionLimits | None = None,
        rotations: Sequence[tuple[int, int, str]] | None = None,
        at_once: Collection[int] = (),
        velocities: Collection[int] | None = None,
        on_error: str = "raise",
        motion: str = "mean",
    ):
        """
        Args:
            fps: control steps per second, at which the agent is asked.
            rate: commands per second, at least fps; no multiple of it needed.
            limits: of the commands; None for no limits, where errors stop the arm at its last command.
            rotations: start, stop and form of the numbers that are rotations; None for what the agent knows.
            at_once: numbers that take the value of a new action at its first command, such as grippers; limits hold
                for them too.
            velocities: numbers that are velocities, which a stop leads to 0; None for those whose names end in ".vel"
                or "velocity" in the data of the agent's policy, see `Reads.velocities`.
            on_error: "raise", or "hold": commands go on at rest, the agent is asked once per control step, and its
                errors are in `error` and in the log alone.
            motion: how numbers follow within the limits: "mean" by `LimitedMotion`, or "ruckig" by `RuckigMotion`,
                with half the delay of a limited jerk, by the package ruckig. Rotations do not depend on it.

        Raises:
            ValueError: a rate is out of range, the form of a rotation cannot be interpolated, on_error or motion is
                unknown, or motion is "ruckig" without limits.
            ModuleNotFoundError: motion is "ruckig", which is not installed.
        """
        if not (0 < fps <= rate < math.inf):
            raise ValueError(f"fps is {fps}, rate {rate}; expected a rate of commands of at least fps, both above 0")
        if on_error not in ("raise", "hold"):
            raise ValueError(f'on_error is {on_error!r}; expected "raise" or "hold"')
        if motion not in MOTIONS:
            raise ValueError(f"motion is {motion!r}; expected {' or '.join(map(repr, MOTIONS))}")
        if motion == "ruckig":
            if limits is None:
                raise ValueError('motion is "ruckig" without limits; ruckig needs limits=MotionLimits(velocity=..., '
                                 'acceleration=...)')  # fmt: skip
            ruckig_library()  # a missing package is told before the arm moves
        action = getattr(getattr(agent, "reads", None), "action", None)
        if rotations is None:
            rotations = () if action is None else action.rotations
        if velocities is None:
            velocities = () if action is None else action.velocities
        self._agent, self._ratio, self._rate, self._on_error = agent, rate / fps, rate, on_error
        self._limits = limits or MotionLimits()
        self._rotations = [tuple(rotation) for rotation in rotations]
        for start, stop, form in self._rotations:
            if WIDTHS.get(form) != stop - start:
                expected = ", ".join(f"{name} ({width})" for name, width in WIDTHS.items())
                raise ValueError(f"the rotation at {[start, stop]} of form {form!r} cannot be interpolated; expected "
                                 f"{expected}")  # fmt: skip
        self._at_once, self._velocities = sorted(at_once), sorted(velocities)
        self.error: Exception | None = None
        self._unraised: Exception | None = None
        self._motion: MotionWithinLimits | None = None
        self._kind = MOTIONS[motion]
        self._is_braking = False
        self._tick = self._stop = 0

    @property
    def due(self) -> bool:
        """Whether the next command begins a control step, and so asks the agent."""
        return self._tick == self._stop and not self._is_braking and self._unraised is None

    @property
    def at_rest(self) -> bool:
        """Whether the last command can be kept from now on: no limit breaks, and every velocity is 0."""
        return self._motion is None or bool(self._motion.at_rest.all() and all(turn.at_rest for turn in self._turns))

    def reset(self, position: np.ndarray) -> None:
        """Start an episode; the agent is reset by its owner.

        Args:
            position: (action_dim,) where the robot rests, as an action would say.

        Raises:
            ValueError: the limits, rotations, velocities or numbers at once do not fit this width, a velocity or a
                number at once is part of a rotation, a rotation has limits of position, or the position is not finite,
                or holds no rotation where one is.
            RuntimeError: the last command moves, and to rest after it would break the limits.
        """
        start = np.array(position, np.float64)
        width = start.size
        is_rotated = self._rotated(width)
        self._check("position", start, width)
        limits = self._limits.of(width)
        self._check_walls(limits, start)
        if self._motion is not None and not (self._motion.may_jump.all() and all(turn.at_rest for turn in self._turns)):
            raise RuntimeError(
                "reset was called while the commands move, and to rest now would break the limits; send brake() until "
                "at_rest, or call it without sending where the arm was stopped otherwise, and reset then"
            )
        self._straight = np.flatnonzero(~is_rotated)
        is_velocity = np.zeros(width, bool)
        is_velocity[self._velocities] = True
        self._motion = self._kind(
            limits.of(self._straight), self._rate, start[self._straight], is_velocity[self._straight]
        )
        self._turns = [
            LimitedTurn(to_quaternion(start[a:b], form), limits.velocity[a:b].min(), limits.acceleration[a:b].min(),
                        self._rate)
            for a, b, form in self._rotations
        ]  # fmt: skip
        self.error = self._unraised = None
        self._is_braking = False
        self._begin_at(start)

    def command(self, observe: Callable[[], Mapping[str, Any]]) -> np.ndarray:
        """The next command.

        Args:
            observe: gives the observations; called once per control step.

        Returns:
            (action_dim,) float64.

        Raises:
            RuntimeError: `reset` was not called.
            ValueError: the action is not finite, of another width than the position, or holds no rotation where one is.
            Exception: the agent's own, or that of `observe`. Like the ValueError, only where the commands rest and
                on_error is "raise"; the next call asks the agent again.
        """
        self._check_reset("command")
        if self._is_braking:
            return self.brake()
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error
        if self.due:
            try:
                self._lead(np.array(self._agent.act(observe()), np.float64))
            except Exception as error:
                is_raised = self.at_rest and self._on_error == "raise"
                self._remember(error, is_raised)
                if is_raised:
                    self._begin_at(self._last)
                    raise
                return self.brake()
            self.error = None
        return self._follow()

    def brake(self) -> np.ndarray:
        """The next command of a braked stop, without asking the agent: positions and rotations stop at the largest
        deceleration, velocities go to 0. Once begun the stop goes on under `command`.

        Returns:
            (action_dim,) float64.

        Raises:
            RuntimeError: `reset` was not called.
        """
        self._check_reset("brake")
        self._is_braking = True
        command = self._joined(self._motion.brake(), [turn.brake() for turn in self._turns])
        self._pause -= 1
        if self.at_rest and self._pause <= 0:
            self._is_braking = False
            self._begin_at(self._last)
        return command

    def _remember(self, error: Exception, is_raised: bool) -> None:
        """Take note of an error, which is in the log once until the agent acts again, unless it is raised at once."""
        if self.error is None and not is_raised:
            log.warning("%s: %s; the commands brake and rest until the agent acts", type(error).__name__, error)
        self.error = error
        if self._on_error == "hold":
            self._pause = math.ceil(self._ratio)
        elif not is_raised:
            self._unraised = error

    def _begin_at(self, command: np.ndarray) -> None:
        """Let the next call ask the agent, whose action will be led to from this command."""
        self._last = self._end = command
        self._end_turns = [turn.now for turn in self._turns]
        self._period = self._tick = self._stop = self._pause = 0

    def _lead(self, action: np.ndarray) -> None:
        """Begin the control step of an action."""
        self._check("action", action, len(self._end))
        action[self._straight] = self._motion.clipped(action[self._straight])
        turns = [to_quaternion(action[a:b], form) for a, b, form in self._rotations]
        self._ways = [(start, between(start, end)) for start, end in zip(self._end_turns, turns)]  # noqa: B905 (Python 3.8)
        self._start, self._end, self._end_turns = self._end, action, turns
        self._period += 1
        self._begin, self._stop = self._tick, math.ceil(self._period * self._ratio - 1e-9)

    def _follow(self) -> np.ndarray:
        """The next command on the way to the action."""
        self._tick += 1
        share = (self._tick - self._begin) / (self._stop - self._begin)
        target = self._start + share * (self._end - self._start)
        target[self._at_once] = self._end[self._at_once]
        turns = [turn.step(slerp(*way, share)) for turn, way in zip(self._turns, self._ways)]  # noqa: B905 (Python 3.8)
        return self._joined(self._motion.step(target[self._straight]), turns)

    def _joined(self, numbers: np.ndarray, turns: list[list[float]]) -> np.ndarray:
        """The command of straight numbers and quaternions, which is the last one from now on."""
        command = np.empty(len(self._end))
        command[self._straight] = numbers
        for (start, stop, form), turn in zip(self._rotations, turns):  # noqa: B905 (Python 3.8)
            command[start:stop] = from_quaternion(turn, form)
        self._last = command
        return command.copy()

    def _check_reset(self, method: str) -> None:
        if self._motion is None:
            raise RuntimeError(f"{method} was called before reset; a Controller must know where the robot is")

    def _rotated(self, width: int) -> np.ndarray:
        """(width,) bool, the numbers of rotations. Raises ValueError if the settings name others than a command has, or
        treat a part of a rotation as a number."""
        is_rotated = np.zeros(width, bool)
        for start, stop, _ in self._rotations:
            if stop > width:
                raise ValueError(f"rotations name the numbers {[start, stop]}, but a command has {width}")
            is_rotated[start:stop] = True
        for name, numbers in (("at_once", self._at_once), ("velocities", self._velocities)):
            for number in numbers:
                if not -width <= number < width:
                    raise ValueError(f"{name} names the number {number}, but a command has {width}")
            parts = [number % width for number in numbers if is_rotated[number]]
            if parts:
                raise ValueError(f"{name} names {parts}, which are parts of a rotation; rotations turn at constant "
                                 f"angular velocity, so leave them out")  # fmt: skip
        return is_rotated

    def _check(self, name: str, numbers: np.ndarray, width: int) -> None:
        """Raises ValueError if these numbers are no command, whose numbers are finite in float32."""
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(numbers.astype(np.float32)).all()
        if numbers.shape != (width,) or not is_finite:
            raise ValueError(f"the {name} is {numbers}; expected {width} finite numbers")
        for start, stop, form in self._rotations:
            if not is_rotation(numbers[start:stop], form):
                raise ValueError(f"the {name}'s slice {[start, stop]}: {not_a_rotation(numbers[start:stop], form)}")

    def _check_walls(self, limits: NumberLimits, position: np.ndarray) -> None:
        """Raises ValueError if a rotation has limits of position; logs numbers that rest beyond their limits."""
        for start, stop, form in self._rotations:
            if np.isfinite([limits.lowest[start:stop], limits.highest[start:stop]]).any():
                raise ValueError(
                    f"lowest or highest limits the numbers {[start, stop]}, which are a rotation of form {form!r}; "
                    f"give lists with -inf and inf for these"
                )
        for i in np.flatnonzero((position < limits.lowest) | (position > limits.highest)):
            log.warning("number %d rests at %g, beyond its limits of %g to %g; the commands lead it back within", i,
                        position[i], limits.lowest[i], limits.highest[i])  # fmt: skip
