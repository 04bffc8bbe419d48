"""A folder with one file per episode: HDF5 as ACT and ALOHA write it, `.npz`, or tables."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, MissingError, UnreadableError, first_few, nearest_name
from dp_prior.data.files import VIDEOS, decoding, reading
from dp_prior.data.formats.grouped import ACTIONS, EpisodeArrays, GroupedStore, Layout, rows_agree, steps_key
from dp_prior.data.formats.hdf5_groups import Hdf5Episode
from dp_prior.data.formats.npz import read_blocks, read_headers, read_metadata
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.table_file import TableEpisode, numbers_columns
from dp_prior.data.found_files import by_number
from dp_prior.data.frames.folder import OWN_FOLDER
from dp_prior.data.hdf5 import ENDINGS, import_h5py
from dp_prior.files.regular_files import check_regular, expanded

_KINDS = ((*ENDINGS, ".npz"), (".parquet",), (".csv",))
"""Endings of episodes, by kind. In a folder the first kind with a file is read; tables beside arrays are notes."""

_MOST_ASKED = 8
"""Most files that are opened to recognise a folder of episodes; the first readable file decides."""


class NpzEpisode(EpisodeArrays):
    """See `EpisodeArrays`; one `.npz` file. Pickled arrays are never decoded."""

    def __init__(self, path: Path):
        self.file, self.where = path, str(path)

    @cached_property
    def layout(self) -> Layout:
        with reading(self.file):
            check_regular(self.file, os.stat(self.file).st_mode)
        return read_headers(self.file)

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        return next(self.blocks(key, first, stop, stop - first))

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """See `EpisodeArrays`; in one pass over the file."""
        with decoding(f"{self.where}[{key}]"):
            yield from read_blocks(self.file, key, first, stop, step)


class EpisodeFilesConfig(EpisodeStoreRecord):
    """A folder with one HDF5, `.npz`, parquet or CSV file per episode. Keys are the names of arrays, in HDF5 their
    paths, such as `observations/qpos` and `observations/images/top`; pictures are arrays, or PNG or JPEG in padded
    rows. Keys of tables are columns; numbered columns, such as `q0`, `q1`, `q2`, are one key, `q`."""

    type: Literal["episode_files"] = "episode_files"

    path: Path
    """The folder; relative to the working directory, `~` is the home directory."""

    files: str = "*"
    """Pattern of the names of the files, which are read in the order of the numbers in their names."""

    steps: str | None = None
    """Key with one row per step. null: `action` or `actions`, else the length that most arrays have."""

    clock: str | None = None
    """Key of the time of each step, where `clocks` names arrays of another rate; its rows are then the steps, unless
    `steps` names another key."""

    clocks: dict[str, str] = {}
    """Arrays of another rate than the steps, such as a camera's pictures, and the key of the times of their rows, in
    the unit of `clock`: at each step the row nearest in time is read."""

    def faults(self) -> Iterator[str]:
        if (self.clock is None) != (not self.clocks):
            yield "clock is the time of the steps, clocks the times of arrays of another rate; give both, or neither"

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """See `EpisodeStoreRecord`; decides by the first file that can be read."""
        files = files_of_episodes(path, "*") if path.is_dir() else []
        try:
            layout = first_layout(files[:_MOST_ASKED])
        except ImportError:
            return True  # the error of `create` names the missing package
        is_signal = len(files) > 1 and (files[0].suffix in ENDINGS or _has_signals(layout))
        is_signal = is_signal and (files[0].suffix != ".parquet" or numbers_columns(files[0]))
        is_signal = is_signal or any(key.startswith(("action_", "action.")) for key in layout)  # such as action_x
        is_other = holds_several(layout) or holds_a_step(layout)
        return not is_other and (steps_key(layout) is not None or (is_signal and rows_agree(layout)))

    def create(self) -> EpisodeFilesStore:
        """Open each file and read its layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        path = expanded(self.path)
        if not path.is_dir():
            raise MissingError(str(path.absolute()), ["no such folder; check data.episodes.path"])
        files = files_of_episodes(path, self.files)
        if not files:
            expected = f"expected {self.files} ending with {', '.join(itertools.chain(*_KINDS))}"
            raise DataError(str(path.absolute()), [f"holds no file of an episode; {expected}"])
        if any(file.suffix in ENDINGS for file in files):
            import_h5py()
        advice = "if it is no episode, say in files which are; if another key has the steps, name it in steps"
        episodes = [episode_at(file) for file in files]
        if self.clock is not None:
            from dp_prior.data.formats.clocks import ClockedEpisode

            episodes = [ClockedEpisode(episode, self.clock, self.clocks) for episode in episodes]
        store = EpisodeFilesStore(path, "one file per episode", episodes, self.steps or self.clock, advice)
        for key in [key for key in self.clocks if key not in store._layout]:
            raise DataError(store.locate(key, 0), [f"clocks names no array. {nearest_name(key, store._layout)}"])
        return store


