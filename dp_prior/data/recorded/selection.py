"""The arrays that a configuration selects from an episode store: mapped to our names, checked, float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from dp_prior.config import Config
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig, leaving_out
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore, misread_ends
from dp_prior.tensors.rotations import RotationSlice
from dp_prior.tensors.slices import Slice, slice_faults
from dp_prior_client.onboard.rotation_check import is_rotation, not_a_rotation

if TYPE_CHECKING:
    from dp_prior.data.recorded.named_numbers import Places

ACTION = "x"
"""Key of the action among columns, statistics and normalizers; the action is the diffused variable."""


class KeyConfig(Config):
    """The key of one observation in the data set, or several keys whose numbers are joined."""

    key: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Its name in the data set. A list of names joins their numbers in this order into one vector, values of several
    axes row by row; slices and rotations are counted over the whole."""

    slice: Slice | None = None
    """Take only elements start..stop of the first feature axis, stop excluded, as [start, stop]; null takes all."""

    names: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Take only the numbers with these names of the data set, in this order, such as ["shoulder_pan.pos",
    "gripper.pos"]. `inspect` lists the names; null chooses no number by name."""

    rotations: tuple[RotationSlice, ...] = ()
    """Elements that are rotations, counted among those taken. They stay as they are in the data and in actions; the
    policy reads and predicts them as 6D."""

    def faults(self) -> Iterator[str]:
        if self.names is None:
            return
        if self.slice is not None:
            yield f"slice is {list(self.slice)} and names {list(self.names)}; both choose numbers, so remove one"
        if repeated := sorted({name for name in self.names if self.names.count(name) > 1}):
            yield f"names has {repeated} twice; take each number once"

    @property
    def stored_keys(self) -> tuple[str, ...]:
        """The names in the data set, in order."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def called(self) -> str:
        """The names in messages."""
        return " + ".join(map(repr, self.stored_keys))

    @property
    def is_flat(self) -> bool:
        """Whether values of several axes become one vector, the last axis fastest; otherwise they keep their axes."""
        return not isinstance(self.key, str)

    def places(self, names: Mapping[str, Sequence[str]], shapes: Mapping[str, Sequence[int]]) -> Places:
        """Which numbers are taken, counted over the whole; see `places_of`.

        Args:
            names: the data set's names of the numbers, by its key.
            shapes: of a step, by its key.

        Raises:
            ValueError: the data set does not have the numbers of `names`.
        """
        if self.names is None:
            return slice(*(self.slice or (None,)))
        from dp_prior.data.recorded.named_numbers import places_of

        numbers: list[str] = []
        for key in self.stored_keys:
            width = math.prod(shapes[key])
            numbers += names[key] if len(names.get(key, ())) == width else [""] * width
        return places_of(self.names, numbers, self.called)

    def joined(self, parts: Sequence[np.ndarray], places: Places, dtype: Any = np.float32) -> np.ndarray:
        """(N, *shape) contiguous array of the numbers at `places`; a number per step becomes one dimension."""
        rows = min(map(len, parts))
        flat = [
            part[:rows].reshape(rows, math.prod(part.shape[1:])) if self.is_flat or part.ndim == 1 else part[:rows]
            for part in parts
        ]
        with np.errstate(over="ignore"):
            whole = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1, dtype=dtype, casting="unsafe")
            return np.ascontiguousarray(whole[:, places], dtype=dtype)

    def in_time(self, values: np.ndarray, ends: np.ndarray, stride: int) -> np.ndarray:
        """(N, *shape): for each row the values that are its own.

        Args:
            ends: (E,) exclusive end row of each episode; the last is N.
            stride: rows from one step to the next.
        """
        return values

    def dimensions(self, names: Mapping[str, Sequence[str]]) -> list[str]:
        """The data set's name of each number taken, by `names` of each key; empty unless every key has names."""
        if self.names is not None:
            return list(self.names)
        names_by_key = [names.get(key, ()) for key in self.stored_keys]
        if not all(names_by_key):
            return []
        return [*chain.from_iterable(names_by_key)][slice(*(self.slice or (None,)))]


class ActionConfig(KeyConfig):
    """The key of the action. Values of several axes, such as two arms of 7 numbers, become one vector."""

    ahead: int = Field(default=0, ge=0)
    """Take the values of this many steps later in the episode; its last value repeats at the end. 1 with the key of an
    observation is the action of demonstrations that recorded none, such as kinesthetic teaching and hand-held grippers:
    the position reached next."""

    @property
    def is_flat(self) -> bool:
        return True

    def in_time(self, values: np.ndarray, ends: np.ndarray, stride: int) -> np.ndarray:
        if not self.ahead:
            return values
        rows, last = np.arange(len(values)), np.repeat(ends - 1, np.diff(ends, prepend=0))
        return values[np.minimum(rows + self.ahead * stride, last - (last - rows) % stride)]


