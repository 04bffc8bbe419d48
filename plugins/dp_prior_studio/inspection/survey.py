"""A bounded sample of a data set: all episode lengths, and the values of up to 500 episodes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import SMALLEST_FLOAT_CAMERA, TASK, EpisodeStore
from dp_prior.data.recorded.selection import ActionConfig, KeyConfig
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_studio.inspection.roles import Role, clock_key, is_sensor, named_action, roles_of
from dp_prior_studio.inspection.unused import action_hint, is_of_episodes, unused_keys

MOST_NUMBERS = 20_000_000
"""Numbers that are read; of larger data sets evenly spread episodes are read."""

MOST_EPISODES = 500
"""Most episodes that are read, since each may be a file of its own."""

MOST_ROWS = 20_000
"""Rows by which signals are compared with each other, and quaternions are recognised."""

FEW_STEPS = 64
"""Numbers that differ by fewer steps of float32 are too coarse to learn from."""

WIDEST = 1024
"""A key with more numbers in a step is no vector that a policy reads directly; the survey names such a key and does not
read it."""

SMALLEST_PICTURE = 16
"""Height and width from which bytes without three channels are proposed as a camera."""

_NO_COLOURS = re.compile("point|cloud|pcd|xyz|normal|flow|coord", re.IGNORECASE)

NO_PICTURE = re.compile("mask|segm|label|depth|tactile", re.IGNORECASE)


@dataclass(frozen=True)
class Signal:
    """The numbers of a key.

    Attributes:
        name: in the configuration, or the key.
        key: in the data set; of several, how messages call them.
        keys: in the data set.
        values: (n, width) float32, the steps of the episodes that were read.
        columns: the data set's name of each number; empty if the numbers have no names.
        rotations: the rotations that a configuration declares.
        is_whole: whether integers or truth values are stored.
        inexact: (width,) bool, numbers that float32, which training reads, cannot hold or distinguish.
    """

    name: str
    key: str
    keys: tuple[str, ...]
    role: Role
    values: np.ndarray
    columns: list[str]
    rotations: tuple[RotationSlice, ...] = ()
    is_whole: bool = False
    inexact: np.ndarray | None = None

    def called(self, dimension: int) -> str:
        """A dimension in messages."""
        return f"{dimension} ({self.columns[dimension]})" if self.columns else str(dimension)

    def statistics(self) -> Statistics:
        """Over the finite steps, as a normalizer would be fitted."""
        finite = self.values[np.isfinite(self.values).all(1)]
        return Statistics.of(finite if len(finite) else np.zeros((1, self.values.shape[1])))


@dataclass(frozen=True)
class Survey:
    """A bounded sample of a data set.

    Attributes:
        chosen: the episodes, of which a configuration may leave some out.
        episodes: (k,) places among the chosen episodes of all that were read.
        clock: (n,) float64 seconds of each step that was read; None if the data set has none.
        texts: the number of read episodes that begin with each instruction.
        cameras: keys of pictures, and their shape.
        depths, clouds: keys of depth and of point clouds, and their shape.
        gaps: a line for each part that was not looked at.
        unused: type, shape and meaning of every key that is neither signal nor camera.
        is_divided: whether a configuration divides the episodes by parts of the data set.
        damaged: own numbers of the episodes without a step that can be read, which are not chosen.
        damage: the faults of damaged episodes; empty if all are sound.
    """

    store: EpisodeStore
    described: dict[str, Any]
    chosen: Chosen
    episodes: np.ndarray
    signals: list[Signal]
    clock: np.ndarray | None
    texts: dict[str, int]
    cameras: dict[str, tuple[int, ...]]
    depths: dict[str, tuple[int, ...]]
    clouds: dict[str, tuple[int, ...]]
    problems: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    is_divided: bool = False
    damaged: list[int] = field(default_factory=list)
    damage: str = ""

    @property
    def lengths(self) -> np.ndarray:
        """(E,) steps of every episode."""
        return self.chosen.lengths

    @property
    def count(self) -> int:
        """Episodes, damaged ones too."""
        return len(self.lengths) + len(self.damaged)

    @property
    def numbers(self) -> np.ndarray:
        """(k,) own numbers of the episodes that were read."""
        return np.array(self.chosen.named(self.episodes), np.int64)

    @property
    def bounds(self) -> np.ndarray:
        """(k + 1,) where each episode that was read begins in the arrays, and their length."""
        return np.concatenate([[0], np.cumsum(self.lengths[self.episodes])])

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """Own number of each episode that was read, and where the episode begins and ends in the arrays."""
        bounds = self.bounds.tolist()
        return list(zip(self.numbers.tolist(), bounds[:-1], bounds[1:], strict=True))

    @property
    def fps(self) -> float | None:
        """Control steps per second that the data set declares."""
        rate = self.described["fps"]
        return None if rate is None else float(rate)

    @property
    def period(self) -> float | None:
        """Seconds of a usual step by the timestamps; None without timestamps that increase."""
        steps = np.full(1, np.nan) if self.clock is None else self.steps(self.clock)
        seconds = np.median(steps[np.isfinite(steps)]) if np.isfinite(steps).any() else 0.0
        return float(seconds) if seconds > 0 else None

    @property
    def action_hint(self) -> str:
        """The setting to write for the action where no key has that name."""
        shapes = {key: shape for key, shape in self.store.keys().items() if self.store.is_number(key)}
        moving = [signal for signal in self.of("observation") if self._changes_within_episodes(signal)]
        return action_hint(shapes, [signal.key for signal in moving])

    def _changes_within_episodes(self, signal: Signal) -> bool:
        """Whether an episode has more than one value, unlike the pose at its start, repeated in every step."""
        return any((signal.values[first:stop] != signal.values[first]).any() for _, first, stop in self.spans)

    def of(self, *roles: Role) -> list[Signal]:
        """The signals with one of these roles."""
        return [signal for signal in self.signals if signal.role in roles]

    def place(self, row: int) -> tuple[int, int]:
        """Own number of the episode, and frame, of a row of the arrays."""
        place = int(np.searchsorted(self.bounds, row, side="right")) - 1
        return int(self.numbers[place]), int(row - self.bounds[place])

    def owners(self, rows: np.ndarray) -> list[int]:
        """Own numbers of the episodes that hold these rows of the arrays."""
        return self.numbers[np.unique(np.searchsorted(self.bounds, rows, side="right") - 1)].tolist()

    def steps(self, values: np.ndarray) -> np.ndarray:
        """(n - 1, ...) differences of neighbouring rows, NaN from one episode to the next."""
        differences = np.diff(values, axis=0)
        differences[self.bounds[1:-1] - 1] = np.nan
        return differences


def survey(
    store: EpisodeStore,
    keys: Mapping[str, tuple[KeyConfig, Role]] | None = None,
    choice: ChoiceConfig = ALL_EPISODES,
    max_rows: int | None = None,
    action: ActionConfig | None = None,
) -> Survey:
    """Look at a data set.

    Args:
        keys: the keys that a configuration reads and their roles, by name; None for all keys, whose roles follow from
            their names.
        choice, max_rows: of episodes by the configuration.
        action: the action among all keys; None for the key with its name.

    Raises:
        DataError: the data set has no usable episodes.
    """
    chosen, damage = _usable_episodes(store, choice, is_configured=keys is not None)
    chosen = chosen.first(max_rows)
    shapes, unread = store.keys(), store.unread()
    sensors = _Sensors(_cameras(store), store.depths(), store.clouds())
    if keys is None:
        sensors = sensors.without({*unread, *(key for key in shapes if not is_sensor(key))})
        keys = _all_numbers(store, {*sensors.keys, *unread}, action)
    widths = {name: _width(entry, shapes) for name, (entry, _) in keys.items()}
    vectors = {name: entry for name, entry in keys.items() if widths[name] <= WIDEST}
    episodes = _chosen(chosen.lengths, sum(widths[name] for name in vectors))
    reader = _SurveyReader(store, chosen, episodes)
    used = set(sensors.keys)
    for name, (entry, role) in keys.items():
        if name not in vectors:
            reader.gaps.append(f"{name}: {widths[name]:,} numbers in a step, more than {WIDEST:,}")
        if name not in vectors or role != "other":
            used.update(entry.stored_keys)
    signals, clock, texts = reader.signals(vectors), reader.clock(), reader.texts()
    return Survey(
        store=store,
        described=reader.described,
        chosen=chosen,
        episodes=episodes,
        signals=signals,
        clock=clock,
        texts=texts,
        cameras=sensors.cameras,
        depths=sensors.depths,
        clouds=sensors.clouds,
        problems=reader.problems,
        gaps=reader.gaps,
        unused=unused_keys(store, used, len(texts), unread),
        **damage,
    )


def _usable_episodes(store: EpisodeStore, choice: ChoiceConfig, is_configured: bool) -> tuple[Chosen, dict[str, Any]]:
    """The chosen episodes that can be read, and the fields of a `Survey` about the damaged ones.

    Raises:
        DataError: the data set has no usable episodes; of a configured data set, an episode is damaged.
    """
    chosen, problems = choice.of(store)
    if not problems:
        return chosen, {}
    is_sound = chosen.lengths > 0
    if is_configured or (chosen.lengths < 0).any() or not is_sound.any():
        raise DataError(store.where, problems)
    damaged = chosen.named(np.flatnonzero(~is_sound))
    sound = replace(chosen, numbers=chosen.numbers[is_sound])
    return sound, {"damaged": damaged, "damage": "; ".join(problems[:-1])}


class _Sensors(NamedTuple):
    """The shapes of cameras, of depth and of point clouds, by key."""

    cameras: dict[str, tuple[int, ...]]
    depths: dict[str, tuple[int, ...]]
    clouds: dict[str, tuple[int, ...]]

    @property
    def keys(self) -> set[str]:
        return {*self.cameras, *self.depths, *self.clouds}

    def without(self, keys: Collection[str]) -> _Sensors:
        """The sensors but some, by key."""
        remaining = []
        for shapes in self:
            remaining.append({key: shape for key, shape in shapes.items() if key not in keys})
        return _Sensors(*remaining)


def _width(entry: KeyConfig, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers in a step of the stored keys of an entry."""
    return sum(math.prod(shapes.get(key, ())) for key in entry.stored_keys)