class EpisodeFilesStore(GroupedStore):
    """See `GroupedStore`."""

    def stored_metadata(self) -> Any:
        """The metadata that a `TickLog` wrote into an `.npz` file."""
        file = self._parts[self._first].file
        return read_metadata(file) if file.suffix == ".npz" else super().stored_metadata()

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; also files and folders beside the episodes."""
        taken = {self.path / part.file.relative_to(self.path).parts[0] for part in self._parts}
        files, folders = defaultdict[str, list[str]](list), {}
        for path in sorted({*self.path.iterdir()} - taken):
            if path.is_dir():
                folders[f"{path.name}/"] = "a folder; frames in it are read if data.images names it"
            else:
                files[f"*{path.suffix}"].append(path.name)
        beside = {}
        for kind, names in files.items():
            remedy = f"; {OWN_FOLDER}" * (kind[1:].lower() in VIDEOS)
            beside[kind] = f"files that are no episodes: {first_few(names)}{remedy}"
        return super().unread() | beside | folders


def episode_at(file: Path) -> EpisodeArrays:
    """Create the episode of a file, without opening the file."""
    if file.suffix in (".parquet", ".csv"):
        return TableEpisode(file)
    return NpzEpisode(file) if file.suffix == ".npz" else Hdf5Episode(file)


def first_layout(files: Iterable[Path]) -> Layout:
    """Read the headers of the first file that can be read; empty if no file can be read."""
    for file in files:
        with contextlib.suppress(DataError, UnreadableError):
            return episode_at(file).layout
    return {}


def holds_several(layout: Layout) -> bool:
    """Whether a file with these arrays is a data set by itself."""
    return "episode_ends" in layout or any(key.startswith(("data/demo_", "traj_")) for key in layout)


def holds_a_step(layout: Layout) -> bool:
    """Whether a file with these arrays is one step: its action is a vector, without an array of more axes beside it."""
    shapes = {key: shape for key, (shape, _) in layout.items()}
    actions = [shape for key, shape in shapes.items() if key.rpartition("/")[2] in ACTIONS]
    if len(shapes) < 2 or not actions or len(actions[0]) > 1:
        return False
    lengths = {shape[:1] for shape in shapes.values()}
    if len(lengths) == 1 and actions[0]:  # each step has one number of action
        return False
    return not any(len(shape) > 1 and shape[:1] == actions[0] for shape in shapes.values())


def _has_signals(layout: Layout) -> bool:
    """Whether floats have at most two axes and some have two; batches of images, with more axes, are `.npz` as well."""
    axes = [len(shape) for shape, dtype in layout.values() if dtype.kind == "f"]
    return 2 in axes and all(len(shape) <= 2 for shape, _ in layout.values())


def files_of_episodes(folder: Path, pattern: str) -> list[Path]:
    """List the files of episodes in a folder, in the order of the numbers in their names.

    Raises:
        DataError: the folder cannot be listed, or the pattern leads out of it.
    """
    expected = f"files is {pattern!r}; expected a pattern of names in the folder, such as '*.npz'"
    if ".." in PurePath(pattern).parts:
        raise DataError(str(folder), [expected])
    with decoding(folder, expected), reading(folder):
        endings = set(itertools.chain(*_KINDS))
        files = [file for file in folder.glob(pattern) if file.suffix in endings and not file.is_dir()]
    for kind in _KINDS:
        episodes = [file for file in files if file.suffix in kind and file.name[0] != "."]
        if episodes:
            return sorted(episodes, key=lambda file: by_number(str(file.relative_to(folder))))
    return []
