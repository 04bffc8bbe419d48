"""Demonstrations in robomimic's HDF5 layout: `data/demo_N/actions`, `data/demo_N/obs/<key>`, `mask/<filter>`.

Keys are paths below a demonstration (`actions`, `states`, `obs/robot0_eef_pos`); demonstrations are in the order of
their numbers, demo_10 after demo_9.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_is_file, check_memory, decoding
from dp_prior.data.formats.episode_store import EpisodeStore, spans
from dp_prior.data.formats.recording import Recording
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.uneven import lacking, uneven_names
from dp_prior.data.frames import FrameContents
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray, row_bytes
from dp_prior.data.hdf5 import (
    ENDINGS,
    OutsideError,
    are_alike,
    array_at,
    arrays_in,
    check_dataset,
    datasets,
    has_groups,
    import_h5py,
    member,
    missing_part,
    names_beside,
    opened_hdf5,
    row_blocks,
    written_hdf5,
)
from dp_prior.files.durable import creating
from dp_prior.files.home import expanded

if TYPE_CHECKING:
    import h5py

ACTIONS = "actions"
"""Key that every demonstration has, with one row per step."""

GROUPS = '"episodes": {"type": "hdf5_groups", "groups": "data/demo_*"}'
"""The format that reads what this one leaves out, for messages."""

ENCODED = f"PNG or JPEG in rows are read by {GROUPS}"

METADATA = "dp_prior"
"""Attribute of `data` where `dp-prior convert` writes what arrays do not say: `fps`, `tasks` and `names`, in JSON."""

ENVIRONMENT, ROBOSUITE = "env_args", 1
"""Attribute of `data` where robomimic writes the environment, and the number that it gives robosuite there."""

STORED = {"compression": "gzip", "fletcher32": True}
"""How arrays are written: compressed, with a checksum for each chunk."""

_LATER = "to read it, name a list under mask/ of those that have it in filter, or them in groups of " + GROUPS

_ACTIONS_APART = f"if the actions have other names, read them by {GROUPS}, and name them in action.key"

_BESIDE = "neither a demonstration, named data/demo_0 and so on, nor a list of them in this file under mask/"

_DEMO = re.compile(r"demo_\d+")


class RobomimicStoreConfig(EpisodeStoreRecord):
    """One robomimic `.hdf5` file."""

    type: Literal["robomimic"] = "robomimic"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    filter: str | None = None
    """Name of a list under `mask/`, such as `train`: only its demonstrations are read. Null reads all."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return has_groups(path, "data/demo_*")

    def create(self) -> RobomimicStore:
        """Open the file and read its layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        import_h5py()
        return RobomimicStore(**self.arguments())

    def write(self, recording: Recording) -> None:
        """Write one file; a `/` in a name makes groups, and rate, tasks and names are an attribute of `data`.

        Raises:
            DataError: `path` is no name of such a file, or the names of the keys are none of the layout.
            ImportError: h5py is not installed.
        """
        import_h5py()
        if self.path.suffix not in ENDINGS:
            raise DataError(str(self.path), ["is no name of a robomimic file; end it with .hdf5"])
        _check_names(recording)
        arrays = {name: recording.read(name) for name in recording.keys}
        frames = {name: recording.frames(name) for name in recording.cameras}
        bounds = itertools.pairwise([0, *recording.ends.tolist()])
        with creating(self.path) as temporary, written_hdf5(temporary) as file:
            data = file.create_group("data")
            data.attrs["total"] = int(recording.ends[-1])
            data.attrs[METADATA] = json.dumps(recording.metadata)
            for number, (begin, end) in enumerate(bounds):
                demonstration = data.create_group(f"demo_{number}")
                demonstration.attrs["num_samples"] = end - begin
                for name, values in arrays.items():
                    how = STORED if values.size else {}  # a chunk has at least one number
                    demonstration.create_dataset(name, data=values[begin:end], **how)
                for name, blocks in frames.items():
                    block = next(blocks)
                    demonstration.create_dataset(name, data=block, chunks=(1, *block.shape[1:]), **STORED)
            for blocks in frames.values():
                next(blocks, None)  # checks that no frame is left


class RobomimicStore(EpisodeStore):
    """Reads a robomimic file key by key; the file is open only while it is read."""

    format = "robomimic HDF5"

    def __init__(self, path: Path, filter: str | None):
        self.path = path = expanded(path)
        self._filter = filter
        check_is_file(path, ".hdf5")
        with opened_hdf5(self.path, "data") as file:
            group = member(file, "data")
            known = [name for name in group or () if _DEMO.fullmatch(name)]
            self._known = names = sorted(known, key=lambda name: (int(name.removeprefix("demo_")), name))
            if not names:
                raise DataError(str(path), ["has no group data/demo_0; expected the layout of robomimic"])
            if filter is not None:
                names = _filtered(self.path, file, filter, names)
            self.demonstrations = names
            problems, lengths = [], []
            for name in names:
                actions = array_at(group, f"{name}/{ACTIONS}")
                if actions is None or not actions.shape:
                    problems.append(f"data/{name} has no array {ACTIONS!r}; expected one row per step")
                    continue
                declared = member(group, name).attrs.get("num_samples", actions.shape[0])
                if int(declared) != actions.shape[0]:
                    found = f"has {actions.shape[0]} actions, but its attribute num_samples is {declared}"
                    problems.append(f"data/{name} {found}; the file may be incomplete")
                lengths.append(actions.shape[0])
            if problems:
                raise DataError(str(path), problems, "" if lengths else _ACTIONS_APART)
            self._keys, _ = arrays_in(member(group, names[0]))
        self.episode_ends = np.cumsum(np.array(lengths, dtype=np.int64))

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array of the first demonstration that has one row per step."""
        rows = int(self.episode_ends[0])
        return {key: shape[1:] for key, (shape, _) in self._keys.items() if shape and shape[0] == rows}

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; about rows of bytes, and a file without observations, as robosuite records it."""
        objects = [key for key, (_, dtype) in self._keys.items() if dtype.kind == "O"]
        if objects:
            return [f"{', '.join(objects)}: rows of no fixed length. {ENCODED}"]
        if any(key.startswith("obs/") for key in self._keys) or "states" not in self._keys:
            return []
        what = "has no obs/, only `states`: those of the simulator, which begin with its clock and which no robot has"
        return [f"{what}. robomimic's dataset_states_to_obs.py makes observations of them"]

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; arrays without a row for each step, and the lists of demonstrations."""
        rows = int(self.episode_ends[0])
        lists = {
            name: f"a list of {len(places)} demonstrations, for data.choice, split.parts or episodes.filter"
            for name, places in self.parts().items()
        }
        with opened_hdf5(self.path, "its layout") as file:
            found = (datasets(member(file, f"data/{name}")) for name in self.demonstrations)
            names, lost = zip(*(([*arrays], without) for arrays, without in found), strict=True)
            beside = names_beside(file, [f"data/{name}" for name in self._known] + [f"mask/{name}" for name in lists])
        shapes = {
            key: f"{dtype} of shape {shape} in the first demonstration, which has {rows} steps"
            for key, (shape, dtype) in self._keys.items()
            if not shape or shape[0] != rows
        }
        uneven = uneven_names(names, lost, _LATER)
        return {f"mask/{name}": what for name, what in lists.items()} | shapes | uneven | dict.fromkeys(beside, _BESIDE)

    def dtype(self, key: str) -> str:
        """Stored type of an array."""
        return self._keys[key][1].name

    def layout(self, key: str, numbers: Sequence[int] | None = None) -> tuple[tuple[int, ...], np.dtype]:
        """Shape (N, *feature_shape) of a key over all demonstrations, and the dtype, of floats the widest.

        Args:
            numbers: the demonstrations that are read, which are looked at; None for all.

        Raises:
            DataError: the key is missing in a demonstration, has another shape or dtype there, or holds no numbers.
        """
        if key not in self._keys:
            raise DataError(str(self.path), [f"has {self.no_key(key)}"])
        (_, *feature), dtype = self._keys[key]
        problems, without, widest = [], [], dtype
        with opened_hdf5(self.path, key) as file:
            lengths = np.diff(self.episode_ends, prepend=0)
            for number in range(len(lengths)) if numbers is None else numbers:
                name = self.demonstrations[number]
                array, expected = array_at(file, f"data/{name}/{key}"), (int(lengths[number]), *feature)
                if array is None:
                    without.append(number)
                elif array.shape != expected or not are_alike(array.dtype, dtype):
                    found = f"holds {array.dtype} of shape {array.shape}"
                    problems.append(f"data/{name}/{key} {found}; expected {dtype} of shape {expected}")
                elif missing := missing_part(array):
                    problems.append(f"data/{name}/{key} {missing}; the file is incomplete, copy or write it again")
                else:
                    widest = np.promote_types(widest, array.dtype)
                    if dtype.kind in "biuf":
                        check_dataset(array)
        if dtype.kind not in "biuf":
            remedy = "; list the text of each demonstration in data.language.*.texts" if dtype.kind in "OS" else ""
            remedy += f"; {ENCODED}" if dtype.kind == "O" else ""
            problems.append(f"key {key!r} holds {dtype}, which is not a number type{remedy}")
        if without:
            where, own = self.demonstrations[without[0]], self.numbers()[without].tolist()
            problems.append(lacking(key, f"data/{where}", own, f"data/{self.demonstrations[0]}"))
        if problems:
            raise DataError(str(self.path), problems)
        return (int(self.episode_ends[-1]), *feature), widest

    def numbers(self) -> np.ndarray:
        """See `EpisodeStore`; those in the names of the demonstrations."""
        return np.array([int(name.removeprefix("demo_")) for name in self.demonstrations])

    def parts(self) -> dict[str, list[int]]:
        """See `EpisodeStore`; the lists under `mask/`, of the demonstrations that are read."""
        with opened_hdf5(self.path, "mask") as file:
            return _masks(file, self.demonstrations)

    def rows(self, key: str) -> int:
        """See `EpisodeStore`; every demonstration has a row for each step."""
        return int(self.episode_ends[-1])

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype, of floats the widest."""
        return self.episodes(key, self.episode_ends, np.arange(len(self.episode_ends)))

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; only the demonstrations of these episodes are read."""
        shape, dtype = self.layout(key, numbers.tolist())
        count = sum(end - begin for begin, end in spans(ends, numbers))
        check_memory(f"{self.path}[{key}]", count * row_bytes(shape, dtype))
        found = []
        with opened_hdf5(self.path, key) as file:
            for number in numbers.tolist():
                where = f"data/{self.demonstrations[number]}/{key}"
                with decoding(f"{self.path}/{where}"):
                    found.append(array_at(file, where)[()])
        return np.concatenate(found)

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> ArrayFrames:
        """See `EpisodeStore`; such as those of `obs/agentview_image`."""
        layout = self.layout(key, numbers.tolist())
        array = PictureArray(f"{self.path}[{key}]", *layout, partial(self.blocks, key))
        described = {"demonstrations": self.demonstrations}
        return ArrayFrames(array, ends, self.path, [self.path], "robomimic", described, contents=contents)

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """Rows first to stop - 1 in order, at most `step` at once and never of two demonstrations."""
        begin = 0
        for name, end in zip(self.demonstrations, self.episode_ends.tolist(), strict=True):
            if max(first, begin) < min(stop, end):
                with opened_hdf5(self.path, f"{name}/{key}") as file:
                    array = array_at(file, f"data/{name}/{key}")
                    yield from row_blocks(array, max(first, begin) - begin, min(stop, end) - begin, step)
            begin = end

    def locate(self, key: str, row: int) -> str:
        """The demonstration that holds a row, for messages."""
        episode = min(int(np.searchsorted(self.episode_ends, row, side="right")), len(self.demonstrations) - 1)
        return f"{self.path}/data/{self.demonstrations[episode]}/{key}"

    def describe(self) -> dict[str, Any]:
        """Format, place and filter."""
        return {**super().describe(), "filter": self._filter}

    def stored_metadata(self) -> Any:
        """See `EpisodeStore`; of a file that `dp-prior convert` wrote, or the rate of the simulator."""
        with opened_hdf5(self.path, f"attribute {METADATA} of data") as file:
            told = member(file, "data").attrs.get(METADATA)
            if told is not None:
                return json.loads(told)
        return {"fps": (self.environment() or {"make_arguments": {}})["make_arguments"].get("control_freq")}

    def environment(self) -> dict[str, Any] | None:
        """See `EpisodeStore`; robomimic's files have its name and arguments in the attribute `env_args` of `data`."""
        with opened_hdf5(self.path, f"attribute {ENVIRONMENT} of data") as file:
            told = member(file, "data").attrs.get(ENVIRONMENT)
        try:
            found = json.loads(told or "{}")
            task, arguments, kind = found["env_name"], found["env_kwargs"], found["type"]
        except (KeyError, TypeError, ValueError):
            return None
        if kind != ROBOSUITE or not isinstance(task, str) or not isinstance(arguments, dict):
            return None
        return {"type": "robosuite", "task": task, "make_arguments": arguments}


