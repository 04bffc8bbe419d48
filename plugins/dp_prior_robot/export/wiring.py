"""Wiring: what a policy reads and commands, in the names of LeRobot's robots, with everything that can be compared.

A robot of LeRobot gives one vector, `observation.state`, whose numbers have names, and a frame per camera,
`observation.images.NAME`. A policy has observations of its own names, each the whole vector, some of its numbers, or a
camera.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from dp_prior.config import ConfigError
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.recorded.camera import ImageConfig
from dp_prior.data.recorded.named_numbers import Places, places_of
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.tensors.batch import Spec, X
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_robot.export.lerobot_source import SOURCE, STATE, TASK, placed_source, source_at, split_source

_CAMERA = "observation.images.NAME"
_EXPECTED = {"vector": STATE, "image": _CAMERA, "depth": _CAMERA, "text": TASK}


class Wiring(NamedTuple):
    """Inputs and outputs that a robot must have; None where unknown."""

    keys: dict[str, str]
    """LeRobot's key of each observation that the policy reads, perhaps with the numbers, see `split_source`."""

    widths: dict[str, int]
    """Numbers in each vector, by LeRobot's key."""

    state_names: list[str] | None
    """Names of the numbers of `observation.state`, in order; of those read alone where only their names are known."""

    state_range: list[list[float] | None]
    """Lowest and highest value in training of each number of `observation.state`; None for numbers that are not read,
    or are parts of a rotation."""

    action_names: list[str] | None
    """Names of the numbers of an action, in order."""

    frame_sizes: dict[str, list[int]]
    """Height and width of the frames that a camera recorded, by LeRobot's key; a camera of unknown size is missing."""

    fps: float | None
    """Control steps per second."""


class _Recorded(NamedTuple):
    """The data set of training, as far as it is known."""

    settings: TrajectoriesConfig | None
    """None if the policy was saved by itself."""

    names: Mapping[str, Sequence[str]]
    """Names of the numbers of each vector, by key; empty if the files are not on this machine."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of a step by key; without the files those of frames alone, or none."""

    fps: float | None
    """Control steps per second, where the files say it."""


def wired(
    spec: Spec,
    reads: ObsSpec,
    chosen: Mapping[str, str],
    data: TrajectoriesConfig | None = None,
    store: EpisodeStore | None = None,
    frames: Mapping[str, tuple[int, ...]] | None = None,
) -> Wiring:
    """The wiring of a policy.

    Args:
        spec: of the policy.
        reads: its observations, with their ranges in training.
        chosen: LeRobot's key by the policy's observation, where the recorded names are others; numbers by their
            names, too: `observation.state[a.pos,b.pos]`.
        data: the data set of training; None if the policy was saved by itself.
        store: its opened files; None if they are not on this machine.
        frames: height and width of recorded frames by key, known without the files.

    Raises:
        ConfigError: no robot gives an observation, or a chosen key does not fit.
    """
    read = {key: obs for key, obs in reads.observations.items() if obs.start is None}  # agents know past actions
    if store is None:
        recorded = _Recorded(data, {}, frames or {}, None)
    else:
        metadata = store.metadata()
        recorded = _Recorded(data, metadata["names"], store.keys(), metadata["fps"])
    state_names = _named_numbers(read, data, chosen) if store is None else []
    keys = _keys(read, chosen, recorded, state_names)
    widths = _widths(read, keys, recorded.shapes)
    width, sources = widths.get(STATE, 0), {key: split_source(source) for key, source in keys.items()}
    parts = {key: part for key, (source, part) in sources.items() if source == STATE}
    action_names = list(spec.names.get(X, ())) or ([] if data is None else data.action.dimensions(recorded.names))
    is_every_row = data is not None and data.stride == 1
    return Wiring(
        keys=keys,
        widths=widths,
        state_names=_state_names(read, parts, width, recorded),
        state_range=_state_range(read, parts, width),
        action_names=action_names if len(action_names) == spec.x_shape[-1] else None,
        frame_sizes=dict(_frame_sizes(read, keys, recorded)),
        fps=recorded.fps if spec.fps is None and is_every_row else spec.fps,
    )


def _keys(
    read: Mapping[str, Reads], chosen: Mapping[str, str], recorded: _Recorded, state_names: Sequence[str]
) -> dict[str, str]:
    """LeRobot's key of each observation, see `Wiring.keys`; all faults in one report.

    Args:
        state_names: see `_named_numbers`.
    """
    unknown = [key for key in chosen if key not in read]
    problems = [f"{key!r} is no observation of the policy, which are: {', '.join(read)}" for key in unknown]
    keys: dict[str, str] = {}
    for key, observation in read.items():
        try:
            source = chosen.get(key) or _recorded_source(observation, key, recorded, state_names)
            keys[key] = placed_source(source, recorded.names)
        except ValueError as error:
            problems += [f"{key!r}: {line}" for line in str(error).splitlines()]
    for key, source in keys.items():
        problems += _faults(key, read[key], source, recorded.shapes)
    if problems:
        raise ConfigError("--keys", problems)
    return keys


def _named_numbers(read: Mapping[str, Reads], data: TrajectoriesConfig | None, chosen: Mapping[str, str]) -> list[str]:
    """The names of the numbers of `observation.state` that are read, each once, where a configuration chose them by
    their names and the data set is away: these alone are the state then. Empty where slices say the places."""
    parts = [] if data is None else [key for key, column in data.obs.items() if column.stored_keys == (STATE,)]
    is_by_name = any(data.obs[key].names is not None for key in parts)
    if not is_by_name or any(key in chosen or not read[key].names for key in parts):
        return []
    return list(dict.fromkeys(chain.from_iterable(read[key].names for key in parts)))


