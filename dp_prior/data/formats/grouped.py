"""Episodes that are stored apart, each with arrays of its own: one file, or one group of a file, for each episode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_memory
from dp_prior.data.formats.episode_store import EpisodeStore, spans
from dp_prior.data.formats.uneven import lacking, uneven_names
from dp_prior.data.frames import FrameContents, FramePart, FrameSource
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray
from dp_prior.data.frames.encoded import EncodedFrames, contents_of, is_encoded
from dp_prior.data.hdf5 import are_alike

ACTIONS = ("action", "actions")
"""Names whose rows are the steps of an episode, where `steps` does not say another."""

Layout = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of arrays by their names."""


class EpisodeArrays(Protocol):
    """The arrays of one episode. Attributes: where: the file or group, for messages; file: that holds them."""

    where: str
    file: Path

    def layout(self) -> Layout:
        """Shape and dtype of every array, by its name.

        Raises:
            DataError, UnreadableError: they cannot be read.
        """
        ...

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        """Rows first to stop - 1 of an array."""
        ...

    def lost(self) -> dict[str, str]:
        """Why a name in the file leads to no array, by name; nothing by default."""
        return {}

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """The same rows in order, at most `step` at once."""
        return (self.rows(key, row, min(row + step, stop)) for row in range(first, stop, step))


class GroupedStore(EpisodeStore):
    """Reads episodes that are stored apart, in the order given.

    The first episode says which keys there are. An array with one row more than there are steps holds what was
    observed after the last action too; that row is left out.
    """

    def __init__(self, path: Path, format: str, parts: Sequence[EpisodeArrays], steps: str | None, advice: str = ""):
        """
        Args:
            steps: key with one row per step; None for `ACTIONS`, or the length that most arrays have.
            advice: what to do about an episode without steps.

        Raises:
            DataError: no episode can be read; `checked_ends` tells of some.
        """
        self.path, self.format, self._parts = path, format, parts
        self._layouts, self._faults = _layouts(parts)
        self._steps = steps or steps_key(next(filter(None, self._layouts), {}))
        lengths = [_length(layout, self._steps) for layout in self._layouts]
        for number in np.flatnonzero(np.equal(lengths, 0)).tolist():
            self._faults.setdefault(number, self._without_steps(number))
        if not any(lengths):
            raise DataError(str(path), list(self._faults.values()), advice)
        self._advice = [advice] if advice else []
        self._first = int(np.flatnonzero(lengths)[0])
        self.episode_ends = np.cumsum(np.array(lengths, np.int64))
        self._encoded: dict[str, tuple[int, ...]] = {}
        for key in self._rowed():
            if self._is_encoded(key):
                contents = contents_of(self._parts[self._first].rows(key, 0, 1)[0])
                size = self._open_encoded(key, self.episode_ends, contents).size
                self._encoded[key] = (*size, contents.channels)

    def checked_ends(self) -> tuple[np.ndarray, list[str]]:
        """See `EpisodeStore`; an episode with a fault has no steps, so that it may be left out."""
        ends, problems = super().checked_ends()
        return ends, [*self._faults.values(), *self._advice] if self._faults else problems

    def rows(self, key: str) -> int:
        """See `EpisodeStore`; every key has a row for each step."""
        return int(self.episode_ends[-1])

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array of the first episode that has a row for each step; of pictures, their size."""
        return {key: self._encoded.get(key, shape) for key, shape in self._rowed().items()}

    def unread(self) -> dict[str, str]:
        layout, length = self._layouts[self._first], int(self.episode_ends[self._first])
        remedy = "to read it, name the episodes that have it by files or groups"
        lost = [part.lost() for number, part in enumerate(self._parts) if number not in self._faults]
        return {
            key: f"{dtype} of shape {shape} in the first episode, which has {length} steps"
            for key, (shape, dtype) in layout.items()
            if key not in self._rowed()
        } | uneven_names(self._layouts, self._first, lost, remedy)

    def dtype(self, key: str) -> str:
        """Stored type of an array; `image` for encoded pictures."""
        return "image" if key in self._encoded else self._layouts[self._first][key][1].name

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype, of floats the widest."""
        return self.episodes(key, self.episode_ends, np.arange(len(self.episode_ends)))

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; only these episodes are read."""
        if key in self._encoded:
            raise DataError(self.locate(key, 0), ["holds encoded pictures; name them under images or depth"])
        self._check(key, numbers)
        check_memory(self.locate(key, 0), sum(_bytes(self._layouts[n][key]) for n in numbers))
        lengths = [stop - first for first, stop in spans(ends, numbers)]
        return np.concatenate([self._parts[n].rows(key, 0, rows) for n, rows in zip(numbers, lengths, strict=True)])

    def cameras(self) -> dict[str, tuple[int, ...]]:
        """See `EpisodeStore`; encoded pictures too."""
        return {**super().cameras(), **{key: shape for key, shape in self._encoded.items() if shape[-1] == 3}}

    def depths(self) -> dict[str, tuple[int, ...]]:
        """See `EpisodeStore`; encoded pictures too."""
        return {**super().depths(), **{key: shape for key, shape in self._encoded.items() if shape[-1] == 1}}

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """See `EpisodeStore`; a block of rows at a time, or encoded pictures."""
        self._check(key, numbers)
        if key in self._encoded:
            return self._open_encoded(key, ends, contents)
        shape, dtype = (int(ends[-1]), *self.keys()[key]), self._layouts[self._first][key][1]
        array = PictureArray(self.locate(key, 0), shape, dtype, partial(self._blocks, key))
        described = {"key": key, "steps": self._steps}
        files, parts = self.files([key]), self._frames_in(key)
        return ArrayFrames(array, ends, self.path, files, self.format, described, parts, contents)

    def locate(self, key: str, row: int) -> str:
        """The episode's file and array that hold a row, for messages."""
        episode = min(int(np.searchsorted(self.episode_ends, row, side="right")), len(self._parts) - 1)
        return f"{self._parts[episode].where}[{key}]"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """See `EpisodeStore`; the files of all episodes but those with a fault."""
        return sorted({part.file for number, part in enumerate(self._parts) if number not in self._faults})

    def _without_steps(self, number: int) -> str:
        where, layout = self._parts[number].where, self._layouts[number]
        if self._steps is None or self._steps in layout:
            return f"{where} has no steps: its arrays have no rows"
        return f"{where} has no array {self._steps!r}. {nearest_name(self._steps, layout)}"

    def _rowed(self) -> dict[str, tuple[int, ...]]:
        length, layout = int(self.episode_ends[self._first]), self._layouts[self._first]
        return {key: shape[1:] for key, (shape, _) in layout.items() if shape and shape[0] in (length, length + 1)}

    def _is_encoded(self, key: str) -> bool:
        """Whether the first row is an encoded picture; damaged rows are told of when the key is used."""
        shape, dtype = self._layouts[self._first][key]
        may_be = dtype.kind in "SO" and len(shape) == 1 or (dtype == np.uint8 and len(shape) == 2)
        try:
            return may_be and is_encoded(self._parts[self._first].rows(key, 0, 1)[0])
        except DataError:
            return False

    def _open_encoded(self, key: str, ends: np.ndarray, contents: FrameContents) -> EncodedFrames:
        def rows(first: int, stop: int) -> Iterator[Any]:
            return (row for block in self._blocks(key, first, stop, 64) for row in block)

        described = {"format": f"{self.format}, pictures", "key": key, "steps": self._steps}
        return EncodedFrames(rows, ends, self.path, self.files([key]), described, self._frames_in(key), contents)

    def _frames_in(self, key: str) -> list[FramePart]:
        return [FramePart(f"{part.where}[{key}]", (number,)) for number, part in enumerate(self._parts)]

    def _blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """Rows first to stop - 1 in order, at most `step` at once and never of two episodes."""
        ends = self.episode_ends
        while first < stop:
            number = int(np.searchsorted(ends, first, side="right"))
            begin, last = (int(ends[number - 1]) if number else 0), min(stop, int(ends[number]))
            yield from self._parts[number].blocks(key, first - begin, last - begin, step)
            first = last

    def _check(self, key: str, numbers: np.ndarray) -> None:
        """Raises DataError unless these episodes have the array, alike and with a row for each step."""
        feature, dtype, problems = self._rowed()[key], self._layouts[self._first][key][1], []
        without: list[int] = []
        lengths = np.diff(self.episode_ends, prepend=0).tolist()
        for number in numbers.tolist():
            part, length = self._parts[number], lengths[number]
            shape, stored = self._layouts[number].get(key, ((), None))
            is_alike = key in self._encoded or (
                shape[1:] == feature and stored is not None and are_alike(stored, dtype)
            )
            if number in self._faults:
                problems.append(self._faults[number])
            elif stored is None:
                without.append(number)
            elif shape[:1] not in ((length,), (length + 1,)) or not is_alike:
                found = f"{part.where}[{key}] holds {stored} of shape {shape}"
                problems.append(f"{found}; expected {dtype} of shape {(length, *feature)}")
        if without:
            where = self._parts[without[0]]
            others = (self._parts[self._first].where, where.lost().get(key))
            problems.append(lacking(key, where.where, self.numbers()[without].tolist(), *others))
        if problems:
            raise DataError(str(self.path), problems)


