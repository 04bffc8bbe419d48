"""Demonstrations in robomimic's HDF5 layout: `data/demo_N/actions`, `data/demo_N/obs/<key>`, `mask/<filter>`.

Keys are paths below a demonstration (`actions`, `states`, `obs/robot0_eef_pos`); demonstrations are in the order of
their numbers, demo_10 after demo_9.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_is_file
from dp_prior.data.hdf5 import import_h5py, opened_hdf5

if TYPE_CHECKING:
    import h5py

ACTIONS = "actions"
"""Key that every demonstration has, with one row per step."""

METADATA = "dp_prior"
"""Attribute of `data` where `dp-prior convert` writes what arrays do not say: `fps`, `tasks` and `names`, in JSON."""

_DEMO = re.compile(r"demo_\d+")
_BLOCK_ROWS = 4096


class RobomimicStoreConfig(Config):
    """One robomimic `.hdf5` file."""

    type: Literal["robomimic"] = "robomimic"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    filter: str | None = None
    """Name of a list under `mask/`, such as `train`: only its demonstrations are read. Null reads all."""

    def create(self) -> RobomimicStore:
        """Open the file and read its layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        import_h5py()
        return RobomimicStore(**self.arguments())


class RobomimicStore:
    """Reads a robomimic file key by key; the file is open only while it is read."""

    def __init__(self, path: Path, filter: str | None):
        self.path = path = path.expanduser()
        self._filter = filter
        check_is_file(path, ".hdf5")
        with opened_hdf5(self.path, "data") as file:
            group = file.get("data")
            known = [name for name in group or () if _DEMO.fullmatch(name)]
            names = sorted(known, key=lambda name: (int(name.removeprefix("demo_")), name))
            if not names:
                raise DataError(str(path), ["has no group data/demo_0; expected the layout of robomimic"])
            if filter is not None:
                names = _filtered(self.path, file, filter, names)
            self.demonstrations = names
            problems, lengths = [], []
            for name in names:
                actions = _array(group[name], ACTIONS)
                if actions is None or not actions.shape:
                    problems.append(f"data/{name} has no array {ACTIONS!r}; expected one row per step")
                    continue
                declared = group[name].attrs.get("num_samples", actions.shape[0])
                if int(declared) != actions.shape[0]:
                    found = f"has {actions.shape[0]} actions, but its attribute num_samples is {declared}"
                    problems.append(f"data/{name} {found}; the file may be incomplete")
                lengths.append(actions.shape[0])
            if problems:
                raise DataError(str(path), problems)
            self._keys = _arrays_in(group[names[0]])
        self.episode_ends = np.cumsum(np.array(lengths, dtype=np.int64))

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array of the first demonstration that has one row per step."""
        rows = int(self.episode_ends[0])
        return {key: shape[1:] for key, (shape, _) in self._keys.items() if shape and shape[0] == rows}

    def dtype(self, key: str) -> str:
        """Stored type of an array."""
        return self._keys[key][1].name

    def layout(self, key: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape (N, *feature_shape) and dtype of a key over all demonstrations.

        Raises:
            DataError: a demonstration does not have it, or another one of it.
        """
        if key not in self._keys:
            hint = nearest_name(key, self._keys)
            raise DataError(str(self.path), [f"data/{self.demonstrations[0]} has no {key!r}. {hint}"])
        (_, *feature), dtype = self._keys[key]
        problems = []
        with opened_hdf5(self.path, key) as file:
            for name, rows in zip(self.demonstrations, np.diff(self.episode_ends, prepend=0), strict=True):
                array, expected = _array(file["data"][name], key), (int(rows), *feature)
                if array is None:
                    problems.append(f"data/{name} has no {key!r}, but data/{self.demonstrations[0]} has one")
                elif array.shape != expected or array.dtype != dtype:
                    found = f"holds {array.dtype} of shape {array.shape}"
                    problems.append(f"data/{name}/{key} {found}; expected {dtype} of shape {expected}")
                elif missing := _missing(array):
                    problems.append(f"data/{name}/{key} {missing}; the file is incomplete, copy or write it again")
        if dtype.kind not in "biuf":
            remedy = "; list the text of each demonstration in data.language.*.texts" if dtype.kind in "OS" else ""
            problems.append(f"key {key!r} holds {dtype}, which is not a number type{remedy}")
        if problems:
            raise DataError(str(self.path), problems)
        return (int(self.episode_ends[-1]), *feature), dtype

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype."""
        shape, dtype = self.layout(key)
        values, row = np.empty(shape, dtype), 0
        for block in self.blocks(key, 0, shape[0], _BLOCK_ROWS):
            values[row : row + len(block)] = block
            row += len(block)
        return values

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """Rows first to stop - 1 in order, at most `step` at once and never of two demonstrations."""
        begin = 0
        for name, end in zip(self.demonstrations, self.episode_ends.tolist(), strict=True):
            for row in range(max(first, begin), min(stop, end), step):
                with opened_hdf5(self.path, f"{name}/{key}") as file:
                    block = file["data"][name][key][row - begin : min(row + step, stop, end) - begin]
                yield block
            begin = end

    def locate(self, key: str, row: int) -> str:
        """The demonstration that holds a row, for messages."""
        episode = min(int(np.searchsorted(self.episode_ends, row, side="right")), len(self.demonstrations) - 1)
        return f"{self.path}/data/{self.demonstrations[episode]}/{key}"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The one file."""
        return [self.path]

    def describe(self) -> dict[str, Any]:
        """Format, place and filter."""
        return {"format": "robomimic HDF5", "path": str(self.path), "filter": self._filter}

    def metadata(self) -> dict[str, Any]:
        """`fps`, `tasks` and `names` of a file that `dp-prior convert` wrote; empty for others."""
        with opened_hdf5(self.path, f"attribute {METADATA} of data") as file:
            return json.loads(file["data"].attrs.get(METADATA, "{}"))


