"""Episodes that are stored apart: a file, or a group of a file, with arrays for each episode."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_memory
from dp_prior.data.formats.choice import leaving_out
from dp_prior.data.formats.episode_store import EpisodeStore, spans
from dp_prior.data.frames import FrameContents, FramePart, FrameSource
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray
from dp_prior.data.frames.encoded import EncodedFrames, contents_of, is_encoded
from dp_prior.data.hdf5 import are_alike

ACTIONS = ("action", "actions")
"""Names whose rows are the steps of an episode, unless `steps` names another key."""

Header = tuple[tuple[int, ...], np.dtype]
"""Shape and dtype of an array."""

Layout = dict[str, Header]
"""Headers of arrays by their names."""


RESAMPLE = "; of another rate, save the row nearest in time to each step (docs/data.md#layouts)"


class EpisodeArrays(Protocol):
    """The arrays of one episode.

    Attributes:
        where: the file or group, for messages.
        file: the file with the arrays.
        described: what beside the file decides about rows, JSON-able.
    """

    where: str
    file: Path
    described: Mapping[str, Any] = MappingProxyType({})

    @property
    def layout(self) -> Layout:
        """Shape and dtype of every array, by its name; read once.

        Raises:
            DataError, UnreadableError: the headers cannot be read.
        """
        ...

    @property
    def lost(self) -> dict[str, str]:
        """Why a name in the file leads to no array, by name; empty by default."""
        return {}

    def header(self, key: str) -> Header | None:
        """Shape and dtype of an array, None if the episode lacks it; the default asks `layout`.

        Raises:
            DataError, UnreadableError: the array, or the episode, cannot be read.
        """
        return self.layout.get(key)

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        """Read rows first to stop - 1 of an array."""
        ...

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """Read the same rows in order, at most `step` at once."""
        return (self.rows(key, row, min(row + step, stop)) for row in range(first, stop, step))


class GroupedStore(EpisodeStore):
    """Reads episodes that are stored apart, in the order of `parts`.

    The first intact episode defines the keys. Arrays of length T + 1 include the observation after the last action; the
    extra row is dropped.
    """

    reads_apart = True

    later: ClassVar[str] = "to read it, name the episodes that have it by files or groups"
    """How to read a key that the first episode lacks."""

    def __init__(self, path: Path, format: str, parts: Sequence[EpisodeArrays], steps: str | None, advice: str = ""):
        """
        Args:
            steps: key with one row per step; None for `ACTIONS`, or the length that most arrays have.
            advice: the remedy for an episode without steps.

        Raises:
            DataError: no episode can be read; `checked_ends` lists the faults of some.
        """
        self.path, self.format, self._parts = path, format, parts
        self._steps = steps or steps_key(_first_layout(parts))
        self._faults: dict[int, str] = {}
        lengths = np.zeros(len(parts), np.int64)
        for number, part in enumerate(parts):
            try:
                lengths[number] = _length(part, self._steps)
                if not lengths[number]:
                    self._faults[number] = _without_steps(part, self._steps)
            except DataError as error:
                self._faults[number] = _as_problem(error)
        if not lengths.any():
            raise DataError(str(path), list(self._faults.values()), advice)
        self._advice = [advice] if advice else []
        self._first = int(np.flatnonzero(lengths)[0])
        self._layout = parts[self._first].layout
        self.episode_ends = np.cumsum(lengths)
        self._encoded: dict[str, tuple[int, ...]] = {}
        for key in self._rowed():
            if self._is_encoded(key):
                contents = contents_of(self._parts[self._first].rows(key, 0, 1)[0])
                size = self._open_encoded(key, self.episode_ends, contents).size
                self._encoded[key] = (*size, contents.channels)

    def checked_ends(self) -> tuple[np.ndarray, list[str]]:
        """See `EpisodeStore`; a damaged episode has no steps, so that a choice may leave it out."""
        ends, problems = super().checked_ends()
        return ends, [*self._faults.values(), *self._advice] if self._faults else problems

    def rows(self, key: str) -> int:
        return int(self.episode_ends[-1])

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array of the first episode with a row for each step; the size of encoded pictures."""
        return {key: self._encoded.get(key, shape) for key, shape in self._rowed().items()}

    def unread(self) -> dict[str, str]:
        length, rowed = int(self.episode_ends[self._first]), self._rowed()
        names, lost = [part.layout for part in self._intact], [part.lost for part in self._intact]
        not_per_step = {}
        for key, (shape, dtype) in self._layout.items():
            if key not in rowed:
                is_encoded = 0 not in shape and self._is_encoded(key)
                line = f"{'encoded pictures' if is_encoded else dtype} of shape {shape} in the first episode"
                remedy = RESAMPLE if is_encoded or len(shape) > 1 else ""
                not_per_step[key] = f"{line}, which has {length} steps{remedy}"
        return not_per_step | _uneven_names(names, lost, self.later)

    def dtype(self, key: str) -> str:
        """Stored type of an array; `image` for encoded pictures, `string` for texts of any length."""
        if key in self._encoded:
            return "image"
        stored = self._layout[key][1]
        is_text = (stored.metadata or {}).get("vlen") in (str, bytes)  # HDF5's texts, objects for numpy
        return "string" if is_text else stored.name

    def read(self, key: str) -> np.ndarray:
        """See `EpisodeStore`; floats of several widths become the widest."""
        return self.episodes(key, self.episode_ends, np.arange(len(self.episode_ends)))

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        if key in self._encoded:
            raise DataError(self.locate(key, 0), ["holds encoded pictures; name them under images or depth"])
        check_memory(self.locate(key, 0), sum(map(_bytes, self._checked(key, numbers))))
        lengths = [stop - first for first, stop in spans(ends, numbers)]
        return np.concatenate([self._parts[n].rows(key, 0, rows) for n, rows in zip(numbers, lengths, strict=True)])

    def cameras(self) -> dict[str, tuple[int, ...]]:
        """See `EpisodeStore`; with encoded pictures."""
        return {**super().cameras(), **{key: shape for key, shape in self._encoded.items() if shape[-1] == 3}}

    def depths(self) -> dict[str, tuple[int, ...]]:
        """See `EpisodeStore`; with encoded pictures."""
        return {**super().depths(), **{key: shape for key, shape in self._encoded.items() if shape[-1] == 1}}

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """See `EpisodeStore`; reads blocks of rows, or encoded pictures."""
        self._checked(key, numbers)
        if key in self._encoded:
            return self._open_encoded(key, ends, contents)
        shape, dtype = (int(ends[-1]), *self.keys()[key]), self._layout[key][1]
        array = PictureArray(self.locate(key, 0), shape, dtype, partial(self._blocks, key))
        described = {"key": key, "steps": self._steps, **self._parts[self._first].described}
        files, parts = self.files([key]), self._frames_in(key)
        return ArrayFrames(array, ends, self.path, files, self.format, described, parts, contents)

    def locate(self, key: str, row: int) -> str:
        episode = min(int(np.searchsorted(self.episode_ends, row, side="right")), len(self._parts) - 1)
        return f"{self._parts[episode].where}[{key}]"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """See `EpisodeStore`; the files of all intact episodes."""
        return sorted({part.file for part in self._intact})

    @property
    def _intact(self) -> list[EpisodeArrays]:
        """The episodes without a fault."""
        return [part for number, part in enumerate(self._parts) if number not in self._faults]

    def _rowed(self) -> dict[str, tuple[int, ...]]:
        rows = (int(self.episode_ends[self._first]), int(self.episode_ends[self._first]) + 1)
        return {key: shape[1:] for key, (shape, _) in self._layout.items() if shape and shape[0] in rows}

    def _is_encoded(self, key: str) -> bool:
        """Whether the first row is an encoded picture; a damaged row is reported when the key is used."""
        shape, dtype = self._layout[key]
        may_be = dtype.kind in "SO" and len(shape) == 1 or (dtype == np.uint8 and len(shape) == 2)
        try:
            return may_be and is_encoded(self._parts[self._first].rows(key, 0, 1)[0])
        except DataError:
            return False

    def _open_encoded(self, key: str, ends: np.ndarray, contents: FrameContents) -> EncodedFrames:
        def rows(first: int, stop: int) -> Iterator[Any]:
            return itertools.chain.from_iterable(self._blocks(key, first, stop, 64))

        described = {"format": f"{self.format}, pictures", "key": key, "steps": self._steps}
        described |= self._parts[self._first].described
        return EncodedFrames(rows, ends, self.path, self.files([key]), described, self._frames_in(key), contents)

    def _frames_in(self, key: str) -> list[FramePart]:
        return [FramePart(f"{part.where}[{key}]", (number,)) for number, part in enumerate(self._parts)]

    def _blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """Read rows first to stop - 1 in order, at most `step` at once and never of two episodes."""
        ends = self.episode_ends
        while first < stop:
            number = int(np.searchsorted(ends, first, side="right"))
            begin, last = (int(ends[number - 1]) if number else 0), min(stop, int(ends[number]))
            yield from self._parts[number].blocks(key, first - begin, last - begin, step)
            first = last

    def _checked(self, key: str, numbers: np.ndarray) -> list[Header]:
        """Read the header of a key in each of these episodes.

        Raises:
            DataError: an episode lacks the key, or has another type, shape or number of rows.
        """
        feature, dtype, headers = self._rowed()[key], self._layout[key][1], []
        problems, without = [], []
        lengths = np.diff(self.episode_ends, prepend=0).tolist()
        for number in numbers.tolist():
            part, length = self._parts[number], lengths[number]
            if number in self._faults:
                problems.append(self._faults[number])
                continue
            try:
                header = part.header(key)
            except DataError as error:
                problems.append(_as_problem(error))
                continue
            if header is None:
                without.append(number)
                continue
            shape, stored = header
            is_alike = key in self._encoded or (shape[1:] == feature and are_alike(stored, dtype))
            if shape[:1] not in ((length,), (length + 1,)) or not is_alike:
                expected = f"expected {dtype} of shape {(length, *feature)}"
                problems.append(f"{part.where}[{key}] holds {stored} of shape {shape}; {expected}")
            headers.append(header)
        if without:
            lacks = self._parts[without[0]]
            where_present = (self._parts[self._first].where, lacks.lost.get(key))
            problems.append(_lacking(key, lacks.where, self.numbers()[without].tolist(), *where_present))
        if problems:
            raise DataError(str(self.path), problems)
        return headers