def _recorded_source(observation: Reads, key: str, recorded: _Recorded, state_names: Sequence[str]) -> str:
    """Where the data set had an observation, in the form of `Wiring.keys`; "" if it is not one column.

    Args:
        state_names: see `_named_numbers`.

    Raises:
        ValueError: the places of its numbers are unknown.
    """
    data = recorded.settings
    if observation.kind == "text":
        return TASK
    if data is not None and key in data.cameras:
        return data.cameras[key].key or ""
    if data is None or key not in data.obs or len(data.obs[key].stored_keys) > 1:
        return ""
    stored, chosen = data.obs[key].stored_keys[0], data.obs[key].names
    if stored == STATE and state_names:
        return source_at(STATE, places_of(observation.names, state_names, STATE))
    if chosen is not None and stored not in recorded.shapes:
        raise ValueError(
            f"the data set is not on this machine, so nothing says where {', '.join(chosen)} stand in {stored}; export "
            f"where it is, or say where: --keys {key}={stored}[START:STOP]"
        )
    return source_at(stored, data.obs[key].places(recorded.names, recorded.shapes))


def _faults(key: str, observation: Reads, source: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Why a robot cannot give an observation under this key."""
    kind, shape = observation.kind, observation.shape
    expected = _EXPECTED.get(kind)
    if expected is None:
        yield f"{key!r} is of kind {kind!r}, which no robot of LeRobot gives; serve the policy instead"
        return
    match = SOURCE.fullmatch(source)
    is_fit = match is not None and (match["key"] == TASK) == (kind == "text")
    is_camera = match is not None and not match["part"] and match["key"].startswith("observation.image")
    if not is_fit or (expected == _CAMERA and not is_camera):
        was = f"is {source!r}" if source else "is no single column of the data"
        part = f", or a part of it, {STATE}[0:{shape[0]}]" if kind == "vector" else ""
        yield f"{key!r} {was}, which no robot gives; say where it is: --keys {key}={expected}{part}"
        return
    count = _count(split_source(source)[1]) if match["part"] else None
    width = math.prod(shapes.get(match["key"], (math.inf,)))
    if count is not None and count != shape[0]:
        yield f"{key!r} has {shape[0]} numbers, but {source} has {count}"
    elif count is not None and _reach(source) > width:
        yield f"{key!r} is {source}, but {match['key']} has {width} numbers in the data set"
    elif kind == "vector" and len(shape) != 1:
        yield f"{key!r} has shape {shape} per step; a robot gives vectors"


def _count(places: Places) -> int:
    """How many numbers these places are."""
    return places.stop - places.start if isinstance(places, slice) else len(places)


def _reach(source: str) -> int:
    """One past the last number of a source that names places."""
    places = split_source(source)[1]
    return places.stop if isinstance(places, slice) else max(places) + 1


def _places(places: Places, width: int) -> list[int]:
    """The place of each number in a vector of this width."""
    return [*range(width)[places]] if isinstance(places, slice) else places


def _widths(read: Mapping[str, Reads], keys: Mapping[str, str], shapes: Mapping[str, tuple]) -> dict[str, int]:
    widths: dict[str, int] = {}
    for key, observation in read.items():
        if observation.kind == "vector":
            source, part = split_source(keys[key])
            reach = observation.shape[0] if part == slice(None) else _reach(keys[key])
            wide = shapes[source][0] if len(shapes.get(source, ())) == 1 else reach
            widths[source] = max(widths.get(source, 0), wide)
    return widths


def _state_names(
    read: Mapping[str, Reads], parts: Mapping[str, Places], width: int, recorded: _Recorded
) -> list[str] | None:
    data, recorded_names = recorded.settings, recorded.names
    if len(recorded_names.get(STATE, ())) == width > 0:
        return list(recorded_names[STATE])
    names = [""] * width
    for key, part in parts.items():
        dimensions = list(read[key].names)
        if not dimensions and data is not None and key in data.obs:
            dimensions = data.obs[key].dimensions(recorded_names)
        places = _places(part, width)
        if len(dimensions) == len(places):
            for place, name in zip(places, dimensions, strict=True):
                names[place] = name
    return names if all(names) and names else None


def _state_range(read: Mapping[str, Reads], parts: Mapping[str, Places], width: int) -> list[list[float] | None]:
    ranges: list[list[float] | None] = [None] * width
    for key, part in parts.items():
        if read[key].range is not None:
            every = zip(*(end.tolist() for end in read[key].range), strict=True)
            for place, ends in zip(_places(part, width), every, strict=True):
                ranges[place] = list(ends) if all(map(math.isfinite, ends)) else None
    return ranges


def _frame_sizes(
    read: Mapping[str, Reads], keys: Mapping[str, str], recorded: _Recorded
) -> Iterator[tuple[str, list[int]]]:
    for key, observation in read.items():
        if _EXPECTED[observation.kind] != _CAMERA:
            continue
        shape = observation.shape
        if None in shape:  # frames of any size are resized as in training, from the recorded size
            camera = None if recorded.settings is None else recorded.settings.cameras.get(key)
            is_rendered = isinstance(camera, ImageConfig) and camera.render
            shape = camera.resize.drawn if is_rendered else recorded.shapes.get(camera and camera.key, ())
        if len(shape) >= 2:
            is_first = len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
            height, width = shape[1:] if is_first else shape[:2]
            yield keys[key], [int(height), int(width)]
