"""A folder of `.npy` arrays over all episodes, padded to one length, and a mask of the steps that exist.

Behavior Transformer's kitchen and block pushing data are stored so; Diffusion Policy trains on them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from dp_prior.data.errors import DataError, MissingError, UnreadableError
from dp_prior.data.files import check_memory, decoding, load_npy, map_npy, npy_header, reading
from dp_prior.data.formats.grouped import EpisodeArrays, GroupedStore, Layout
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.files.regular_files import expanded, open_regular


class MaskedEpisode(EpisodeArrays):
    """See `EpisodeArrays`; one episode of the arrays in a folder, which are mapped into memory."""

    def __init__(
        self,
        folder: Path,
        number: int,
        length: int,
        headers: Layout,
        time_first: bool,
        mapped: Callable[[str], np.ndarray],
    ):
        """Args: mapped: the array of a key over all episodes."""
        self.file, self.where = folder, f"{folder}, episode {number}"
        self._number, self._length, self._headers, self._time_first = number, length, headers, time_first
        self._mapped = mapped

    @cached_property
    def layout(self) -> Layout:
        return {key: ((self._length, *shape[2:]), dtype) for key, (shape, dtype) in self._headers.items()}

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        with decoding(f"{self.where}[{key}]"):
            array = self._mapped(key)
            return np.array(array[first:stop, self._number] if self._time_first else array[self._number, first:stop])


class MaskedArraysConfig(EpisodeStoreRecord):
    """A folder with an `.npy` array for each key, all of (episodes, steps, ...) or (steps, episodes, ...), and the mask
    of the steps that exist. Keys are the names of the files without their ending."""

    type: Literal["masked_arrays"] = "masked_arrays"

    path: Path
    """The folder; relative to the working directory, `~` is the home directory."""

    mask: str | None = None
    """Name of the mask's file without its ending; null takes the one file with `mask` in its name."""

    steps_axis: Literal[0, 1] | None = None
    """Axis of the steps in the mask; null takes the axis along which the mask goes from 1 to 0."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """See `EpisodeStoreRecord`; expects one mask of two axes beside other arrays."""
        masks = _masks(path) if path.is_dir() else []
        if len(masks) != 1:
            return False
        try:
            arrays = _arrays_at(path)
            return len(arrays) > 1 and len(_header(arrays[masks[0]])[0]) == 2
        except (DataError, UnreadableError):
            return False

    def create(self) -> MaskedArraysStore:
        """Read the mask; arrays are read when asked for."""
        path = expanded(self.path)
        if not path.is_dir():
            raise MissingError(str(path.absolute()), ["no such folder; check data.episodes.path"])
        files, masks = _arrays_at(path), _masks(path)
        name = self.mask or (masks[0] if len(masks) == 1 else None)
        if name not in files:
            raise DataError(str(path), [f"has no mask of the steps {name or ''}; name its file in mask: {[*files]}"])
        lengths, time_first = _lengths(files.pop(name), self.steps_axis)
        shape = (max(lengths), len(lengths)) if time_first else (len(lengths), max(lengths))
        headers = {key: _header(file) for key, file in files.items()}
        fitting = {key: header for key, header in headers.items() if _fits(header[0], shape, len(lengths), time_first)}
        if not fitting:
            raise DataError(str(path), [f"has no array that begins with the axes of {name}, {shape}"])
        mapped = lru_cache(1)(lambda key: map_npy(path / f"{key}.npy"))  # a key is read for all episodes in turn
        episodes = [MaskedEpisode(path, n, length, fitting, time_first, mapped) for n, length in enumerate(lengths)]
        return MaskedArraysStore(path, episodes, {key: headers[key] for key in headers.keys() - fitting.keys()})


class MaskedArraysStore(GroupedStore):
    """See `GroupedStore`."""

    def __init__(self, path: Path, episodes: list[MaskedEpisode], unmasked: Layout):
        """Args: unmasked: arrays that do not begin with the axes of the mask."""
        super().__init__(path, "masked arrays", episodes, None)
        self._unmasked = unmasked

    def unread(self) -> dict[str, str]:
        unmasked = sorted(self._unmasked.items())
        return {key: f"{dtype} of shape {shape}, not of that of the mask" for key, (shape, dtype) in unmasked}

    def files(self, keys: Iterable[str]) -> list[Path]:
        return [*_arrays_at(self.path).values()]


def _arrays_at(folder: Path) -> dict[str, Path]:
    with reading(folder):
        return {file.stem: file for file in sorted(folder.glob("*.npy")) if not file.name.startswith(".")}


def _masks(folder: Path) -> list[str]:
    return [name for name in _arrays_at(folder) if "mask" in name.lower()]


def _header(file: Path) -> tuple[tuple[int, ...], np.dtype]:
    with reading(file), decoding(file, "is not a readable .npy file"), open_regular(file) as stream:
        shape, _, dtype = npy_header(stream)
        declared, held = math.prod(shape) * dtype.itemsize, os.fstat(stream.fileno()).st_size - stream.tell()
    if declared != held and not dtype.hasobject:
        raise DataError(str(file), [f"holds {held:,} bytes, but its header declares {declared:,}; copy it again"])
    return shape, dtype


def _fits(shape: tuple[int, ...], least: tuple[int, int], episodes: int, time_first: bool) -> bool:
    """Whether an array has the axes of the mask; an array may be padded further."""
    if len(shape) < 2 or shape[1 if time_first else 0] != episodes:
        return False
    return shape[0] >= least[0] and shape[1] >= least[1]


def _lengths(file: Path, axis: int | None) -> tuple[list[int], bool]:
    """Read the steps of each episode from a mask, and whether the axis of the steps comes first.

    Raises:
        DataError: the file holds no mask, or the axis of the steps is ambiguous.
    """
    shape, dtype = _header(file)
    check_memory(str(file), math.prod(shape) * dtype.itemsize)
    with decoding(file, "is not a readable .npy file"), open(file, "rb") as stream:
        mask = load_npy(stream)
    if mask.ndim != 2 or mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        raise DataError(str(file), [f"holds {mask.dtype} of shape {mask.shape}; expected two axes of 0 and 1"])
    if not mask.any():
        raise DataError(str(file), [f"has no 1 among {mask.shape}; expected one for each step that exists"])
    mask = mask.astype(np.int8)
    candidates = (0, 1) if axis is None else (axis,)
    axes = [candidate for candidate in candidates if (np.diff(mask, axis=candidate) <= 0).all()]
    if len(axes) != 1:
        where = "both axes, so name that of the steps in steps_axis" if axes else "no axis; expected that of the steps"
        raise DataError(str(file), [f"goes from 1 to 0 along {where}"])
    lengths = mask.sum(axis=axes[0])
    if (lengths == 0).any():
        raise DataError(str(file), [f"episode {int(np.argmin(lengths))} has no step; leave it out of all arrays"])
    return lengths.tolist(), axes[0] == 0
