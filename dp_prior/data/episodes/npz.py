"""Episodes in one `.npz` file: arrays with one row per step, and the end of each episode."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_count, check_is_file, check_memory, decoding, npy_header, reading

RATIOS, LARGEST_RATIO = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1100}, 50_000
"""Bounds on what a byte decodes to, by compression; deflate reaches 1032, bzip2 about 45,000."""


class NpzStoreConfig(Config):
    """One `.npz` file with concatenated episodes. Pickled arrays are never decoded."""

    type: Literal["npz"] = "npz"

    path: Path
    """The file; relative to the working directory, `~` is the home directory."""

    episode_ends: str = "episode_ends"
    """Name of the array that holds the exclusive end row of each episode."""

    def create(self) -> NpzStore:
        """Open the file and read its headers; arrays are read when asked for."""
        return NpzStore(**self.arguments())


class NpzStore:
    """Reads an `.npz` file array by array. Attributes: headers: shape and dtype of each array, by name."""

    def __init__(self, path: Path, episode_ends: str):
        self.path = path = path.expanduser()
        with reading(path):
            check_is_file(path, ".npz")
        with decoding(path, "is not a readable .npz file"), zipfile.ZipFile(path) as archive:
            check_count(path, len(archive.infolist()), "arrays")
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            self.headers = {name.removesuffix(".npy"): read_header(archive, name) for name in members}
        if episode_ends not in self.headers:
            hint = nearest_name(episode_ends, self.headers)
            raise DataError(str(path), [f"has no array {episode_ends!r} with the episode ends. {hint}"])
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
        """Stored type of an array."""
        return self.headers[key][1].name

    def rows(self, key: str) -> int:
        """Number of rows of an array."""
        return self.headers[key][0][0]

    def locate(self, key: str, row: int) -> str:
        """Where a row is stored, for messages."""
        return f"{self.path}[{key}]"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The one file."""
        return [self.path]

    def describe(self) -> dict[str, Any]:
        """Format and place."""
        return {"format": "npz", "path": str(self.path)}

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype."""
        where = self.locate(key, 0)
        if self.headers[key][1].hasobject:
            problem = "holds Python objects, which would have to be unpickled; save it as a plain numeric array"
            raise DataError(where, [problem])
        with decoding(where), np.load(self.path, allow_pickle=False) as arrays:
            return arrays[key]

    def read_spans(self, key: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """(n, *feature_shape) rows first to stop - 1 of each span, in order, in the stored dtype.

        The array is read, or decompressed, once; only these rows are held, unless it is in Fortran order.
        """
        where, (shape, dtype) = self.locate(key, 0), self.headers[key]
        with decoding(where), zipfile.ZipFile(self.path) as archive, archive.open(f"{key}.npy") as stream:
            if not npy_header(stream)[1] and not dtype.hasobject:
                begin, row_bytes = stream.tell(), math.prod(shape[1:]) * dtype.itemsize
                parts = []
                for first, stop in spans:
                    stream.seek(begin + first * row_bytes)
                    parts.append(stream.read((stop - first) * row_bytes))
                count = sum(stop - first for first, stop in spans)
                return np.frombuffer(b"".join(parts), dtype).reshape(count, *shape[1:])
        values = self.read(key)
        return np.concatenate([values[first:stop] for first, stop in spans])


def read_header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of an array in the archive, without reading the array.

    Raises:
        DataError, ValueError: it declares more than is stored, or than the memory of this machine.
    """
    with archive.open(member) as stream:
        shape, _, dtype = npy_header(stream)
        info = archive.getinfo(member)
        declared, found = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
    if declared != found and not dtype.hasobject:  # numpy would allocate what is declared
        raise ValueError(f"{member} holds {found} bytes, but its header declares {declared}")
    ratio = RATIOS.get(info.compress_type, LARGEST_RATIO)
    check_memory(f"{archive.filename}[{member}]", declared, stored=info.compress_size, ratio=ratio)
    return shape, dtype
