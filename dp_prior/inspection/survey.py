"""What is looked at of a data set: all lengths, and the numbers of as many episodes as are read in bounded time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dp_prior.data.convert.recording import COUNTED, TASK, is_camera, is_number, stored_metadata
from dp_prior.data.episodes import EpisodeStore
from dp_prior.data.episodes.excerpt import read_episodes
from dp_prior.data.episodes.lerobot import LeRobotStore
from dp_prior.data.errors import DataError
from dp_prior.data.selection import KeyConfig, checked_ends
from dp_prior.normalizer import Statistics

MOST_NUMBERS = 20_000_000
"""Numbers that are read; of larger data sets evenly spread episodes are read."""

MOST_EPISODES = 500
"""Episodes that are read at most, for each may be a file of its own."""

WIDEST = 1024
"""A key with more numbers in a step is no vector that a policy reads as it is; it is named and not read."""

Role = Literal["observation", "action", "other"]


@dataclass(frozen=True)
class Signal:
    """The numbers of a key.

    Attributes:
        name: in the configuration, or the key.
        values: (n, width) float32, the steps of the episodes that were read.
        columns: what the data set calls each number; empty if it does not say.
    """

    name: str
    key: str
    role: Role
    values: np.ndarray
    columns: list[str]

    def called(self, dimension: int) -> str:
        """A dimension in messages."""
        return f"{dimension} ({self.columns[dimension]})" if self.columns else str(dimension)

    def statistics(self) -> Statistics:
        """Over the finite steps, as a normalizer would be fitted."""
        finite = self.values[np.isfinite(self.values).all(1)]
        return Statistics.of(finite if len(finite) else np.zeros((1, self.values.shape[1])))


@dataclass(frozen=True)
class Survey:
    """A data set as far as it was looked at.

    Attributes:
        lengths: (E,) steps of every episode.
        episodes: (k,) numbers of those that were read.
        clock: (n,) float64 seconds of each step that was read; None if the data set has none.
        texts: the instructions, and how many of the episodes that were read begin with each.
        cameras: keys of pictures, and their shape.
        gaps: what was not looked at, a line each.
    """

    store: EpisodeStore
    described: dict[str, Any]
    lengths: np.ndarray
    episodes: np.ndarray
    signals: list[Signal]
    clock: np.ndarray | None
    texts: dict[str, int]
    cameras: dict[str, tuple[int, ...]]
    problems: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def ends(self) -> np.ndarray:
        """(E,) exclusive end row of each episode."""
        return np.cumsum(self.lengths)

    @property
    def bounds(self) -> np.ndarray:
        """(k + 1,) where each episode that was read begins in the arrays, and their length."""
        return np.concatenate([[0], np.cumsum(self.lengths[self.episodes])])

    @property
    def fps(self) -> float | None:
        """Control steps per second that the data set declares."""
        found = self.described.get("fps")
        return float(found) if isinstance(found, (int, float)) and found > 0 else None

    def of(self, *roles: Role) -> list[Signal]:
        """The signals with one of these roles."""
        return [signal for signal in self.signals if signal.role in roles]

    def place(self, row: int) -> tuple[int, int]:
        """Episode and frame of a row of the arrays."""
        number = int(np.searchsorted(self.bounds, row, side="right")) - 1
        return int(self.episodes[number]), int(row - self.bounds[number])

    def steps(self, values: np.ndarray) -> np.ndarray:
        """(n - 1, ...) differences of neighbouring rows, NaN from one episode to the next."""
        found = np.diff(values, axis=0)
        found[self.bounds[1:-1] - 1] = np.nan
        return found


def survey(store: EpisodeStore, wanted: Mapping[str, tuple[KeyConfig, Role]] | None = None) -> Survey:
    """Look at a data set.

    Args:
        wanted: what a configuration reads of it, by name; None for all keys, by roles that follow from their names.

    Raises:
        DataError: it has no usable episodes.
    """
    ends, problems = checked_ends(store)
    if problems:
        raise DataError(str(store.describe()["path"]), problems)
    shapes, lengths, gaps = store.keys(), np.diff(ends, prepend=0), []
    numbers = [key for key in shapes if is_number(store.dtype(key)) and not is_camera(store.dtype(key), shapes[key])]
    if isinstance(store, LeRobotStore):
        numbers = [key for key in numbers if key not in COUNTED and key != TASK]
    cameras = {key: shape for key, shape in shapes.items() if is_camera(store.dtype(key), shape)}
    if wanted is None:
        roles = roles_of({key: shapes[key] for key in numbers})
        wanted = {key: (KeyConfig(key=key), roles[key]) for key in numbers}
    width = {name: _width(shapes.get(each.key, ())) for name, (each, _) in wanted.items()}
    gaps += [
        f"{name}: {width[name]:,} numbers in a step, more than {WIDEST:,}" for name in width if width[name] > WIDEST
    ]
    wanted = {name: each for name, each in wanted.items() if width[name] <= WIDEST}
    episodes = _chosen(lengths, sum(width[name] for name in wanted))
    described = {**stored_metadata(store), **store.describe()}
    signals, held = [], {}
    for name, (each, role) in wanted.items():
        try:
            if each.key not in held:
                held = {each.key: read_episodes(store, each.key, ends, episodes)}
            values = held[each.key].reshape(int(lengths[episodes].sum()), -1)
        except DataError as error:
            found = [f"{name}: {problem}" for problem in error.problems]
            (gaps if role == "other" else problems).extend(found)
            continue
        columns = list(described.get("names", {}).get(each.key, ()))
        part = slice(*(each.slice or (None,)))
        columns = columns if len(columns) == values.shape[1] else []
        with np.errstate(over="ignore"):
            signals.append(Signal(name, each.key, role, values[:, part].astype(np.float32), columns[part]))
    clock = None
    if "timestamp" in shapes and shapes["timestamp"] in ((), (1,)):
        clock = read_episodes(store, "timestamp", ends, episodes).reshape(-1).astype(np.float64)
    texts: dict[str, int] = {}
    if TASK in shapes:
        try:
            texts = _texts(store, ends, lengths, episodes, described)
        except DataError as error:
            gaps += [f"instructions: {problem}" for problem in error.problems]
    return Survey(store, described, lengths, episodes, signals, clock, texts, cameras, problems, gaps)


def roles_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """Which keys of numbers are probably the action and the observations, by what data sets usually call them."""
    action = next((key for key in ("action", "actions") if len(shapes.get(key, (0, 0))) == 1), None)
    last = {key: key.replace("/", ".").rpartition(".")[2] for key in shapes}
    for test in (
        lambda key: last[key].startswith("state") or key == "observation" or key.endswith("_state"),
        lambda key: key.startswith(("obs/", "observation", "obs.")),
        lambda key: len(shapes[key]) == 1 and shapes[key][0] > 1,
    ):
        observations = [key for key in shapes if key != action and len(shapes[key]) <= 1 and test(key)]
        if observations:
            break
    return {key: "action" if key == action else "observation" if key in observations else "other" for key in shapes}


def _width(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _chosen(lengths: np.ndarray, width: int) -> np.ndarray:
    """Numbers of evenly spread episodes that hold at most `MOST_NUMBERS` numbers; at least one."""
    most = min(MOST_EPISODES, max(1, int(MOST_NUMBERS / max(1.0, lengths.mean() * width))))
    count = min(len(lengths), most)
    return np.arange(count) * len(lengths) // count


def _texts(
    store: EpisodeStore, ends: np.ndarray, lengths: np.ndarray, episodes: np.ndarray, described: dict[str, Any]
) -> dict[str, int]:
    """Instructions, and how many of these episodes begin with each."""
    first = np.cumsum(lengths[episodes]) - lengths[episodes]
    numbers = read_episodes(store, TASK, ends, episodes).reshape(-1)[first]
    texts = store.tasks() if isinstance(store, LeRobotStore) else dict(enumerate(described.get("tasks", ())))
    found = [texts.get(int(number), "") for number in numbers]
    return dict(Counter(found).most_common()) if any(found) else {}