def _filtered(path: Path, file: h5py.File, filter: str, names: list[str]) -> list[str]:
    """The demonstrations of a list under mask/, in the order of their numbers."""
    mask = array_at(file, f"mask/{filter}")
    if mask is None:
        raise DataError(str(path), [f"has no mask/{filter}. {nearest_name(filter, member(file, 'mask') or {})}"])
    check_dataset(mask)
    listed = {name.decode() if isinstance(name, bytes) else str(name) for name in mask[()].tolist()}
    unknown = sorted(listed - set(names))
    if unknown or not listed:
        found = f"names {', '.join(unknown)}, which data/ does not have" if unknown else "is empty"
        raise DataError(str(path), [f"mask/{filter} {found}"])
    return [name for name in names if name in listed]


def _masks(file: h5py.File, names: list[str]) -> dict[str, list[int]]:
    """Places among `names` of the demonstrations of each list under mask/; links to other files are left out."""
    places, found = {name: place for place, name in enumerate(names)}, {}
    with contextlib.suppress(OutsideError):
        for mask in member(file, "mask") or {}:
            with contextlib.suppress(OutsideError):
                array = array_at(file, f"mask/{mask}")
                if array is not None and array.ndim == 1:
                    check_dataset(array)
                    listed = [name.decode("utf-8", "replace") for name in array[()].tolist() if isinstance(name, bytes)]
                    found[mask] = sorted({places[name] for name in listed if name in places})
    return found


def _check_names(recording: Recording) -> None:
    """Raises DataError unless HDF5 can hold all keys and one of them is the actions."""
    names = [*recording.keys, *recording.cameras]
    problems = []
    if ACTIONS not in recording.keys:
        problems.append(f"has no key {ACTIONS!r}, which the layout needs; rename one with --rename action={ACTIONS}")
    for name in names:
        if any(part in ("", ".") for part in name.split("/")) or any(each.startswith(f"{name}/") for each in names):
            problems.append(f"has a key {name!r}, which HDF5 has for a group; rename it with --rename")
    if problems:
        raise DataError(str(recording.store.describe()["path"]), problems)
