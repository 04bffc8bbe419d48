"""ObsSpec: what a policy reads, and the one check of observations from outside: a robot, an environment, a client."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dp_prior.onboard.rotation_check import is_rotation, not_a_rotation

MOST_NAMES_SHOWN = 20


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
    """Lowest and highest values in training, of shape `shape`; None where they are not known."""


class ObsSpec:
    """The observations that a policy reads, by key."""

    def __init__(self, observations: Mapping[str, Reads]):
        self.observations = dict(observations)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ObsSpec:
        """From what a server says of its policy, see docs/robot.md."""
        found, rotations = {}, metadata.get("rotations", {})
        for key, one in metadata["obs"].items():
            turns, start = rotations.get(key, ()), one.get("start")
            found[key] = Reads(tuple(one["shape"]), one["dtype"], one["kind"], turns, start)
        return cls(found)

    def metadata(self) -> dict[str, Any]:
        """The inverse of `from_metadata`; without ranges."""
        obs = {}
        for key, one in self.observations.items():
            obs[key] = {"shape": list(one.shape), "dtype": one.dtype, "kind": one.kind}
            if one.start is not None:
                obs[key]["start"] = list(one.start)
        rotations = {key: [list(rotation) for rotation in one.rotations] for key, one in self.observations.items()}
        return {"obs": obs, "rotations": rotations}

    def first_actions(self) -> dict[str, np.ndarray]:
        """The previous action at the first step of an episode, by the key that holds it."""
        starts = {key: one.start for key, one in self.observations.items() if one.start is not None}
        return {key: np.array(start, np.float32) for key, start in starts.items()}

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
        for key, one in self.observations.items():
            if texts and one.kind == "text" and all(isinstance(text, str) for text in obs[key]):
                checked[key] = np.array(obs[key])
            else:
                checked[key] = self.array(key, obs[key])
                self.check_shape(key, checked[key].shape, rows, steps)
        for key, value in checked.items():
            self.check_values(key, value, active)
        return checked

    def check_names(self, obs: Mapping[str, Any]) -> None:
        """Whether every observation is there."""
        if not isinstance(obs, Mapping):
            found = type(obs).__name__
            raise TypeError(f"observations are a {found}; expected a dict of arrays by key: {self._listed()}")
        for key, one in self.observations.items():
            if key in obs:
                continue
            names = [str(name) for name in itertools.islice(obs, MOST_NAMES_SHOWN)]
            close = difflib.get_close_matches(key, names, 1)
            remedy = "".join(f" Is {name!r} meant? Name it {key!r}." for name in close)
            if one.start is not None:  # only callers that keep the queue of actions are asked for it
                first = [float(f"{number:.6g}") for number in one.start]
                remedy += f" It is the action executed before each observation, first {first};"
                remedy += " `act` of an agent fills it in."
            problem = f"observation {key!r} is missing; the policy reads {self._listed()}, found"
            raise ValueError(f"{problem} {', '.join(names) or 'none'}.{remedy}")

    def array(self, key: str, value: Any) -> np.ndarray:
        """A copy of an observation in the type of its kind: a vector takes any real numbers, others their own type."""
        wanted = np.dtype(self.observations[key].dtype)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"observation {key!r} is not an array: {error}") from None
        if array.dtype.kind not in "biuf":
            raise ValueError(f"observation {key!r} holds {array.dtype}; expected numbers")
        if wanted != np.float32 and array.dtype.newbyteorder("=") != wanted:
            raise self.wrong_type(key, array.dtype)
        with np.errstate(over="ignore"):  # what is too large for float32 is reported as not finite
            return np.array(array, wanted, order="C")  # of any layout, width and byte order

    def wrong_type(self, key: str, found: Any) -> ValueError:
        """The error for an observation of another type."""
        one = self.observations[key]
        remedy = "; give the camera's RGB from 0 to 255 unscaled" if one.kind == "image" else ""
        expected = f"a policy reads {one.dtype} for kind {one.kind!r}{remedy}"
        return ValueError(f"observation {key!r} holds {found}; {expected}")

    def check_shape(self, key: str, shape: Sequence[int], rows: int, steps: Collection[int] = ()) -> None:
        """Whether an observation of this whole shape fits, see `check`."""
        one, found = self.observations[key], tuple(shape[1:])
        if one.kind == "image" and not _fits(found[bool(steps) :], one.shape):
            raise self._wrong_frame(key, found[bool(steps) :], bool(steps))
        wanted = [(count, *one.shape) for count in dict.fromkeys(steps)] or [one.shape]
        if not shape or not any(_fits(found, each) for each in wanted):
            is_stacked = not steps and len(found) > len(one.shape) and _fits(found[-len(one.shape) :], one.shape)
            remedy = ": give the newest observation alone, the agent keeps the history" if is_stacked else ""
            raise ValueError(
                f"observation {key!r} has shape {found if shape else 'no axis of rows'} per row; the policy reads "
                f"{' or '.join(map(str, wanted))}{remedy}"
            )
        if shape[0] != rows:
            raise ValueError(f"observation {key!r} has {shape[0]} rows; expected {rows}, one for each row that acts")

    def check_values(self, key: str, value: np.ndarray, active: np.ndarray | None = None) -> None:
        """Whether the numbers of an observation are finite, and rotations where the policy reads one."""
        read = value if active is None else value[active]

        def problem(index: int, what: str) -> ValueError:
            row = index if active is None else int(active[index])
            again = "The observation was not remembered: call again with a good one"
            return ValueError(f"observation {key!r}, row {row}, {what}. {again}")

        if value.dtype.kind == "f" and not np.isfinite(read).all():
            first, *element = np.argwhere(~np.isfinite(read))[0].tolist()
            found = read[(first, *element)].item()
            raise problem(first, f"element {element} is {found}; expected a finite number")
        for start, stop, form in self.observations[key].rotations:
            numbers = read[..., start:stop]
            for at in np.argwhere(~is_rotation(numbers, form))[:1].tolist():
                raise problem(at[0], f"slice {[start, stop]}: {not_a_rotation(numbers[tuple(at)].tolist(), form)}")

    def _listed(self) -> str:
        return ", ".join(f"{key} {one.shape}" for key, one in self.observations.items())

    def _wrong_frame(self, key: str, found: tuple[int, ...], has_steps: bool) -> ValueError:
        height, width, channels = self.observations[key].shape[-3:]
        if len(found) == 3 and found[0] == channels:
            remedy = "move the channels to the end"
        elif len(found) == 2 or (len(found) == 3 and found[-1] == 1):
            remedy = "it is greyscale; repeat it for the three channels"
        elif len(found) == 3 and found[-1] == 4:
            remedy = "drop the fourth channel"
        else:
            remedy = "give one frame per row" + (" and observation step" if has_steps else "")
        size = f"{height or 'height'}, {width or 'width'}"
        return ValueError(
            f"observation {key!r} has shape {found} per frame; the policy reads uint8 ({size}, {channels}): {remedy}"
        )


def _fits(found: Iterable[int], wanted: tuple[int | None, ...]) -> bool:
    found = tuple(found)
    return len(found) == len(wanted) and all(n == m if m is not None else n > 0 for n, m in zip(found, wanted))  # noqa: B905 (Python 3.8)