def read_selected(
    store: EpisodeStore,
    keys: dict[str, KeyConfig],
    choice: ChoiceConfig = ALL_EPISODES,
    stride: int = 1,
    max_rows: int | None = None,
) -> tuple[dict[str, np.ndarray], Chosen, list[str]]:
    """Read and check the configured keys.

    Args:
        choice: the episodes that are read.
        stride: rows from one step to the next, for keys that take the values of later steps.
        max_rows: see `SplitConfig`.

    Returns:
        (N, *shape) float32 contiguous array of each of our keys, the chosen episodes, and warnings.

    Raises:
        DataError: all problems in one report.
    """
    chosen, problems = choice.of(store)
    chosen = chosen.first(max_rows)
    ends = chosen.ends
    raw, unread = _read_keys(store, keys, chosen)
    problems += unread
    places, unknown = _places(store, keys)
    problems += unknown
    arrays: dict[str, np.ndarray] = {}
    for name, numbers in places.items():
        selection = keys[name]
        parts = [raw[key] for key in selection.stored_keys if key in raw]
        if len(parts) == len(selection.stored_keys):
            faults = [_not_numbers(store.locate(key, 0), raw[key]) for key in selection.stored_keys]
            faults = [*filter(None, [*faults, _wrong_shape(store, selection, parts)])]
            problems += [f"{_called(name)}: {fault}" for fault in faults]
            if not faults:
                arrays[name] = selection.joined(parts, numbers)
    lengths = {key: len(values) for key, values in raw.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} {length}" for key, length in sorted(lengths.items()))
        problems.append(f"keys have different numbers of rows: {listed}; every key needs one row per step")
    rows = min(lengths.values(), default=0)
    warnings = []
    if len(ends) and lengths and ends[-1] > rows:
        problems.append(f"the last episode ends at row {ends[-1]}, but there are only {rows} rows")
    elif len(ends) and lengths and ends[-1] < rows:
        surplus = f"{rows - ends[-1]} rows after the last episode's end, row {ends[-1]}, are not used"
        warnings.append(f"{surplus}{misread_ends(chosen.recorded, rows)}")
    for name, selection in keys.items():
        warnings += _flattened(store, name, selection)
    for name, array in arrays.items():
        problems += _non_finite(store, name, keys[name], raw, array, chosen, places[name])
        problems += _not_rotations(store, name, keys[name], array, chosen)
    if problems:
        raise DataError(store.where, problems)
    selected = {name: keys[name].in_time(array[: ends[-1]], ends, stride) for name, array in arrays.items()}
    return selected, chosen, warnings