def steps_key(layout: Layout) -> str | None:
    """The array of actions, whose rows are the steps of an episode; None without an array of such a name."""
    candidates: list[str] = []
    for name in ACTIONS:
        candidates += [key for key in layout if key.rpartition("/")[2] == name and layout[key][0]]
    return min(candidates, key=lambda key: key.count("/"), default=None)


def rows_agree(layout: Layout) -> bool:
    """Whether most arrays, two at least, have one number of rows, so that rows are probably steps."""
    counts = Counter(shape[0] for shape, _ in layout.values() if shape)
    rows, count = counts.most_common(1)[0] if counts else (0, 0)
    return rows > 1 and count >= max(2, sum(counts.values()) / 2)


def _first_layout(parts: Iterable[EpisodeArrays]) -> Layout:
    """The headers of the first readable episode with arrays; empty if no episode can be read."""
    for part in parts:
        with contextlib.suppress(DataError):
            if part.layout:
                return part.layout
    return {}


def _as_problem(error: DataError) -> str:
    """Write an error as one of the problems of a data set."""
    return f"{error.source} {'; '.join(error.problems)}"


def _bytes(header: Header) -> int:
    return math.prod(header[0]) * header[1].itemsize


def _length(part: EpisodeArrays, steps: str | None) -> int:
    """Count the steps of an episode."""
    if steps is not None:
        shape, _ = part.header(steps) or ((), None)
        return shape[0] if shape else 0
    counts = Counter(shape[0] for shape, _ in part.layout.values() if shape)
    return counts.most_common(1)[0][0] if counts else 0