class _SurveyReader:
    """Reads values of some episodes of a data set.

    Attributes:
        described: the store's description and metadata.
        problems: a line for each fault of a signal, which then is missing.
        gaps: a line for each other part that cannot be read.
    """

    def __init__(self, store: EpisodeStore, chosen: Chosen, episodes: np.ndarray):
        """Args: episodes: places among the chosen episodes."""
        self.described: dict[str, Any] = {**store.describe(), **store.metadata()}
        self.problems: list[str] = []
        self.gaps: list[str] = []
        self._store, self._chosen, self._episodes = store, chosen, episodes
        self._shapes, self._lengths = store.keys(), chosen.lengths[episodes]
        self._newest: tuple[str, np.ndarray] | None = None  # several signals may be parts of one key

    def signals(self, keys: Mapping[str, tuple[KeyConfig, Role]]) -> list[Signal]:
        """The signals of these keys that can be read."""
        signals = []
        ends = np.cumsum(self._lengths)
        for name, (entry, role) in keys.items():
            with self._guarded(name, self.gaps if role == "other" else self.problems):
                values = np.concatenate([self._values(key) for key in entry.stored_keys], axis=1)
                signals.append(_signal(name, entry, role, values, ends, self.described["names"], self._shapes))
        return signals

    def clock(self) -> np.ndarray | None:
        """(n,) float64 seconds of each step; None if the data set has no timestamps."""
        with self._guarded("timestamps", self.gaps):
            key = clock_key(self._shapes)
            if key is not None:
                clock = self._values(key)[:, 0].astype(np.float64)
                steps = np.diff(clock)
                if key != "timestamp" and (steps[steps > 0] == 1).all():
                    return None  # numbers of the steps
                return clock if self.described["fps"] is not None else clock * _unit(clock)
        return None

    def texts(self) -> dict[str, int]:
        """The number of episodes that begin with each instruction; empty without instructions."""
        texts: dict[str, int] = {}
        task = self._store.text_key or TASK
        with self._guarded("instructions", self.gaps):
            if self._shapes.get(task) in ((), (1,)):
                text_of, numbers = self._store.texts(), self._values(task)[:, 0]
                texts = _texts(text_of, numbers, self._lengths)
                unknown = sorted(set(numbers.tolist()) - text_of.keys())
                if text_of and unknown:  # without texts it is a column of another meaning
                    problem = f"{task} has {first_few(unknown)}, but no text has this number"
                    raise DataError(self._store.where, [f"{problem}; expected {first_few(sorted(text_of))}"])
        return texts

    @contextmanager
    def _guarded(self, name: str, lines: list[str]) -> Iterator[None]:
        """Add the faults of a part of the data set to `lines`, in place of an error."""
        try:
            yield
        except DataError as error:
            lines += [f"{name}: {problem}" for problem in error.placed(self._store.path)]

    def _values(self, key: str) -> np.ndarray:
        """(n, width) numbers of a key; those of the newest key are remembered.

        Raises:
            DataError: there is no such key, or its values are not numbers or cannot be read.
        """
        if self._newest is None or self._newest[0] != key:
            self._newest = key, self._read(key)
        return self._newest[1]

    def _read(self, key: str) -> np.ndarray:
        store = self._store
        if key not in self._shapes:
            raise DataError(store.where, [f"has {store.no_key(key)}"])
        if 0 in self._shapes[key]:
            raise DataError(store.locate(key, 0), [f"has shape {self._shapes[key]} per step, which is empty"])
        values = store.episodes(key, self._chosen.recorded, self._chosen.numbers[self._episodes])
        if values.dtype.kind not in "biuf":
            raise DataError(store.locate(key, 0), [f"holds {values.dtype}, which is not a number type"])
        return values.reshape(len(values), -1)


