"""Arrays over all episodes in one HDF5 or `.npz` file, and flags at their last steps, as D4RL and OGBench write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dp_prior.data.errors import DataError, UnreadableError, nearest_name
from dp_prior.data.files import check_is_file, check_memory
from dp_prior.data.formats.episode_files import episode_at
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.formats.grouped import Layout
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.frames import FrameContents, FramePart
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray
from dp_prior.data.hdf5 import ENDINGS
from dp_prior.files.regular_files import expanded

FLAGS = ("terminals", "timeouts", "terminations", "truncations", "dones", "done")
"""Default names of flags."""


class FlaggedArraysConfig(EpisodeStoreRecord):
    """One HDF5 or `.npz` file with an array over all episodes for each key, and flags that are true at the last step of
    an episode. Keys are the names of arrays, in HDF5 their paths. Steps after the last flag are an episode too."""

    type: Literal["flagged_arrays"] = "flagged_arrays"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    flags: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Keys any of which is true where an episode ends. null: those of `terminals`, `timeouts`, `terminations`,
    `truncations`, `dones` and `done` that the file has."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """See `EpisodeStoreRecord`; a known flag for each row of most arrays, and no array of episode ends."""
        if path.suffix not in (*ENDINGS, ".npz") or not path.is_file():
            return False
        try:
            layout = episode_at(path).layout
        except (DataError, UnreadableError, ImportError):
            return False  # the usual format of this ending reports the error
        return "episode_ends" not in layout and bool(known_flags(layout))

    def create(self) -> FlaggedArraysStore:
        """Read the flags; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        path = expanded(self.path)
        check_is_file(path, ".hdf5 or .npz")
        return FlaggedArraysStore(path, self.flags)


class FlaggedArraysStore(EpisodeStore):
    """Reads arrays that have a row for every step of all episodes."""

    format = "flagged arrays"

    def __init__(self, path: Path, flags: Sequence[str] | None):
        """
        Args:
            flags: see `FlaggedArraysConfig`.

        Raises:
            DataError: the file lacks the flags, an array is no flag, or no flag is ever true.
        """
        self.path, self._arrays = path, episode_at(path)
        self._layout = self._arrays.layout
        self._flags = tuple(flags or known_flags(self._layout))
        if not self._flags:
            raise DataError(str(path), [f"has none of the flags {', '.join(FLAGS)}; name its own in flags"])
        values = {name: self._flag(name) for name in self._flags}
        counts = {name: len(flag) for name, flag in values.items()}
        self._rows, self._flag_names = counts[self._flags[0]], " or ".join(self._flags)
        if {*counts.values()} != {self._rows}:
            raise DataError(str(path), [f"has flags of different lengths, {counts}; expected one for each step"])
        ends = np.flatnonzero(np.logical_or.reduce([*values.values()])) + 1
        if not len(ends):
            finding = (
                f"has {self._rows} steps, and {self._flag_names} is never true; expected true at the end of an episode"
            )
            raise DataError(str(path), [f"{finding}; name another key in flags"])
        self._after = self._rows - int(ends[-1])
        self.episode_ends = np.append(ends, self._rows) if self._after else ends

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array with a row for each step."""
        return {key: shape[1:] for key, (shape, _) in self._layout.items() if shape[:1] == (self._rows,)}

    def dtype(self, key: str) -> str:
        return self._layout[key][1].name

    def read(self, key: str) -> np.ndarray:
        shape, dtype = self._layout[key]
        check_memory(self.locate(key, 0), math.prod(shape) * dtype.itemsize)
        return self._arrays.rows(key, 0, self._rows)

    def rows(self, key: str) -> int:
        return self._rows

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> ArrayFrames:
        """See `EpisodeStore`; reads blocks of rows in one pass over the file."""
        where = self.locate(key, 0)
        array = PictureArray(where, *self._layout[key], partial(self._arrays.blocks, key))
        parts = [FramePart(where, tuple(range(len(ends))))]
        return ArrayFrames(array, ends, self.path, [self.path], self.format, {"key": key}, parts, contents)

    def unread(self) -> dict[str, str]:
        not_per_step = {
            key: f"{dtype} of shape {shape}, but there are {self._rows} steps"
            for key, (shape, dtype) in self._layout.items()
            if shape[:1] != (self._rows,)
        }
        return not_per_step | self._arrays.lost

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; names the flags that end episodes, and suspicious episodes."""
        lines, short = [f"episodes end where {self._flag_names} is true"], np.diff(self.episode_ends, prepend=0) == 1
        if self._after:
            lines.append(
                f"{self._after} steps follow the last of {self._flag_names}; they are an episode too, perhaps cut off"
            )
        if short.any():
            finding = f"{short.sum()} of {len(short)} episodes have one step, as where a flag stays true"
            lines.append(f"{finding}; name in flags only what is true at last steps")
        return lines

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "flags": list(self._flags)}

    def _flag(self, name: str) -> np.ndarray:
        """Read the flag of each step: (N,) bool.

        Raises:
            DataError: the key does not exist, or is no flag.
        """
        if name not in self._layout:
            raise DataError(str(self.path), [f"has no flag {name!r}. {nearest_name(name, self._layout)}"])
        shape, dtype = self._layout[name]
        if not _may_be_flag(shape, dtype):
            finding = f"is {dtype} of shape {shape}; expected a truth value, or 0 or 1, for each step"
            raise DataError(self.locate(name, 0), [finding])
        values = self._arrays.rows(name, 0, shape[0]).reshape(-1)
        odd = np.flatnonzero((values != 0) & (values != 1))
        if len(odd):
            finding = f"is {values[odd[0]]} at step {odd[0]}; expected a truth value, or 0 or 1, for each step"
            raise DataError(self.locate(name, int(odd[0])), [finding])
        return values != 0


def known_flags(layout: Layout) -> list[str]:
    """The arrays with a name of `FLAGS` and one number for each row of other arrays."""
    rows = {shape[:1] for key, (shape, _) in layout.items() if key not in FLAGS}
    return [key for key in FLAGS if key in layout and layout[key][0][:1] in rows and _may_be_flag(*layout[key])]


def _may_be_flag(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    return len(shape) > 0 and shape[1:] in ((), (1,)) and dtype.kind in "biuf"
