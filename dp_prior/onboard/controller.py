"""Controller: from the actions of a policy to the commands of a controller that runs 10 to 100 times as fast.

An action is where the robot should be at the end of its control step. Commands lead from the last action to it:
numbers in a straight line, rotations by the shorter way at constant angular velocity, grippers at once if they should.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dp_prior.onboard.motion_limits import Braking, LimitedMotion, MotionLimits
from dp_prior.onboard.rotation_check import is_rotation, not_a_rotation
from dp_prior.onboard.slerp import WIDTHS, between, exp, from_quaternion, product, slerp, to_quaternion, unit


class Acting(Protocol):
    """Gives one action per control step: an `Agent`, a `PolicyClient`, or a `RealtimeAgent`, which does not block."""

    def act(self, obs: Mapping[str, Any]) -> np.ndarray:
        """(action_dim,)."""


class Controller:
    """Commands at `rate` from an agent at `fps`: `reset(position)` at the start, then `command(observe)` at every tick.

    Attributes:
        due: whether the next command begins a control step, and so asks the agent.
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
    ):
        """
        Args:
            fps: control steps per second, at which the agent is asked.
            rate: commands per second, at least fps; no multiple of it needed.
            limits: of the commands; None for none.
            rotations: start, stop and form of the numbers that are rotations; None for what the agent knows.
            at_once: numbers that take the value of a new action at its first command, such as grippers; limits hold
                for them too.

        Raises:
            ValueError: a rate is out of range, or the form of a rotation cannot be interpolated.
        """
        if not (0 < fps <= rate < math.inf):
            raise ValueError(f"fps is {fps}, rate {rate}; expected a rate of commands of at least fps, both above 0")
        action = getattr(getattr(agent, "reads", None), "action", None)
        known = () if action is None else action.rotations
        self._agent, self._ratio, self._rate = agent, rate / fps, rate
        self._limits = limits or MotionLimits()
        self._rotations = [tuple(one) for one in (known if rotations is None else rotations)]
        for start, stop, form in self._rotations:
            if WIDTHS.get(form) != stop - start:
                expected = ", ".join(f"{name} ({width})" for name, width in WIDTHS.items())
                raise ValueError(f"the rotation at {[start, stop]} of form {form!r} cannot be interpolated; expected "
                                 f"{expected}")  # fmt: skip
        self._at_once = sorted(at_once)
        self._end: np.ndarray | None = None
        self._tick = self._stop = 0

    @property
    def due(self) -> bool:
        """See the class."""
        return self._tick == self._stop

    def reset(self, position: np.ndarray) -> None:
        """Start an episode; the agent is reset by its owner.

        Args:
            position: (action_dim,) where the robot rests, as an action would say.

        Raises:
            ValueError: the limits, rotations or numbers at once do not fit this width, a number at once is part of a
                rotation, or the position is not finite, or holds no rotation where one is.
        """
        start = np.array(position, np.float64)
        width = len(start)
        beyond = [stop for _, stop, _ in self._rotations if stop > width] + [i for i in self._at_once if i >= width]
        if beyond:
            raise ValueError(f"rotations or at_once name the number {beyond[0]}, but a command has {width}")
        turned = {i for begin, stop, _ in self._rotations for i in range(begin, stop)}
        if parts := turned.intersection(i % width for i in self._at_once):
            raise ValueError(f"at_once names {sorted(parts)}, which are parts of a rotation; rotations turn at "
                             f"constant angular velocity, so leave them out")  # fmt: skip
        self._check("position", start, width)
        self._end = start
        self._straight = np.array([i for i in range(width) if i not in turned], np.int64)
        limits = self._limits.of(width)
        self._motion = LimitedMotion(
            tuple(one[self._straight] for one in limits), self._rate, self._end[self._straight]
        )
        self._turns = [_Turn(self._end[a:b], form, [one[a:b].min() for one in limits], self._rate)
                       for a, b, form in self._rotations]  # fmt: skip
        self._start, self._period = self._end, 0
        self._tick = self._stop = self._begin = 0

    def command(self, observe: Callable[[], Mapping[str, Any]]) -> np.ndarray:
        """The next command.

        Args:
            observe: gives the observations; called once per control step.

        Returns:
            (action_dim,) float64.

        Raises:
            RuntimeError: `reset` was not called.
            ValueError: the action is not finite, of another width than the position, or holds no rotation where one is.
            Exception: the agent's own; the next call asks the agent again.
        """
        if self._end is None:
            raise RuntimeError("command was called before reset; a Controller must know where the robot is")
        if self.due:
            self._lead(np.array(self._agent.act(observe()), np.float64))
        self._tick += 1
        share = (self._tick - self._begin) / (self._stop - self._begin)
        target = self._start + share * (self._end - self._start)
        target[self._at_once] = self._end[self._at_once]
        found = target.copy()
        found[self._straight] = self._motion.step(target[self._straight])
        for (start, stop, _), turn in zip(self._rotations, self._turns):  # noqa: B905 (Python 3.8)
            found[start:stop] = turn.step(share)
        return found

    def _lead(self, action: np.ndarray) -> None:
        """Begin the control step of an action."""
        self._check("action", action, len(self._end))
        self._start, self._end = self._end, action
        self._period += 1
        self._begin, self._stop = self._tick, math.ceil(self._period * self._ratio - 1e-9)
        for (start, stop, _), turn in zip(self._rotations, self._turns):  # noqa: B905 (Python 3.8)
            turn.lead(action[start:stop])

    def _check(self, name: str, numbers: np.ndarray, width: int) -> None:
        """Raises ValueError if these numbers are no command."""
        if numbers.shape != (width,) or not np.isfinite(numbers).all():
            raise ValueError(f"the {name} is {numbers}; expected {width} finite numbers")
        for start, stop, form in self._rotations:
            if not is_rotation(numbers[start:stop], form):
                raise ValueError(f"the {name}'s slice {[start, stop]}: {not_a_rotation(numbers[start:stop], form)}")


class _Turn:
    """The commands of one rotation, within limits of its angular velocity and acceleration."""

    def __init__(self, start: np.ndarray, form: str, limits: Sequence[float], rate: float):
        self._form, self._dt = form, 1 / rate
        self._now = self._end = to_quaternion(start, form)
        velocity, acceleration, _ = limits
        is_limited = min(velocity, acceleration) < math.inf
        self._braking = Braking(np.full(3, velocity), np.full(3, acceleration), self._dt) if is_limited else None

    def lead(self, end: np.ndarray) -> None:
        """Begin a control step whose action is `end`."""
        self._start, self._end = self._end, to_quaternion(end, self._form)
        self._way = between(self._start, self._end)

    def step(self, share: float) -> list[float]:
        """The next command, at a share of the control step."""
        target = slerp(self._start, self._way, share)
        if self._braking is None:
            self._now = target
        else:
            velocity = self._braking.step(np.array(between(self._now, target)))
            self._now = unit(product(self._now, exp((velocity * self._dt).tolist())))
        return from_quaternion(self._now, self._form)