def steps_key(layout: Layout) -> str | None:
    """The array whose rows are the steps of an episode, by its name; None if no name says so."""
    named = [key for name in ACTIONS for key in layout if key.rpartition("/")[2] == name and layout[key][0]]
    return min(named, key=lambda key: key.count("/"), default=None)


def rows_agree(layout: Layout) -> bool:
    """Whether most arrays have one number of rows, at least two of them, so that rows are probably steps."""
    counts = Counter(shape[0] for shape, _ in layout.values() if shape)
    rows, count = counts.most_common(1)[0] if counts else (0, 0)
    return rows > 1 and count >= max(2, sum(counts.values()) / 2)


def _layouts(parts: Sequence[EpisodeArrays]) -> tuple[list[Layout], dict[int, str]]:
    """The layout of each episode, empty for one that cannot be read, and why by its number."""
    layouts, faults = [], {}
    for number, part in enumerate(parts):
        try:
            layouts.append(part.layout())
        except DataError as error:
            layouts.append({})
            faults[number] = f"{error.source} {'; '.join(error.problems)}"
    return layouts, faults


def _bytes(array: tuple[tuple[int, ...], np.dtype]) -> int:
    return math.prod(array[0]) * array[1].itemsize


def _length(layout: Layout, steps: str | None) -> int:
    """Steps of an episode."""
    if steps is not None:
        return (*layout.get(steps, ((),))[0], 0)[0]
    counts = Counter(shape[0] for shape, _ in layout.values() if shape)
    return counts.most_common(1)[0][0] if counts else 0
