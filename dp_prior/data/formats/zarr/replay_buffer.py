"""Replay buffers as Diffusion Policy writes them: zarr v2 or v3, in a directory or a `.zip` file.

Metadata are read here, so that a damaged array that is not selected does not matter; zarr decodes the chunks. Four
things that zarr accepts are errors here: missing chunks (zarr returns the fill value), truncated blosc chunks (zarr
returns the memory behind them), arrays that would have to be unpickled, and declared sizes that no stored bytes back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import check_array, check_memory, decoding
from dp_prior.data.formats.episode_store import EpisodeStore, spans
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.zarr.chunks import chunk_lengths, chunks_cut_short, is_hidden, missing_chunks, stored_bytes
from dp_prior.data.formats.zarr.groups import check_codecs, read_metadata
from dp_prior.data.frames import FrameContents
from dp_prior.data.frames.arrays import ArrayFrames, PictureArray
from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import expanded

if TYPE_CHECKING:
    import zarr

ZSTD_RATIO = 40_000
"""Bound on what a byte decodes to: zstd writes 128 KB of one value as four bytes."""

MOST_AXES = 32

BLOCK_ROWS = 4096
"""Of numbers that are read at once, in chunks of fewer."""


class ZarrStoreConfig(EpisodeStoreRecord):
    """A replay buffer: a group of arrays with one row per step, and an array with the end of each episode."""

    type: Literal["zarr"] = "zarr"

    path: Path
    """Directory or `.zip` file; relative to the working directory, `~` is the home directory."""

    data: str = "data"
    """Group that holds the arrays; keys are named relative to it. Empty means the top."""

    episode_ends: str = "meta/episode_ends"
    """Array that holds the exclusive end row of each episode."""

    missing_chunks: Literal["error", "fill"] = "error"
    """Chunks without a file: `error` treats them as an incomplete copy, `fill` as chunks of the fill value, which
    zarr 3 does not write by default."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".zip"
        return any((path / name).is_file() for name in (".zgroup", "zarr.json"))

    def create(self) -> ZarrStore:
        """Open the store; arrays are read when asked for.

        Raises:
            ImportError: zarr is not installed.
        """
        with needing("zarr", "reading zarr data needs zarr"):
            import zarr  # noqa: F401
        return ZarrStore(**self.arguments())


