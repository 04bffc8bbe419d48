"""ObsSpec: what a policy reads, and the one check of observations from outside: a robot, an environment, a client."""

from __future__ import annotations

import difflib
import itertools
import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dp_prior_client.onboard.rotation_check import is_rotation, not_a_rotation
from dp_prior_client.onboard.scene import Scene

log = logging.getLogger(__name__)

MOST_NAMES_SHOWN = 20

_VELOCITY = re.compile(r"(^|[^a-z])(vel|velocity)$", re.IGNORECASE)
"""End of the name of a number that is a velocity, such as LeRobot's `x.vel`."""

MOST_VALUES = 1 << 24
"""Most numbers of an observation or an action chunk that files and servers may ask for."""

MOST_NUMBERS, LONGEST_LABEL = 1000, 200
"""Width of a vector, and length of its names, beyond which metadata leave out names and ranges."""


class TrainedMotion(NamedTuple):
    """How the actions of training moved, in data units; see `dp_prior.tensors.action_motion`."""

    step: np.ndarray
    """(action_dim,) largest difference of two consecutive actions; infinite where it is not known."""

    distance: np.ndarray
    """(action_dim,) largest difference to the observed number that the action answers; infinite without one."""

    answers: Sequence[tuple[str, int] | None]
    """Key and dimension of that observed number, for each number of an action."""


class Reads(NamedTuple):
    """One observation of a policy, without axes of rows and steps."""

    shape: tuple[int | None, ...]
    """None for an axis of any length: height and width of frames that the policy's side resizes."""

    dtype: str
    """Its type in numpy. For float32 any real numbers are taken."""

    kind: str = "vector"
    """See `dp_prior.tensors.batch.Kind`."""

    rotations: Sequence[tuple[int, int, str]] = ()
    """Start, stop and form of the elements that are rotations."""

    start: Sequence[float] | None = None
    """Value before the first action, of an observation that is the previous action; None for others."""

    range: tuple[np.ndarray, np.ndarray] | None = None
    """Lowest and highest values in training, of shape `shape`, infinite for numbers that the policy sees in other
    coordinates (rotations); None where they are not known."""

    names: Sequence[str] = ()
    """The data set's name of each number of a vector; empty where it has none."""

    size: tuple[int, int] | None = None
    """Height and width to which frames are resized; None for other observations."""

    region: Sequence[float] | None = None
    """Top, left, bottom and right of the part of a frame that the policy's side cuts out before the resize, as shares
    of height and width; None for the whole frame."""

    turn: str | None = None
    """How the policy's side turns a frame before all else, see `scene.turned`; None where it does not."""

    bgr: bool = False
    """Whether frames hold blue, green and red."""

    scene: Scene | None = None
    """What a camera showed in training; None where unknown, and for other observations."""

    motion: TrainedMotion | None = None
    """Motion of the action in training; None where unknown, and for observations."""

    texts: Sequence[str] = ()
    """All instructions of training, of an observation of kind text; empty where they are not listed."""

    @property
    def velocities(self) -> list[int]:
        """Numbers that are velocities, by their names: `x.vel`, `wheel_velocity`."""
        return [number for number, name in enumerate(self.names) if _VELOCITY.search(name)]