def _without_steps(part: EpisodeArrays, steps: str | None) -> str:
    if steps is None or steps in part.layout:
        return f"{part.where} has no steps: its arrays have no rows"
    return f"{part.where} has no array {steps!r}. {nearest_name(steps, part.layout)}"


def _uneven_names(names: Sequence[Collection[str]], lost: Iterable[Mapping[str, str]], remedy: str) -> dict[str, str]:
    """Explain why a name is not read, or not proposed because half of the episodes or more lack it.

    Args:
        names: names of the arrays of each episode; the first episode defines the keys.
        lost: why a name leads to no array of an episode, by name.
        remedy: how to read a key that the first episode lacks.

    Returns:
        The explanations by name.
    """
    count, first = len(names), names[0]
    counts = Counter(itertools.chain.from_iterable(names))
    later = {name: n for name, n in counts.items() if name not in first}
    rare = {name: n for name, n in counts.items() if name in first and 2 * n <= count}
    reasons = {name: f"in {n} of {count} episodes and not in the first; {remedy}" for name, n in later.items()}
    for name, n in rare.items():
        reasons[name] = f"in only {n} of {count} episodes; to read it, leave the others out by choice in data"
    for lost_names in reversed([*lost]):
        reasons |= {name: why for name, why in lost_names.items() if name not in counts}
    return reasons


def _lacking(key: str, where: str, numbers: Sequence[int], first: str, lost: str | None) -> str:
    """Report that some episodes lack a key, with the remedy.

    Args:
        where: the first episode that lacks the key.
        numbers: the data set's own numbers of all episodes that lack the key.
        first: an episode with the key.
        lost: why the episode `where` lacks the key, if the file says so.
    """
    rest = f", and {len(numbers) - 1} more lack it" if len(numbers) > 1 else ""
    return f"{where} has no {key!r}: {lost or f'{first} has one'}{rest}; read another key, or {leaving_out(numbers)}"