class ZarrStore(EpisodeStore):
    """Reads a replay buffer array by array, whole: a small read costs zarr most of a millisecond."""

    reads_apart = True

    def __init__(self, path: Path, data: str, episode_ends: str, missing_chunks: str):
        self.path = path = expanded(path)
        self._fill_missing = missing_chunks == "fill"
        self._metadata = read_metadata(path)
        self._root: zarr.Group | None = None
        group, ends = data.strip("/"), episode_ends.strip("/")
        self._prefix = f"{group}/" if group else ""
        self._ends = ends
        problems = []
        if not any(name.startswith(self._prefix) for name in self._metadata):
            problems.append(f"has no arrays in a group {data!r}. {nearest_name(data, self._metadata)}")
        if ends not in self._metadata:
            hint = nearest_name(ends, self._metadata)
            problems.append(f"has no array {episode_ends!r} with the episode ends. {hint}")
        if problems:
            raise DataError(str(path), problems)
        self.episode_ends = self._load(ends)

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array that has rows."""
        return {
            name.removeprefix(self._prefix): tuple(metadata["shape"][1:])
            for name, metadata in self._metadata.items()
            if name.startswith(self._prefix) and name != self._ends and metadata["shape"]
        }

    def dtype(self, key: str) -> str:
        metadata = self._metadata[self._prefix + key]
        declared = metadata.get("dtype", metadata.get("data_type"))
        try:
            return np.dtype(declared).name if isinstance(declared, str) else str(declared)
        except (TypeError, ValueError, SyntaxError):
            return str(declared)

    def read(self, key: str) -> np.ndarray:
        return self._load(self._prefix + key)

    def rows(self, key: str) -> int:
        return int(self._metadata[self._prefix + key]["shape"][0])

    def locate(self, key: str, row: int) -> str:
        return f"{self.path}/{self._prefix}{key}"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The zip file, or the chunks and metadata of these arrays and the metadata of the groups around them."""
        if self.path.is_file():
            return [self.path]
        files: set[Path] = set()
        for name in (self._ends, *(self._prefix + key for key in keys)):
            array = self.path / name
            files.update(file for file in array.rglob("*") if not is_hidden(file))
            for group in array.parents:
                if group.is_relative_to(self.path):
                    files |= {group / ".zgroup", group / "zarr.json"}
        return sorted(filter(Path.is_file, files))

    def describe(self) -> dict[str, Any]:
        version = self._metadata[self._ends].get("zarr_format")
        return {"format": f"zarr v{version}", "path": str(self.path)}

    def stored_metadata(self) -> dict[str, Any]:
        """The attributes of the group `meta`."""
        with decoding(f"{self.path}/meta"):
            return dict(self._open_root()["meta"].attrs) if "meta" in self._open_root() else {}

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; reads only chunks with rows of these episodes."""
        array = self._open(self._prefix + key)
        self._check_rows(key, array.shape[0], ends)
        rows = np.concatenate([np.arange(*span) for span in spans(ends, numbers)])
        with decoding(self.locate(key, 0)):
            return np.concatenate([*_rows(array, rows)])

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> ArrayFrames:
        """See `EpisodeStore`; decodes a block of chunks at a time, never the whole array."""
        array = self._open(self._prefix + key)

        def blocks(first: int, stop: int, step: int) -> Iterator[np.ndarray]:
            chunk = chunk_lengths(array)[0]
            step = chunk * max(1, step // chunk)
            for row in range(first - first % step, stop, step):
                yield np.asarray(array[max(first, row) : min(stop, row + step)])

        pictures = PictureArray(self.locate(key, 0), array.shape, array.dtype, blocks)
        return ArrayFrames(pictures, ends, self.path, self.files([key]), "zarr", contents=contents)

    def _load(self, name: str) -> np.ndarray:
        where = f"{self.path}/{name}"
        with decoding(where):
            array = self._open(name)
            stored = None if self._fill_missing else sum(stored_bytes(self.path, name).values())
            check_array(where, array.shape, array.dtype, stored=stored, ratio=ZSTD_RATIO)
            check_memory(where, array.nbytes)
            return np.asarray(array[...])

    def _open(self, name: str) -> zarr.Array:
        """Open and check an array, without decoding it.

        Raises:
            DataError: chunks are missing or cut short, or the array cannot be decoded safely.
        """
        where, metadata = f"{self.path}/{name}", self._metadata[name]
        coding = [metadata.get(field) for field in ("dtype", "data_type", "filters", "compressor", "codecs")]
        is_text = metadata.get("filters") == [{"id": "vlen-utf8"}]
        objects = "pickle|json|msgpack|vlen" if name == self._ends else "pickle|json|msgpack"
        if re.search(objects, json.dumps(coding)) or (metadata.get("dtype") == "|O" and not is_text):
            raise DataError(where, ["holds Python objects or texts; never decoded here. Save a plain numeric array"])
        if len(metadata["shape"]) > MOST_AXES:
            raise DataError(where, [f"shape is {str(metadata['shape'])[:120]}; expected at most {MOST_AXES} axes"])
        check_codecs(where, metadata)
        with decoding(where):
            array, stored = self._open_root()[name], stored_bytes(self.path, name)
            if 0 in chunk_lengths(array):
                raise DataError(where, [f"chunks are {chunk_lengths(array)}; expected 1 or more along each axis"])
            chunk_bytes = math.prod(chunk_lengths(array)) * array.dtype.itemsize
            shape = (min(array.shape[0], chunk_lengths(array)[0]), *array.shape[1:]) if array.shape else ()
            check_array(where, shape, array.dtype, stored=sum(stored.values()), ratio=ZSTD_RATIO, chunk=chunk_bytes)
            ends = None if name == self._ends else self.episode_ends.ravel()
            missing = "" if self._fill_missing else missing_chunks(array, stored.keys(), ends)
            if missing:
                remedy = "or, if its writer left out chunks of fill values, set data.episodes.missing_chunks to 'fill'"
                raise DataError(where, [f"{missing}. Copy the data set again; {remedy}"])
            cut_short = chunks_cut_short(self.path / name, metadata) if self.path.is_dir() else []
            if cut_short:
                raise DataError(where, [f"{chunk}. Copy the data set again" for chunk in cut_short])
            return array

    def _open_root(self) -> zarr.Group:
        import zarr
        from zarr.storage import ZipStore

        if self._root is None:
            store = ZipStore(self.path, mode="r") if self.path.is_file() else str(self.path)
            # Consolidated metadata are a copy that appending episodes does not update.
            self._root = zarr.open_group(store=store, mode="r", use_consolidated=False)
        return self._root


def _rows(array: zarr.Array, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Read sorted rows of an array in blocks; each chunk is decompressed once."""
    chunk = chunk_lengths(array)[0]
    held = chunk * max(BLOCK_ROWS // chunk, 1)
    for block in np.split(rows, np.flatnonzero(np.diff(rows // held)) + 1):
        yield np.asarray(array[block[0] : block[-1] + 1])[block - block[0]]