def _cameras(store: EpisodeStore) -> dict[str, tuple[int, ...]]:
    """The store's cameras, and arrays of bytes that are probably pictures: greyscale, or with a fourth channel.

    A conversion copies the latter as numbers, for they may be masks of objects.
    """
    cameras = store.cameras()
    for key, shape in store.keys().items():
        planes = shape if len(shape) == 2 else [length for length in shape if length not in (1, 4)]
        is_large = len(shape) in (2, 3) and len(planes) == 2 and min(planes) >= SMALLEST_PICTURE
        is_grey = is_large and store.dtype(key) == "uint8"
        if (is_grey or _has_colours(store, key)) and not NO_PICTURE.search(key):
            cameras[key] = tuple(shape)
    return cameras


def _has_colours(store: EpisodeStore, key: str) -> bool:
    """Whether a key has three colours in each of many pixels, of any type of number: floats from 0 to 1 too, which no
    frame is read from, so that the refusal says how to convert them."""
    if _NO_COLOURS.search(key):
        return False
    shape = store.keys()[key]
    sides = [length for length in shape if length >= SMALLEST_FLOAT_CAMERA]
    return len(shape) == 3 and 3 in (shape[0], shape[2]) and len(sides) == 2 and store.is_number(key)


def _all_numbers(
    store: EpisodeStore, cameras: Collection[str], action: ActionConfig | None
) -> dict[str, tuple[KeyConfig, Role]]:
    """All numeric keys of steps with the roles that their names suggest, given the action that the user names."""
    no_numbers = {*cameras, *store.counted, store.text_key}
    keys = {key: shape for key, shape in store.keys().items() if key not in no_numbers and 0 not in shape}
    shapes = {key: shape for key, shape in keys.items() if store.is_number(key)}
    actions = {named_action(shapes)} if action is None else {*action.stored_keys}  # one that lacks rows is a fault
    shapes = {key: shape for key, shape in shapes.items() if key in actions or not is_of_episodes(store, key)}
    if action is None:
        return {key: (KeyConfig(key=key), role) for key, role in roles_of(shapes).items()}
    used = () if action.ahead else action.stored_keys  # what is observed is the action of the step before, too
    roles = roles_of({key: shape for key, shape in shapes.items() if key not in {*used, "action", "actions"}})
    return {key: (KeyConfig(key=key), role) for key, role in roles.items()} | {"action": (action, "action")}