class ObsSpec:
    """The observations that a policy reads, by key.

    Attributes:
        action: the action that the policy predicts.
        fps: control steps per second of its training; None if unknown.
    """

    def __init__(self, observations: Mapping[str, Reads], action: Reads | None = None, fps: float | None = None):
        self.observations, self.action, self.fps = dict(observations), action, fps

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ObsSpec:
        """The spec in a server's metadata of its policy, see docs/robot.md."""
        observations, rotations, trained = {}, metadata.get("rotations", {}), metadata.get("trained", {})
        for key, entry in metadata["obs"].items():
            turns, start, fields = rotations.get(key, ()), entry.get("start"), as_trained(trained.get(key, {}))
            observations[key] = Reads(tuple(entry["shape"]), entry["dtype"], entry["kind"], turns, start, **fields)
        for key, scene in metadata.get("scenes", {}).items():
            observations[key] = observations[key]._replace(scene=Scene.from_metadata(scene))
        action, width = None, metadata.get("action_dim")
        if width is not None:
            action_entry = metadata.get("action", {})
            action = Reads((width,), "float32", rotations=action_entry.get("rotations", ()), **as_trained(action_entry))
        return cls(observations, action, metadata.get("fps"))

    def metadata(self) -> dict[str, Any]:
        """The inverse of `from_metadata`, at most four deep."""
        observations, obs = self.observations, {}
        for key, observation in observations.items():
            obs[key] = {"shape": list(observation.shape), "dtype": observation.dtype, "kind": observation.kind}
            if observation.start is not None:
                obs[key]["start"] = list(observation.start)
        rotations = {key: list(map(list, observation.rotations)) for key, observation in observations.items()}
        entries = {key: _trained_entry(observation) for key, observation in observations.items()}
        trained = {key: entry for key, entry in entries.items() if entry}
        scenes = {key: observation.scene for key, observation in observations.items() if observation.scene is not None}
        metadata: dict[str, Any] = {"obs": obs, "rotations": rotations, "trained": trained}
        if scenes:
            metadata["scenes"] = {key: scene.metadata() for key, scene in scenes.items()}
        if self.action is not None:
            metadata.update(action_dim=self.action.shape[0], action=_trained_entry(self.action))
            if self.action.rotations:
                metadata["action"]["rotations"] = list(map(list, self.action.rotations))
        return metadata if self.fps is None else {**metadata, "fps": self.fps}

    def compare(
        self,
        *,
        fps: float | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        cameras: Collection[str] | None = None,
    ) -> None:
        """Compare a robot with the policy's training before the first action; log what the training does not state.

        Args:
            fps: control steps per second of the robot's loop.
            names: of the numbers of a vector, in the robot's order, by observation; "action" for those of actions.
            cameras: names of the frames that the robot gives.

        Raises:
            ValueError: they differ; the text has one clause for each difference, with both sides.
        """
        problems = [] if fps is None else list(rate_faults(fps, self.fps))
        unstated = ["fps"] if fps is not None and self.fps is None else []
        vectors = self.observations if self.action is None else {**self.observations, "action": self.action}
        for key, robot_names in (names or {}).items():
            if key not in vectors:
                problems.append(f"there is no {key!r}; the policy has {list(vectors)}")
            elif not vectors[key].names:
                unstated.append(f"names of {key!r}")
            elif list(robot_names) != list(vectors[key].names):
                problems.append(
                    f"{key!r} has the numbers {list(robot_names)}, in the data of the policy "
                    f"{list(vectors[key].names)}: bring them into this order"
                )
        images = {key for key, observation in self.observations.items() if observation.kind == "image"}
        if cameras is not None and not images <= set(cameras):
            problems.append(f"the cameras are {sorted(cameras)}, the policy reads {sorted(images)}")
        if unstated:
            log.warning("not compared, since the policy's data set does not state it: %s", ", ".join(unstated))
        if problems:
            raise ValueError(f"the robot is not that of the policy: {'; '.join(problems)}")

    def first_actions(self) -> dict[str, np.ndarray]:
        """The previous action at the first step of an episode, by the key that holds it."""
        starts = {key: observation.start for key, observation in self.observations.items()}
        return {key: np.array(start, np.float32) for key, start in starts.items() if start is not None}

    def check(
        self,
        obs: Mapping[str, Any],
        *,
        rows: int,
        steps: Collection[int] = (),
        active: np.ndarray | None = None,
        texts: bool = False,
    ) -> dict[str, np.ndarray]:
        """Check observations and bring them into the types of their kinds.

        Args:
            obs: (rows, *shape) by key, or (rows, steps, *shape); arrays or nested lists. Other keys are ignored.
            rows: samples or environments.
            steps: lengths that the axis of steps may have; empty where observations have no such axis.
            active: rows whose values are read; None for all. Those of other rows need not be finite.
            texts: whether observations of that kind may be texts (rows,), which are embedded elsewhere.

        Returns:
            Copies of what the policy reads.

        Raises:
            TypeError: the observations have no keys.
            ValueError: a key is missing, is no array of numbers, has the wrong shape or type, or holds a value that is
                not finite in float32, or numbers that are no rotation where the policy reads one.
        """
        self.check_names(obs)
        checked = {}
        for key, observation in self.observations.items():
            if texts and observation.kind == "text" and all(isinstance(text, str) for text in obs[key]):
                checked[key] = np.array(obs[key])
            else:
                checked[key] = self.array(key, obs[key])
                self.check_shape(key, checked[key].shape, rows, steps)
        for key, value in checked.items():
            self.check_values(key, value, active)
        return checked

    def check_names(self, obs: Mapping[str, Any]) -> None:
        """Check that every observation of the policy is given."""
        if not isinstance(obs, Mapping):
            type_name = type(obs).__name__
            raise TypeError(f"observations are a {type_name}; expected a dict of arrays by key: {self._listed()}")
        for key, observation in self.observations.items():
            if key in obs:
                continue
            names = [str(name) for name in itertools.islice(obs, MOST_NAMES_SHOWN)]
            close = difflib.get_close_matches(key, names, 1)
            remedy = "".join(f" Is {name!r} meant? Name it {key!r}." for name in close)
            if observation.start is not None:  # only callers that keep the queue of actions are asked for it
                first = [float(f"{number:.6g}") for number in observation.start]
                remedy += f" It is the action executed before each observation, first {first};"
                remedy += " `act` of an agent fills it in."
            problem = f"observation {key!r} is missing; the policy reads {self._listed()}, found"
            raise ValueError(f"{problem} {', '.join(names) or 'none'}.{remedy}")

    def array(self, key: str, value: Any) -> np.ndarray:
        """A copy of an observation in the type of its kind: a vector takes any real numbers, others their own type."""
        dtype = np.dtype(self.observations[key].dtype)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"observation {key!r} is not an array: {error}") from None
        if array.dtype.kind not in "biuf":
            held = "is None, so its camera or sensor gave nothing" if value is None else f"holds {array.dtype}"
            raise ValueError(f"observation {key!r} {held}; expected numbers")
        is_depth = self.observations[key].kind == "depth"
        if (dtype != np.float32 and array.dtype.newbyteorder("=") != dtype) or (is_depth and array.dtype.kind != "f"):
            raise self.wrong_type(key, array.dtype)
        with np.errstate(over="ignore"):  # what is too large for float32 is reported as not finite
            typed = np.array(array, dtype, order="C")  # of any layout, width and byte order
        if is_depth:  # as in the data, 0 is what the sensor did not measure
            typed[~((typed > 0) & (typed < np.inf))] = 0
        return self.evenly(key, typed) if self.observations[key].kind == "points" else typed

    def evenly(self, key: str, cloud: Any) -> Any:
        """(..., points, n) of any number of points, array or tensor -> as many as the policy reads: evenly spaced ones,
        or each several times."""
        count = self.observations[key].shape[0]
        if cloud.ndim < 2 or cloud.shape[-2] in (0, count):
            return cloud
        return cloud[..., np.arange(count) * cloud.shape[-2] // count, :]

    def wrong_type(self, key: str, dtype: Any) -> ValueError:
        """The error for an observation of another type."""
        observation = self.observations[key]
        remedies = {
            "image": "; give the camera's RGB from 0 to 255 unscaled",
            "depth": ", in metres: of millimetres give depth * 0.001",
        }
        remedy = remedies.get(observation.kind, "")
        expected = f"a policy reads {observation.dtype} for kind {observation.kind!r}{remedy}"
        return ValueError(f"observation {key!r} holds {dtype}; {expected}")

    def check_shape(self, key: str, shape: Sequence[int], rows: int, steps: Collection[int] = ()) -> None:
        """Check that an observation of this whole shape fits, see `check`."""
        observation, row_shape = self.observations[key], tuple(shape[1:])
        if observation.kind in ("image", "depth") and not _fits(row_shape[bool(steps) :], observation.shape):
            raise self._wrong_frame(key, row_shape[bool(steps) :], bool(steps))
        expected = [(count, *observation.shape) for count in dict.fromkeys(steps)] or [observation.shape]
        if not shape or not any(_fits(row_shape, row) for row in expected):
            names, n_axes = ", ".join(observation.names), len(observation.shape)
            is_stacked = not steps and len(row_shape) > n_axes and _fits(row_shape[-n_axes:], observation.shape)
            remedy = ": give the newest observation alone, the agent keeps the history" if is_stacked else ""
            raise ValueError(
                f"observation {key!r} has shape {row_shape if shape else 'no axis of rows'} per row; the policy reads "
                f"{' or '.join(map(str, expected))}{names and f' ({names})'}{remedy}"
            )
        if shape[0] != rows:
            raise ValueError(f"observation {key!r} has {shape[0]} rows; expected {rows}, one for each row that acts")

    def check_values(self, key: str, value: np.ndarray, active: np.ndarray | None = None) -> None:
        """Check that the numbers of an observation are finite, and rotations where the policy reads one."""
        read = value if active is None else value[active]

        def problem(index: int, fault: str) -> ValueError:
            row = index if active is None else int(active[index])
            again = "The observation was not remembered: call again with a good one"
            return ValueError(f"observation {key!r}, row {row}, {fault}. {again}")

        is_whole = self.observations[key].kind != "points"
        if is_whole and value.dtype.kind == "f" and not np.isfinite(read).all():
            first, *element = np.argwhere(~np.isfinite(read))[0].tolist()
            number = read[(first, *element)].item()
            raise problem(first, f"element {element} is {number}; expected a finite number")
        for start, stop, form in self.observations[key].rotations:
            numbers = read[..., start:stop]
            for at in np.argwhere(~is_rotation(numbers, form))[:1].tolist():
                raise problem(at[0], f"slice {[start, stop]}: {not_a_rotation(numbers[tuple(at)].tolist(), form)}")

    def _listed(self) -> str:
        return ", ".join(f"{key} {observation.shape}" for key, observation in self.observations.items())

    def _wrong_frame(self, key: str, shape: tuple[int, ...], has_steps: bool) -> ValueError:
        observation = self.observations[key]
        height, width, channels = observation.shape[-3:]
        if observation.kind == "depth" and len(shape) == 2:
            remedy = "add the axis of the channel, depth[..., None]"
        elif len(shape) == 3 and shape[0] == channels:
            remedy = "move the channels to the end"
        elif len(shape) == 3 and shape[-1] == channels and height:
            remedy = "resize it, or export the policy with --frames, which resizes in the graph"
        elif len(shape) == 2 or (len(shape) == 3 and shape[-1] == 1):
            remedy = "it is greyscale; repeat it for the three channels"
        elif len(shape) == 3 and shape[-1] == 4:
            remedy = "drop the fourth channel"
        else:
            remedy = "give one frame per row" + (" and observation step" if has_steps else "")
        size = f"{height or 'height'}, {width or 'width'}"
        return ValueError(
            f"observation {key!r} has shape {shape} per frame; the policy reads {observation.dtype} ({size}, "
            f"{channels}): {remedy}"
        )


def rate_faults(fps: float, trained: float | None) -> Iterator[str]:
    """Why a loop of this rate does not fit a policy's rate of training; a difference of 5 % does."""
    if trained is not None and not 0.95 <= fps / trained <= 1.05:
        yield (
            f"the loop runs at {fps:g} steps per second, the policy was trained at {trained:g}, so the robot moves "
            f"{fps / trained:.3g} times as fast: call act {trained:g} times per second"
        )


def _trained_entry(observation: Reads) -> dict[str, Any]:
    """The entry of metadata about the training of an observation or of the action: `names`, `low`, `high`, `size`,
    `region`, `turn`, `bgr`, `texts`, and `step`, `distance` and `answers` of a `TrainedMotion`, as far as known. Only
    vectors of one axis that is not too wide for a message have numbers; None is infinity."""
    entry: dict[str, Any] = {}
    is_short = len(observation.shape) == 1 and observation.kind == "vector" and observation.shape[0] <= MOST_NUMBERS
    if is_short and observation.names and max(map(len, observation.names)) <= LONGEST_LABEL:
        entry["names"] = list(observation.names)
    if is_short and observation.range is not None:
        for name, end in zip(("low", "high"), observation.range):  # noqa: B905 (Python 3.8)
            entry[name] = [number if abs(number) < math.inf else None for number in end.tolist()]
    if is_short and observation.motion is not None:
        for name, numbers in (("step", observation.motion.step), ("distance", observation.motion.distance)):
            entry[name] = [float(number) if number < math.inf else None for number in numbers]
        entry["answers"] = [None if answer is None else list(answer) for answer in observation.motion.answers]
    if observation.texts and max(map(len, observation.texts)) <= LONGEST_LABEL:
        entry["texts"] = list(observation.texts)
    frames = {"size": observation.size, "region": observation.region}
    entry.update({name: list(value) for name, value in frames.items() if value is not None})
    entry.update({name: value for name, value in (("turn", observation.turn), ("bgr", observation.bgr)) if value})
    return entry


def as_trained(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Reads` from an entry of metadata about the training of an observation."""
    fields: dict[str, Any] = {name: tuple(entry.get(name, ())) for name in ("names", "texts")}
    if "low" in entry and "high" in entry:
        low, high = (np.array(entry[name], np.float32) for name in ("low", "high"))  # None becomes NaN
        fields["range"] = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    if "answers" in entry:
        step, distance = (np.array(entry[name], np.float64) for name in ("step", "distance"))
        step, distance = (np.where(np.isnan(numbers), np.inf, numbers) for numbers in (step, distance))
        answers = [None if answer is None else (answer[0], answer[1]) for answer in entry["answers"]]
        fields["motion"] = TrainedMotion(step, distance, answers)
    fields.update({name: tuple(entry[name]) for name in ("size", "region") if name in entry})
    fields.update({name: entry[name] for name in ("turn", "bgr") if name in entry})
    return fields


def _fits(shape: Iterable[int], expected: tuple[int | None, ...]) -> bool:
    shape = tuple(shape)
    return len(shape) == len(expected) and all(n == m if m is not None else n > 0 for n, m in zip(shape, expected))  # noqa: B905 (Python 3.8)