def _filtered(path: Path, file: h5py.File, filter: str, names: list[str]) -> list[str]:
    """The demonstrations of a list under mask/, in the order of their numbers."""
    masks = file.get("mask", {})
    if filter not in masks:
        raise DataError(str(path), [f"has no mask/{filter}. {nearest_name(filter, masks)}"])
    listed = {name.decode() if isinstance(name, bytes) else str(name) for name in masks[filter][()].tolist()}
    unknown = sorted(listed - set(names))
    if unknown or not listed:
        found = f"names {', '.join(unknown)}, which data/ does not have" if unknown else "is empty"
        raise DataError(str(path), [f"mask/{filter} {found}"])
    return [name for name in names if name in listed]


def _array(demonstration: h5py.Group, key: str) -> h5py.Dataset | None:
    import h5py

    found = demonstration.get(key)
    return found if isinstance(found, h5py.Dataset) else None


def _missing(array: h5py.Dataset) -> str | None:
    """What was declared and never written, which HDF5 reads as zeros."""
    if array.chunks is None:
        found = array.id.get_storage_size()
        return f"holds {found} of {array.nbytes} bytes" if found < array.nbytes else None
    grid = (-(-size // length) for size, length in zip(array.shape, array.chunks, strict=True))
    found, expected = array.id.get_num_chunks(), math.prod(grid)
    return f"holds {found} of {expected} chunks" if found < expected else None


def _arrays_in(demonstration: h5py.Group) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every array below a demonstration, by each of its paths; links to other files are left out."""
    import h5py

    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def note(name: str, link: h5py.HardLink | h5py.SoftLink | h5py.ExternalLink) -> None:
        item = None if isinstance(link, h5py.ExternalLink) else demonstration.get(name)
        if isinstance(item, h5py.Dataset):
            found[name] = (item.shape or (), item.dtype)

    demonstration.visititems_links(note)
    return dict(sorted(found.items()))