def _signal(
    name: str,
    config: KeyConfig,
    role: Role,
    values: np.ndarray,
    ends: np.ndarray,
    names: Mapping[str, list[str]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Signal:
    """Select the numbers of an entry, and describe them.

    Args:
        values: (n, width) of all keys of the entry.
        names, shapes: of a step, by key, of these and other keys.

    Raises:
        DataError: the entry selects numbers that the keys do not have.
    """
    width = values.shape[1]
    start, stop = config.slice or (0, width)
    if stop > width:
        raise DataError(config.called, [f"slice {[start, stop]} reaches past the {width} elements of {config.called}"])
    try:
        taken = values[:, config.places(names, shapes)]
    except ValueError as error:
        raise DataError(config.called, str(error).splitlines()) from None
    with np.errstate(over="ignore"):
        numbers = config.in_time(taken.astype(np.float32), ends, 1)
    columns = config.dimensions(names)
    key = config.stored_keys[0] if len(config.stored_keys) == 1 else config.called
    columns = columns if len(columns) == taken.shape[1] else []
    extras = {"is_whole": values.dtype.kind in "biu", "inexact": _inexact(taken)}
    return Signal(name, key, config.stored_keys, role, numbers, columns, config.rotations, **extras)


def _inexact(values: np.ndarray) -> np.ndarray:
    """(width,) bool, see `Signal`: beyond float32, or within a few of its steps of each other."""
    if values.dtype.itemsize <= 4 or not len(values):
        return np.zeros(values.shape[1], bool)
    with np.errstate(all="ignore"):
        low, high = (end(values.astype(np.float64), axis=0) for end in (np.fmin.reduce, np.fmax.reduce))
        largest = np.maximum(abs(low), abs(high))
        steps = np.spacing(largest.astype(np.float32)).astype(np.float64)
        is_fine = (high - low > 0) & (high - low < FEW_STEPS * steps)
        return np.isfinite(largest) & (~np.isfinite(largest.astype(np.float32)) | is_fine)


def spread_rows(total: int) -> np.ndarray:
    """(n,) at most `MOST_ROWS` rows of a signal, evenly spread from the first to the last, by which it is compared."""
    return np.linspace(0, total - 1, min(MOST_ROWS, total)).astype(np.int64)


def _chosen(lengths: np.ndarray, width: int) -> np.ndarray:
    """Numbers of evenly spread episodes that hold at most `MOST_NUMBERS` numbers; at least one."""
    largest = min(MOST_EPISODES, max(1, int(MOST_NUMBERS / max(1.0, lengths.mean() * width))))
    return evenly_spread(len(lengths), largest).numpy()


def _unit(clock: np.ndarray) -> float:
    """Seconds in one unit of a clock, which counts s, ms, us or ns: the largest that leaves a step at most 2 s."""
    steps = np.diff(clock)
    period = np.median(steps[steps > 0]) if (steps > 0).any() else 0.0
    return next((10.0**-power for power in (0, 3, 6) if period * 10.0**-power <= 2), 1e-9)


def _texts(texts: Mapping[int, str], numbers: np.ndarray, lengths: np.ndarray) -> dict[str, int]:
    """The number of episodes that begin with each instruction.

    Args:
        texts: instructions by number.
        numbers: (n,) of the instruction of each step.
        lengths: (k,) steps of each episode.
    """
    first_texts = [texts.get(number, "") for number in numbers[np.cumsum(lengths) - lengths].tolist()]
    return dict(Counter(first_texts).most_common()) if any(first_texts) else {}
