"""The arrays that a configuration selects from an episode store: mapped to our names, checked, float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.formats.choice import ChoiceConfig, leaving_out
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.onboard.rotation_check import is_rotation, not_a_rotation
from dp_prior.tensors.rotations import RotationSlice
from dp_prior.tensors.slices import Slice, slice_faults

ACTION = "x"
"""Key of the action among columns, statistics and normalizers; the action is the diffused variable."""


class KeyConfig(Config):
    """The key of one observation, or of the action, in the data set."""

    key: str
    """Its name in the data set."""

    slice: Slice | None = None
    """Take only elements start..stop of the first feature axis, stop excluded, as [start, stop]; null takes all."""

    rotations: tuple[RotationSlice, ...] = ()
    """Elements that are rotations, counted among those taken. They stay as they are in the data and in actions; the
    policy reads and predicts them as 6D."""


def read_selected(
    store: EpisodeStore, keys: dict[str, KeyConfig], choice: ChoiceConfig
) -> tuple[dict[str, np.ndarray], Chosen, list[str]]:
    """Read and check the configured keys.

    Returns:
        (N, *shape) float32 contiguous array of each of our keys, the chosen episodes, and warnings.

    Raises:
        DataError: all problems in one report.
    """
    chosen, problems = choice.of(store)
    ends = chosen.ends
    raw, unread = _read_keys(store, keys, chosen)
    problems += unread
    arrays: dict[str, np.ndarray] = {}
    for name, wanted in keys.items():
        if wanted.key in raw:
            values = raw[wanted.key]
            problem = _wrong_shape(name, wanted, values) or _not_numbers(values)
            if problem:
                problems.append(f"{_called(name)}: {store.locate(wanted.key, 0)}: {problem}")
            else:
                arrays[name] = _as_float32(values, wanted)
    lengths = {key: len(values) for key, values in raw.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} {length}" for key, length in sorted(lengths.items()))
        problems.append(f"keys have different numbers of rows: {listed}; every key needs one row per step")
    rows = min(lengths.values(), default=0)
    warnings = []
    if len(ends) and lengths and ends[-1] > rows:
        problems.append(f"the last episode ends at row {ends[-1]}, but there are only {rows} rows")
    elif len(ends) and lengths and ends[-1] < rows:
        warnings.append(f"{rows - ends[-1]} rows after the last episode's end, row {ends[-1]}, are not used")
    for name, array in arrays.items():
        problems += _non_finite(store, name, keys[name], raw[keys[name].key], array, chosen)
        problems += _not_rotations(store, name, keys[name], array, chosen)
    if problems:
        raise DataError(str(store.describe()["path"]), problems)
    return {name: array[: ends[-1]] for name, array in arrays.items()}, chosen, warnings


def _read_keys(
    store: EpisodeStore, keys: dict[str, KeyConfig], chosen: Chosen
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The stored arrays by key, each read once, and why others are not read."""
    known, problems = store.keys(), []
    raw: dict[str, np.ndarray | None] = {}
    for name, wanted in keys.items():
        if wanted.key not in known:
            hint = nearest_name(wanted.key, known)
            problems.append(f"{_called(name)}: the data set has no key {wanted.key!r}. {hint}")
        elif picture := _is_picture(name, wanted.key, store.dtype(wanted.key), known[wanted.key]):
            problems.append(f"{_called(name)}: {store.locate(wanted.key, 0)}: {picture}")
        elif wanted.key not in raw:
            try:
                raw[wanted.key] = chosen.read(store, wanted.key)
            except DataError as error:
                raw[wanted.key] = None
                problems += [f"{_called(name)}: {error.source}: {problem}" for problem in error.problems]
    return {key: values for key, values in raw.items() if values is not None}, problems


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


def _wrong_shape(name: str, wanted: KeyConfig, values: np.ndarray) -> str | None:
    shape = values.shape[1:] or (1,)
    if wanted.slice is not None:
        start, stop = wanted.slice
        if stop > shape[0]:
            return f"slice [{start}, {stop}] reaches past the {shape[0]} elements of {wanted.key!r}"
        shape = (stop - start, *shape[1:])
    if 0 in shape:
        return f"{wanted.key!r} has shape {shape} per step, which is empty"
    if name == ACTION and len(shape) != 1:
        return f"{wanted.key!r} has shape {shape} per step; an action has one axis"
    if wanted.rotations and len(shape) != 1:
        return f"{wanted.key!r} has shape {shape} per step; rotations are slices of a vector"
    slices = [rotation.slice for rotation in wanted.rotations]
    return next((f"{wanted.key!r}, rotations: {fault}" for fault in slice_faults(slices, shape[0])), None)


def _not_numbers(values: np.ndarray) -> str | None:
    if values.dtype.kind in "biuf":
        return None
    return f"holds {values.dtype}, which is not a number type; expected float, integer or boolean"


def _as_float32(values: np.ndarray, wanted: KeyConfig) -> np.ndarray:
    """(N, *shape) contiguous float32; a number per step becomes one dimension."""
    values = values[:, None] if values.ndim == 1 else values
    if wanted.slice is not None:
        values = values[:, slice(*wanted.slice)]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def _non_finite(
    store: EpisodeStore, name: str, wanted: KeyConfig, raw: np.ndarray, array: np.ndarray, chosen: Chosen
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
        found = array[row].ravel()[element]
        cause = "" if not np.isfinite(raw[row]).all() else " (too large for float32)"
        problems.append(
            f"{where}: {store.locate(wanted.key, chosen.recorded_row(row))}: key {wanted.key!r}, episode {episode}, "
            f"frame {frame}, dimension {element} is {found}{cause}"
        )
    if len(bad) > 5:
        problems.append(f"{where}: key {wanted.key!r}: {len(bad) - 5} more rows are not finite")
    remedy = f"repair the values, or {leaving_out(chosen.owners(bad))}"
    problems.append(f"{where}: values that are not finite cannot be trained on; {remedy}")
    return problems


def _not_rotations(
    store: EpisodeStore, name: str, wanted: KeyConfig, array: np.ndarray, chosen: Chosen
) -> Iterator[str]:
    """For each rotation, how many rows hold none, and the first of them; rows that are not finite are told already."""
    for index, rotation in enumerate(wanted.rotations):
        values = array[: chosen.ends[-1] if len(chosen.ends) else None, slice(*rotation.slice)]
        is_good = is_rotation(values, rotation.form) | ~np.isfinite(values).all(1)
        bad = np.flatnonzero(~is_good)
        if len(bad):
            episode, frame = chosen.place(int(bad[0]))
            row = chosen.recorded_row(bad[0])
            yield (
                f"{_called(name)}.rotations.{index}: {store.locate(wanted.key, row)}: key {wanted.key!r}, "
                f"slice {list(rotation.slice)}, episode {episode}, frame {frame}: "
                f"{not_a_rotation(values[bad[0]].tolist(), rotation.form)} ({len(bad)} such rows)"
            )
