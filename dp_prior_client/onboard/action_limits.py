"""ActionLimits: how far an action may go before it reaches a motor. `ActionWatch` judges every command by them.

Three things are limited, number by number: the value, its step from the previous command, and its distance from the
position that it answers. The distance finds a robot in radians under a policy in degrees at the first command, and the
other way round, where each step looks small.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dp_prior_client.onboard.obs_spec import Reads

log = logging.getLogger(__name__)

CHOICES = ("tell", "refuse", "clip")
"""Reactions to an action beyond a limit."""

LEAST_SHARE = 0.02
"""Share of the range of training below which no step and no distance counts: training may have had none at all."""


ASKS_FOR_UNITS = "is the robot's unit another than that of the data (degrees, radians), or the policy lost?"

MOST_PROBLEMS = 3
"""Numbers of a refused action that its error describes."""


class RefusedActionError(ValueError):
    """An action is beyond a limit that refuses, or no action is within all limits: the robot must not execute it."""


@dataclass(frozen=True)
class ActionLimits:
    """Limits of the actions of an agent. By default the limits of training, times `factor`, and a line in the log.

    Limits in data units replace the limits of training: a number for all, or a list with a number for each dimension of
    an action; `math.inf` is no limit. Only such limits judge the parts of a rotation.

    Raises:
        ValueError: a choice is unknown, a limit is no number, or low lies above high.
    """

    beyond: str = "tell"
    """What happens beyond a limit: "tell" writes a line to the log, once per number and kind of limit; "refuse" raises
    `RefusedActionError`; "clip" takes the nearest action within the limits, and refuses if the limits exclude all."""

    factor: float = 2.0
    """Multiple of the limits of training: the range, from its middle, the largest step and the largest distance."""

    low: float | Sequence[float] | None = None
    """Least value; None for the range of training."""

    high: float | Sequence[float] | None = None
    """Greatest value; None for the range of training."""

    step: float | Sequence[float] | None = None
    """Most that a command may differ from the one before; None for the largest step of training."""

    distance: float | Sequence[float] | None = None
    """Most that a command may differ from the observed position that it answers; None for the largest of training."""

    def __post_init__(self) -> None:
        if self.beyond not in CHOICES:
            raise ValueError(f"beyond is {self.beyond!r}; expected one of {', '.join(CHOICES)}")
        if not isinstance(self.factor, (int, float)) or not self.factor >= 1:
            raise ValueError(f"factor is {self.factor!r}; expected a number from 1, where 1 is what training had")
        for name in ("low", "high", "step", "distance"):
            value = getattr(self, name)
            numbers = np.asarray(0.0 if value is None else value)
            if numbers.dtype.kind not in "iuf" or numbers.ndim > 1 or np.isnan(numbers).any():
                raise ValueError(f"{name} is {value!r}; expected a number, or one for each number of an action")
            if name in ("step", "distance") and (numbers < 0).any():
                raise ValueError(f"{name} is {value!r}; expected numbers from 0")
        if self.low is not None and self.high is not None and (np.asarray(self.low) > np.asarray(self.high)).any():
            raise ValueError(f"low is {self.low!r}, above high, which is {self.high!r}")

    def stated(self, name: str, width: int) -> np.ndarray | None:
        """One of the limits in data units, (width,) float64; None where training decides.

        Raises:
            ValueError: another number of limits is given.
        """
        value = getattr(self, name)
        if value is None:
            return None
        numbers = np.asarray(value, np.float64)
        if numbers.ndim and len(numbers) != width:
            raise ValueError(f"{name} has {len(numbers)} limits for an action of {width} numbers")
        return np.broadcast_to(numbers, (width,))


def check_dry_limits(limits: ActionLimits | None) -> None:
    """Check limits of commands that come from the dry run of a server.

    Raises:
        ValueError: they clip, which would move a robot that rests beyond a limit.
    """
    if limits is not None and limits.beyond == "clip":
        raise ValueError(
            "actions.beyond is 'clip', but the server's dry run commands the robot to stay where it is, and a clipped "
            "command would move a robot that rests beyond a limit; expected 'tell' or 'refuse' in a dry run"
        )


class ActionWatch:
    """Judges the actions of one robot by the limits of its agent and the actions of training.

    Attributes:
        keys: observations that hold the positions which actions answer.
        problems: kind of limit and number for each limit that the last action, or an action of the last chunk, exceeds.
    """

    def __init__(self, action: Reads, limits: ActionLimits | None = None, tell: Callable[[str], None] = log.warning):
        """
        Args:
            action: see `ObsSpec.action`.
            limits: None for the defaults.
            tell: receives each line.

        Raises:
            ValueError: the limits do not fit the width of an action, or low lies above high.
        """
        self._action, self._limits, self._tell = action, limits or ActionLimits(), tell
        self._width = action.shape[0]
        self._reported: set[tuple[str, int]] = set()
        self.problems: list[tuple[str, int]] = []
        self._answers: dict[str, tuple[list[int], list[int]]] = {}
        if action.motion is None:
            log.debug("the policy says nothing of the motion of its training: only the range of actions is judged")
        else:
            for number, answer in enumerate(action.motion.answers):
                if answer is not None:
                    numbers, dimensions = self._answers.setdefault(answer[0], ([], []))
                    numbers.append(number)
                    dimensions.append(answer[1])
        self.keys = tuple(self._answers)
        self._trained = _trained(action)
        self._reach = self._reaches()

    def check(
        self, action: np.ndarray, obs: Mapping[str, np.ndarray] | None = None, previous: np.ndarray | None = None
    ) -> np.ndarray:
        """Judge one command.

        Args:
            action: (action_dim,) float32.
            obs: (*shape) by key, the newest observations; None for an action that answers later ones.
            previous: (action_dim,) the command before; None for the first.

        Returns:
            The action, or the nearest one within the limits where these clip.

        Raises:
            RefusedActionError: the action is not finite or of another width than the policy's, a limit that refuses is
                exceeded, or no action is within all limits that clip.
        """
        self.problems = []
        self._check_form(action)
        position = None if obs is None else self._position(obs)
        bounds = {"range": (self._reach["low"], self._reach["high"])}
        if position is not None:
            bounds["distance"] = position - self._reach["distance"], position + self._reach["distance"]
        if previous is not None:
            bounds["step"] = previous - self._reach["step"], previous + self._reach["step"]
        problems = {}
        for kind, (low, high) in bounds.items():
            for number in np.flatnonzero((action < low) | (action > high)).tolist():
                problems[kind, number] = self._problem(kind, number, action, position, previous)
        self.problems = list(problems)
        if not problems:
            return action
        if self._limits.beyond == "refuse":
            raise RefusedActionError(f"{_first(problems)}; the action is refused (actions.beyond)")
        is_clipped = self._limits.beyond == "clip"
        clipped = _clipped(action, bounds) if is_clipped else action
        for place, problem in problems.items():
            if place not in self._reported:
                self._reported.add(place)
                clipping = "; it is clipped (actions.beyond)" if is_clipped else ""
                self._tell(problem + clipping + _question([place]))
        if clipped is None:
            raise RefusedActionError(f"{_first(problems)}; no action is within all limits (actions.beyond)")
        return clipped

    def check_chunk(
        self, chunk: np.ndarray, obs: Mapping[str, np.ndarray] | None = None, present: int = 0
    ) -> np.ndarray:
        """Judge the actions of a chunk, each as the command after the one before.

        Args:
            chunk: (horizon, action_dim) float32.
            obs: (*shape) by key, the newest observations, which the action at `present` answers.
            present: index of the first action that may be executed; earlier ones are not judged.

        Returns:
            The chunk, or a copy with the nearest actions within the limits where these clip.

        Raises:
            RefusedActionError: see `check`.
        """
        if chunk.ndim != 2 or len(chunk) <= present:
            raise RefusedActionError(f"the chunk has shape {chunk.shape}; expected more than {present} actions")
        judged, previous = chunk.copy(), None
        self.problems = []
        if self._are_inside(chunk[present:], obs):
            return chunk
        problems: dict[tuple[str, int], None] = {}
        try:
            for index in range(present, len(chunk)):
                problems.update(dict.fromkeys(self.problems))
                judged[index] = previous = self.check(chunk[index], obs if index == present else None, previous)
        finally:
            problems.update(dict.fromkeys(self.problems))
            self.problems = list(problems)
        return judged

    def _are_inside(self, actions: np.ndarray, obs: Mapping[str, np.ndarray] | None) -> bool:
        """Whether all of (n, action_dim) are within the limits, which most are."""
        if actions.shape[1:] != (self._width,) or not np.isfinite(actions).all():
            return False
        position = None if obs is None else self._position(obs)
        steps = np.abs(np.diff(actions.astype(np.float64), axis=0))
        is_far = position is not None and (np.abs(actions[0] - position) > self._reach["distance"]).any()
        is_out = (actions < self._reach["low"]).any() or (actions > self._reach["high"]).any()
        return not (is_far or is_out or (steps > self._reach["step"]).any())

    def _check_form(self, action: np.ndarray) -> None:
        if action.shape != (self._width,) or not np.isfinite(action).all():
            numbers = np.array2string(action, threshold=20)
            raise RefusedActionError(f"the action is {numbers}; expected {self._width} finite numbers")

    def _position(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(action_dim,) float64: the observed number that each action answers; NaN where none is known."""
        position = np.full(self._width, np.nan)
        for key, (numbers, dimensions) in self._answers.items():
            if key in obs:
                position[numbers] = obs[key][dimensions]
        return position

    def _reaches(self) -> dict[str, np.ndarray]:
        """(action_dim,) float64 by limit: the limits in data units, infinite where nothing limits."""
        factor, trained = self._limits.factor, self._trained
        with np.errstate(invalid="ignore"):
            is_known = np.isfinite(trained["high"] - trained["low"])
            span = np.where(is_known, trained["high"] - trained["low"], 0.0)
            middle = np.where(is_known, (trained["low"] + trained["high"]) / 2, 0.0)
        half = np.where(span > 0, span / 2, np.maximum(np.abs(middle), 1.0))  # of a constant, as in observations
        half = np.where(is_known, half, np.inf)
        reach = {"low": middle - factor * half, "high": middle + factor * half}
        floor = 2 * LEAST_SHARE * np.where(is_known, half, 0.0)
        for name in ("step", "distance"):
            largest = np.maximum(trained[name], floor)
            reach[name] = np.where(largest > 0, factor, 1.0) * largest
        for name in reach:
            stated = self._limits.stated(name, self._width)
            reach[name] = reach[name] if stated is None else stated
        if (reach["low"] > reach["high"]).any():
            number = int(np.argmax(reach["low"] > reach["high"]))
            finding = f"low is {reach['low'][number]:.4g}, high {reach['high'][number]:.4g}"
            raise ValueError(f"{finding} for action dimension {number}, one of which is that of training; give both")
        return reach

    def _problem(
        self, kind: str, number: int, action: np.ndarray, position: np.ndarray | None, previous: np.ndarray | None
    ) -> str:
        """The line about a number of an action that exceeds a limit."""
        name = f" ({self._action.names[number]!r})" if len(self._action.names) else ""
        problem = f"action dimension {number}{name} is {action[number]:.4g}"
        trained = {limit: numbers[number] for limit, numbers in self._trained.items()}
        if kind == "range":
            if math.isfinite(trained["high"] - trained["low"]):
                problem += f"; in training it lay from {trained['low']:.4g} to {trained['high']:.4g}"
            low, high = self._reach["low"][number], self._reach["high"][number]
            return f"{problem} (limits {low:.4g} and {high:.4g})"
        if kind == "distance":
            key, dimension = self._action.motion.answers[number]
            apart, limit = abs(action[number] - position[number]), self._reach["distance"][number]
            problem += f", but observation {key!r}, dimension {dimension}, is {position[number]:.4g}: {apart:.4g} apart"
        else:
            apart, limit = abs(action[number] - previous[number]), self._reach["step"][number]
            problem += f" after {previous[number]:.4g}: a step of {apart:.4g}"
        if math.isfinite(trained[kind]):
            problem += f", in training at most {trained[kind]:.4g}"
        return f"{problem} (limit {limit:.4g})"