def _read_keys(
    store: EpisodeStore, keys: dict[str, KeyConfig], chosen: Chosen
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The stored arrays by key, each read once, and why others are not read."""
    shapes, problems = store.keys(), []
    raw: dict[str, np.ndarray | None] = {}
    stored_keys = []
    for name, selection in keys.items():
        stored_keys += [(name, key) for key in selection.stored_keys]
    store.expect(key for _, key in stored_keys if key in shapes)
    for name, key in stored_keys:
        if key not in shapes:
            problems.append(f"{_called(name)}: the data set has {store.no_key(key)}")
        elif picture := _is_picture(name, key, store.dtype(key), shapes[key]):
            problems.append(f"{_called(name)}: {store.locate(key, 0)}: {picture}")
        elif key not in raw:
            try:
                raw[key] = chosen.read(store, key)
            except DataError as error:
                raw[key] = None
                problems += [f"{_called(name)}: {error.source}: {problem}" for problem in error.problems]
    store.expect(())
    return {key: values for key, values in raw.items() if values is not None}, problems


def _places(store: EpisodeStore, keys: Mapping[str, KeyConfig]) -> tuple[dict[str, Places], list[str]]:
    """Which numbers are taken, by our keys, and why others cannot be."""
    shapes, places, problems = store.keys(), {}, []
    names = store.metadata()["names"] if any(selection.names is not None for selection in keys.values()) else {}
    for name, selection in keys.items():
        if not set(selection.stored_keys) <= shapes.keys():
            continue
        try:
            places[name] = selection.places(names, shapes)
        except ValueError as error:
            problems += [f"{_called(name)}.{line}" for line in str(error).splitlines()]
    return places, problems


def _flattened(store: EpisodeStore, name: str, selection: KeyConfig) -> Iterator[str]:
    """A line for each point cloud and each depth that is read as one long vector."""
    for field, shapes in (("points", store.clouds()), ("depth", store.depths())):
        for key in shapes.keys() & set(selection.stored_keys):
            numbers = f"read as a vector of {math.prod(shapes[key]):,} numbers"
            finding = f"{_called(name)}: {key!r} of {shapes[key]} per step is {numbers}"
            yield f"{finding}; to read it as {field}, name it in data.{field} instead"


def _called(name: str) -> str:
    return "action" if name == ACTION else f"obs.{name}"


def _is_picture(name: str, key: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Why bytes of three or more axes are no state; None for everything else. Asked before anything is read."""
    if dtype not in ("uint8", "image", "video") or len(shape) < 3:  # the latter two are LeRobot's
        return None
    height, width = shape[1:3] if shape[0] in (1, 3, 4) else shape[:2]
    return (
        f"{key!r} holds {dtype} of shape {shape} per step, which is a picture; `obs` reads states. Move it beside "
        f'`obs`: "images": {{"{name}": {{"key": "{key}", "size": [{height}, {width}]}}}}, where size is what the '
        f"policy sees; or store the numbers as float32 if they are a state"
    )


def _wrong_shape(store: EpisodeStore, selection: KeyConfig, parts: Sequence[np.ndarray]) -> str | None:
    shapes = [part.shape[1:] or (1,) for part in parts]
    shape = (sum(map(math.prod, shapes)),) if selection.is_flat else shapes[0]
    where = f"{store.locate(selection.stored_keys[0], 0)}: {selection.called}"
    if selection.names is not None:
        shape = (len(selection.names),) if len(shape) == 1 else shape
    if selection.slice is not None:
        start, stop = selection.slice
        if stop > shape[0]:
            return f"{where}: slice [{start}, {stop}] reaches past the {shape[0]} elements of {selection.called}"
        shape = (stop - start, *shape[1:])
    if 0 in (*shape, *map(math.prod, shapes)):
        return f"{where} has shape {' and '.join(map(str, shapes))} per step, which is empty"
    if (selection.rotations or selection.names) and len(shape) != 1:
        reason = "names choose numbers" if selection.names else "rotations are slices"
        remedy = f'to flatten them, give a list: "key": ["{selection.key}"]'
        return f"{where} has shape {shape} per step; {reason} of a vector; {remedy}"
    slices = [rotation.slice for rotation in selection.rotations]
    return next((f"{where}, rotations: {fault}" for fault in slice_faults(slices, shape[0])), None)


def _not_numbers(where: str, values: np.ndarray) -> str | None:
    if values.dtype.kind in "biuf":
        return None
    return f"{where}: holds {values.dtype}, which is not a number type; expected float, integer or boolean"


def _non_finite(
    store: EpisodeStore,
    name: str,
    selection: KeyConfig,
    raw: Mapping[str, np.ndarray],
    array: np.ndarray,
    chosen: Chosen,
    places: Places,
) -> list[str]:
    """The first five rows of an array that are not finite, by file, episode, frame and key."""
    bad = np.flatnonzero(~np.isfinite(array).all(axis=tuple(range(1, array.ndim))))
    if len(chosen.ends):
        bad = bad[bad < chosen.ends[-1]]
    if len(bad) == 0:
        return []
    where, problems = _called(name), []
    for row in bad[:5]:
        episode, frame = chosen.place(row)
        element = int(np.flatnonzero(~np.isfinite(array[row].ravel()))[0])
        number = array[row].ravel()[element]
        key = _key_of(element, selection, raw, places)
        is_stored = all(np.isfinite(raw[stored][row]).all() for stored in selection.stored_keys)
        cause = " (too large for float32)" if is_stored else ""
        problems.append(
            f"{where}: {store.locate(key, chosen.recorded_row(row))}: key {selection.called}, episode {episode}, "
            f"frame {frame}, dimension {element} is {number}{cause}"
        )
    if len(bad) > 5:
        problems.append(f"{where}: key {selection.called}: {len(bad) - 5} more rows are not finite")
    remedy = f"repair the values, or {leaving_out(chosen.owners(bad))}"
    problems.append(f"{where}: values that are not finite cannot be trained on; {remedy}")
    return problems


def _key_of(element: int, selection: KeyConfig, raw: Mapping[str, np.ndarray], places: Places) -> str:
    """The key that an element of a row, counted among those taken, is stored under."""
    ends = np.cumsum([raw[key][0].size for key in selection.stored_keys])
    place = np.arange(ends[-1])[places][element] if selection.is_flat else element
    return selection.stored_keys[int(np.searchsorted(ends[:-1], place, side="right"))]


def _not_rotations(
    store: EpisodeStore, name: str, selection: KeyConfig, array: np.ndarray, chosen: Chosen
) -> Iterator[str]:
    """For each rotation, how many rows hold none, and the first of them; rows that are not finite are told already."""
    for index, rotation in enumerate(selection.rotations):
        values = array[: chosen.ends[-1] if len(chosen.ends) else None, slice(*rotation.slice)]
        is_good = is_rotation(values, rotation.form) | ~np.isfinite(values).all(1)
        bad = np.flatnonzero(~is_good)
        if len(bad):
            episode, frame = chosen.place(int(bad[0]))
            row = chosen.recorded_row(bad[0])
            yield (
                f"{_called(name)}.rotations.{index}: {store.locate(selection.stored_keys[0], row)}: "
                f"key {selection.called}, slice {list(rotation.slice)}, episode {episode}, frame {frame}: "
                f"{not_a_rotation(values[bad[0]].tolist(), rotation.form)} ({len(bad)} such rows)"
            )
