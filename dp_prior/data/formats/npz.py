"""Episodes in one `.npz` file: arrays with one row per step, and the end of each episode."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import (
    DEFLATE_RATIO,
    LARGEST_RATIO,
    check_array,
    check_count,
    check_is_file,
    check_memory,
    decoding,
    load_npz,
    npy_header,
    reading,
)  # fmt: skip
from dp_prior.data.formats.episode_store import EpisodeStore, spans
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.files.regular_files import expanded

if TYPE_CHECKING:
    from dp_prior.data.frames import FrameContents
    from dp_prior.data.frames.arrays import ArrayFrames

META = "meta.json"
"""Member of the file with the facts beside the arrays: `fps`, `tasks` and `names`."""

MEMBER_RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATE_RATIO}
"""Bounds on what a byte of the file's members decodes to, by compression."""


class NpzStoreConfig(EpisodeStoreRecord):
    """One `.npz` file with concatenated episodes. Pickled arrays are never decoded."""

    type: Literal["npz"] = "npz"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    episode_ends: str = "episode_ends"
    """Name of the array that holds the exclusive end row of each episode."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return path.suffix == ".npz" and path.is_file()

    def create(self) -> NpzStore:
        """Open the file and read its headers; arrays are read when asked for."""
        return NpzStore(**self.arguments())


class NpzStore(EpisodeStore):
    """Reads an `.npz` file array by array. Attributes: headers: shape and dtype of each array, by name."""

    format = "npz"

    def __init__(self, path: Path, episode_ends: str):
        self.path = path = expanded(path)
        with reading(path):
            check_is_file(path, ".npz")
        self.headers = read_headers(path)
        if episode_ends not in self.headers:
            hint = f"{nearest_name(episode_ends, self.headers)}. Of lengths they are np.cumsum(lengths)"
            problem = f"has no array {episode_ends!r} with the episode ends. {hint}"
            raise DataError(str(path), [f"{problem}. If each file is one episode, name their folder"])
        self._episode_ends_key = episode_ends
        self.episode_ends = self.read(episode_ends)

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array that has rows."""
        return {
            name: shape[1:]
            for name, (shape, _) in self.headers.items()
            if name != self._episode_ends_key and len(shape) > 0
        }

    def dtype(self, key: str) -> str:
        return self.headers[key][1].name

    def read(self, key: str) -> np.ndarray:
        where = self.locate(key, 0)
        if self.headers[key][1].hasobject:
            problem = "holds Python objects, which would have to be unpickled; save it as a plain numeric array"
            raise DataError(where, [problem])
        shape, dtype = self.headers[key]
        check_memory(where, math.prod(shape) * dtype.itemsize)
        with decoding(where):
            return load_npz(self.path, [key])[key]

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`. The array is read, or decompressed, once; only the rows of these episodes are held,
        unless the array is in Fortran order."""
        where, (shape, dtype) = self.locate(key, 0), self.headers[key]
        if len(numbers) < len(ends) and shape[0] >= ends[-1]:
            with decoding(where), zipfile.ZipFile(self.path) as archive, archive.open(f"{key}.npy") as stream:
                if not npy_header(stream)[1] and not dtype.hasobject:
                    begin, size, parts, count = stream.tell(), _row_bytes(shape, dtype), [], 0
                    for first, stop in spans(ends, numbers):
                        stream.seek(begin + first * size)
                        parts.append(stream.read((stop - first) * size))
                        count += stop - first
                    return np.frombuffer(b"".join(parts), dtype).reshape(count, *shape[1:])
        return super().episodes(key, ends, numbers)

    def rows(self, key: str) -> int:
        return self.headers[key][0][0]

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> ArrayFrames:
        """See `EpisodeStore`. A member of a zip file can only be decompressed from the beginning, so one thread reads
        all blocks, never the whole array at once."""
        from dp_prior.data.frames import FramePart
        from dp_prior.data.frames.arrays import ArrayFrames, PictureArray

        where = self.locate(key, 0)
        parts = [FramePart(where, tuple(range(len(ends))))]
        array = PictureArray(where, *self.headers[key], partial(read_blocks, self.path, key))
        return ArrayFrames(array, ends, self.path, [self.path], self.format, parts=parts, contents=contents)

    def stored_metadata(self) -> Any:
        return read_metadata(self.path)


def read_metadata(path: Path) -> Any:
    """Read the `meta.json` that `dp-prior convert` writes into an `.npz` file; an empty dict for other files."""
    with decoding(path), zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(META)) if META in archive.namelist() else {}


def read_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Read the shape and dtype of every array in an `.npz` file, by the array's name.

    Raises:
        DataError: the file is damaged, or has too many arrays; see `read_header`.
    """
    with decoding(path, "is not a readable .npz file; copy or write it again"), zipfile.ZipFile(path) as archive:
        check_count(path, len(archive.infolist()), "arrays")
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): read_header(archive, name) for name in members}


def read_header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype]:
    """Read the shape and dtype of an array in the archive, without reading the array.

    Raises:
        DataError, ValueError: the header declares more than is stored, see `check_array`.
    """
    with archive.open(member) as stream:
        shape, _, dtype = npy_header(stream)
        info = archive.getinfo(member)
        declared, held = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
    if declared != held and not dtype.hasobject:  # numpy would allocate the declared size
        raise ValueError(f"{member} holds {held} bytes, but its header declares {declared}")
    ratio = MEMBER_RATIOS.get(info.compress_type, LARGEST_RATIO)
    check_array(f"{archive.filename}[{member}]", shape, dtype, stored=info.compress_size, ratio=ratio)
    return shape, dtype


def read_blocks(path: Path, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
    """Read rows first to stop - 1 of an array in order, at most `step` at once, in one pass: a member of the archive
    can only be read from the beginning. An array in Fortran order is read whole. An empty range gives one empty block.

    Raises:
        DataError: the array holds Python objects, or does not fit into memory.
    """
    where, starts = f"{path}[{key}]", range(first, max(stop, first + 1), max(step, 1))
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
        shape, is_fortran, dtype = npy_header(stream)
        if dtype.hasobject:
            raise DataError(where, ["holds Python objects, which are never decoded; save a plain numeric array"])
        if is_fortran:
            check_memory(where, math.prod(shape) * dtype.itemsize)
            whole = load_npz(path, [key])[key]
            yield from (whole[row : min(row + step, stop)] for row in starts)
            return
        size = _row_bytes(shape, dtype)
        stream.seek(first * size, 1)
        for row in starts:
            count = min(step, stop - row)
            yield np.frombuffer(stream.read(count * size), dtype).reshape(count, *shape[1:])


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of one row of an array of this shape."""
    return math.prod(shape[1:]) * dtype.itemsize