def _trained(action: Reads) -> dict[str, np.ndarray]:
    """(action_dim,) float64 by limit: what the actions of training had, infinite where this is not known."""
    unknown = np.full(action.shape[0], np.inf)
    low, high = (-unknown, unknown) if action.range is None else action.range
    step, distance = (unknown, unknown) if action.motion is None else (action.motion.step, action.motion.distance)
    limits = {"low": low, "high": high, "step": step, "distance": distance}
    return {name: np.asarray(numbers, np.float64) for name, numbers in limits.items()}


def _clipped(action: np.ndarray, bounds: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray | None:
    """(action_dim,) float32: the nearest action within all bounds, NaN being no bound; None if no action is within."""
    low = np.fmax.reduce([low for low, _ in bounds.values()])
    high = np.fmin.reduce([high for _, high in bounds.values()])
    with np.errstate(over="ignore"):
        lowest, highest = low.astype(np.float32), high.astype(np.float32)
    lowest = np.where(lowest < low, np.nextafter(lowest, np.float32(np.inf)), lowest)
    highest = np.where(highest > high, np.nextafter(highest, np.float32(-np.inf)), highest)
    return None if (lowest > highest).any() else np.clip(action, lowest, highest)


def _first(problems: Mapping[tuple[str, int], str]) -> str:
    """The first problems of an action, the number of further ones, and the likely cause."""
    rest = len(problems) - MOST_PROBLEMS
    listed = "; ".join(list(problems.values())[:MOST_PROBLEMS]) + (f"; and {rest} more" if rest > 0 else "")
    return listed + _question(problems)


def _question(places: Iterable[tuple[str, int]]) -> str:
    """The likely cause of problems with these kinds."""
    return f"; {ASKS_FOR_UNITS}" if any(kind == "distance" for kind, _ in places) else ""


def checked_action_steps(policy: Any, n_action_steps: int | None) -> int:
    """Actions of a policy's chunks that are executed before the next prediction; None for the policy's setting.

    Raises:
        ValueError: a chunk has no room for them from the present on.
    """
    n_steps = policy.n_action_steps if n_action_steps is None else n_action_steps
    room = policy.horizon - policy.n_obs_steps + 1
    if not 1 <= n_steps <= room:
        raise ValueError(
            f"n_action_steps is {n_steps}, but horizon {policy.horizon} and n_obs_steps {policy.n_obs_steps} leave "
            f"room for 1 to {room} actions"
        )
    return n_steps
