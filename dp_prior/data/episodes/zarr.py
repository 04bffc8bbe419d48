"""Replay buffers as Diffusion Policy writes them: zarr v2 or v3, in a directory or a `.zip` file.

Metadata are read here, so that a damaged array that is not selected does not matter; zarr decodes the chunks. Four
things that zarr accepts are errors here: missing chunks (it returns the fill value), truncated blosc chunks (it returns
whatever follows them in memory), arrays that would have to be unpickled, and declared sizes that no stored bytes back.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError, MissingError, nearest_name
from dp_prior.data.files import check_count, check_memory, decoding, raise_error, reading
from dp_prior.regular_files import SMALL, check_regular, open_regular, read_small

if TYPE_CHECKING:
    import zarr


LARGEST_RATIO, DEFLATE_RATIO = 40_000, 1100
"""Bounds on what a byte decodes to: zstd writes 128 KB of one value as four bytes, deflate reaches 1032."""

MOST_AXES = 32

MOST_CHUNKS_COUNTED = 1_000_000
"""Of an array that declares more chunks, only as many are looked for as it takes to name missing ones."""


class ZarrStoreConfig(Config):
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

    def create(self) -> ZarrStore:
        """Open the store; arrays are read when asked for.

        Raises:
            ImportError: zarr is not installed.
        """
        try:
            import zarr  # noqa: F401
        except ImportError:
            raise ImportError('reading zarr data needs zarr: pip install "dp_prior[zarr]"') from None
        return ZarrStore(**self.arguments())


class ZarrStore:
    """Reads a replay buffer array by array, whole: a small read costs zarr most of a millisecond."""

    def __init__(self, path: Path, data: str, episode_ends: str, missing_chunks: str):
        self.path = path = path.expanduser()
        self._fill_missing = missing_chunks == "fill"
        self._metadata = _read_metadata(path)
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
        """Stored type of an array."""
        metadata = self._metadata[self._prefix + key]
        declared = metadata.get("dtype", metadata.get("data_type"))
        try:
            return np.dtype(declared).name if isinstance(declared, str) else str(declared)
        except (TypeError, ValueError, SyntaxError):
            return str(declared)

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype."""
        return self._load(self._prefix + key)

    def locate(self, key: str, row: int) -> str:
        """Where a row is stored, for messages."""
        return f"{self.path}/{self._prefix}{key}"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The one zip file, or the chunks and metadata of these arrays and the metadata of the groups around them."""
        if self.path.is_file():
            return [self.path]
        arrays = [self.path / name for name in (self._ends, *(self._prefix + key for key in keys))]
        found = {file for array in arrays for file in array.rglob("*") if not _is_hidden(file)}
        groups = {group for array in arrays for group in array.parents if group.is_relative_to(self.path)}
        found |= {group / name for group in groups for name in (".zgroup", "zarr.json")}
        return sorted(file for file in found if file.is_file())

    def describe(self) -> dict[str, Any]:
        """Format and place."""
        version = self._metadata[self._ends].get("zarr_format")
        return {"format": f"zarr v{version}", "path": str(self.path)}

    def attributes(self, group: str) -> dict[str, Any]:
        """What a group says about itself; empty if there is no such group."""
        with decoding(f"{self.path}/{group}"):
            return dict(self._open_root()[group].attrs) if group in self._open_root() else {}

    def open(self, key: str) -> zarr.Array:
        """A key's array, none of it decoded yet.

        Raises:
            DataError: chunks are missing or cut short, or it cannot be decoded safely.
        """
        return self._open(self._prefix + key)

    def _load(self, name: str) -> np.ndarray:
        where = f"{self.path}/{name}"
        with decoding(where):
            array = self._open(name)
            stored = None if self._fill_missing else sum(self._stored(name).values())
            check_memory(where, array.nbytes, stored=stored, ratio=LARGEST_RATIO)
            return np.asarray(array[...])

    def _open(self, name: str) -> zarr.Array:
        where, metadata = f"{self.path}/{name}", self._metadata[name]
        coding = [metadata.get(field) for field in ("dtype", "data_type", "filters", "compressor", "codecs")]
        is_text = metadata.get("filters") == [{"id": "vlen-utf8"}]
        if "pickle" in json.dumps(coding) or (metadata.get("dtype") == "|O" and not is_text):
            raise DataError(where, ["holds Python objects; they are never decoded. Save it as a plain numeric array"])
        if len(metadata["shape"]) > MOST_AXES:
            raise DataError(where, [f"shape is {str(metadata['shape'])[:120]}; expected at most {MOST_AXES} axes"])
        with decoding(where):
            array, stored = self._open_root()[name], self._stored(name)
            chunk_bytes = math.prod(_chunk_lengths(array)) * array.dtype.itemsize
            check_memory(where, chunk_bytes, stored=sum(stored.values()), ratio=LARGEST_RATIO)
            missing = None if self._fill_missing else self._missing_chunks(name, array, stored.keys())
            if missing:
                remedy = "or, if its writer left out chunks of fill values, set data.episodes.missing_chunks to 'fill'"
                raise DataError(where, [f"{missing}. Copy the data set again; {remedy}"])
            cut_short = _chunks_cut_short(self.path / name, metadata) if self.path.is_dir() else []
            if cut_short:
                raise DataError(where, [f"{chunk}. Copy the data set again" for chunk in cut_short])
            return array

    def _open_root(self) -> zarr.Group:
        import zarr
        from zarr.storage import ZipStore

        if self._root is None:
            store = ZipStore(self.path, mode="r") if self.path.is_file() else str(self.path)
            # Consolidated metadata are a copy, and stay as they were when episodes are appended.
            self._root = zarr.open_group(store=store, mode="r", use_consolidated=False)
        return self._root

    def _stored(self, name: str) -> dict[str, int]:
        """Bytes of each file of an array, by its name below the array."""
        if self.path.is_file():
            with zipfile.ZipFile(self.path) as archive:
                found = [info for info in archive.infolist() if info.filename.startswith(f"{name}/")]
            sizes = {info.filename: min(info.file_size, info.compress_size * DEFLATE_RATIO) for info in found}
            return {file.removeprefix(f"{name}/"): size for file, size in sizes.items()}
        return dict(_files_below(self.path / name))

    def _missing_chunks(self, name: str, array: zarr.Array, present: Collection[str]) -> str:
        """Number of missing chunks, and the first of them with the episodes of their rows; empty if none is missing."""
        grid = [-(-size // length) for size, length in zip(array.shape, _chunk_lengths(array), strict=True)]
        total = math.prod(grid)
        looked_at = total if total <= MOST_CHUNKS_COUNTED else len(present) + 4  # at least four of them are missing
        key_of = array.metadata.encode_chunk_key
        indices = (np.unravel_index(number, grid) for number in range(looked_at))
        missing = [index for index in indices if key_of(index) not in present]
        if not missing:
            return ""
        listed = [key_of(index) + self._episodes_of(name, array, index) for index in missing[:3]]
        listed += ["..."] if len(missing) > 3 else []
        count = len(missing) if looked_at == total else total - len(present)
        return f"{count} of {total} chunks are missing: {', '.join(listed)}"

    def _episodes_of(self, name: str, array: zarr.Array, index: tuple[int, ...]) -> str:
        if name == self._ends:
            return ""
        length, ends = _chunk_lengths(array)[0], self.episode_ends.ravel()
        first, stop = index[0] * length, min((index[0] + 1) * length, array.shape[0])
        begin, end = (int(np.searchsorted(ends, row, side="right")) for row in (first, stop - 1))
        return f" (rows {first} to {stop - 1}, episode{f's {begin} to {end}' if end > begin else f' {begin}'})"


def _read_metadata(path: Path) -> dict[str, dict[str, Any]]:
    """Metadata of every array, by its name from the top."""
    with decoding(path, "is not a readable zarr group"), reading(path):
        if not path.exists():
            raise MissingError(str(path.absolute()), ["no such file or directory; check data.episodes.path"])
        documents = _documents_in_zip(path) if path.is_file() else _documents_in(path)
    check_count(path, len(documents), "arrays and groups")
    if not {".zgroup", "zarr.json"} & set(documents):
        raise DataError(str(path), [f"is not a zarr group: it has no .zgroup or zarr.json{_folder_hint(documents)}"])
    return {name.rpartition("/")[0]: found for name, found in documents.items() if _is_array(found)}


def _documents_in_zip(path: Path) -> dict[str, Any]:
    """Metadata of groups and arrays in a zip file."""
    with zipfile.ZipFile(path) as archive:
        found = sorted({info.filename: info for info in archive.infolist() if _is_metadata(info.filename)}.items())
        check_count(path, len(found), "arrays and groups")
        for name, info in found:
            if info.file_size > SMALL:
                raise DataError(f"{path}/{name}", [f"declares {info.file_size} bytes of metadata"])
        return {name: json.loads(archive.read(name)) for name, _ in found}


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """Name below the folder and bytes of every regular file in it; anything else than files and folders is refused."""
    with reading(folder):
        for inside, _, names in os.walk(folder, followlinks=True, onerror=raise_error):
            for name in names:
                path = Path(inside, name)
                found = path.stat()
                with reading(path):
                    check_regular(path, found.st_mode)
                yield path.relative_to(folder).as_posix(), found.st_size


def _documents_in(path: Path) -> dict[str, Any]:
    """Metadata of groups and arrays in a directory; folders of chunks, which may be many, are not looked through."""
    documents: dict[str, Any] = {}
    for folder, inside, names in os.walk(path, followlinks=True, onerror=raise_error):
        inside.sort()
        here = {name: _read_json(Path(folder, name)) for name in sorted(filter(_is_metadata, names))}
        documents |= {Path(folder, name).relative_to(path).as_posix(): found for name, found in here.items()}
        if any(map(_is_array, here.values())):
            inside.clear()
    return documents


def _read_json(path: Path) -> Any:
    with reading(path):
        return json.loads(read_small(path))


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in (".zgroup", ".zarray", "zarr.json")


def _is_hidden(file: Path) -> bool:
    """Whether it was left by a file browser or a network disk, and is none of zarr's."""
    return file.name.startswith(".") and not file.name.startswith(".z")


def _is_array(document: Any) -> bool:
    shape = document.get("shape") if isinstance(document, dict) else None
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


def _folder_hint(documents: dict[str, Any]) -> str:
    """What to do when the group lies one or more folders down."""
    groups = [name.rpartition("/")[0] for name in documents if name.endswith(("/.zgroup", "/zarr.json"))]
    if not groups:
        return ""
    return f". The folder {min(groups, key=len)!r} inside is one: give that as path (unpack it first if this is a zip)"


def _chunk_lengths(array: zarr.Array) -> tuple[int, ...]:
    """Rows and elements of a stored chunk, which zarr calls a shard where it holds several, along each axis."""
    return array.shards or array.chunks


def _chunks_cut_short(folder: Path, metadata: dict[str, Any]) -> list[str]:
    """Chunks whose length is not the one in their blosc header; numcodecs would read on behind them."""
    codecs = metadata.get("codecs") or [metadata.get("compressor") or {}]
    if "blosc" not in (codecs[-1].get("id"), codecs[-1].get("name")):
        return []
    problems = []
    for file in folder.rglob("*"):
        if file.is_file() and not _is_hidden(file) and file.name not in (".zarray", ".zattrs", "zarr.json"):
            size = file.stat().st_size
            with reading(file), open_regular(file) as stream:
                header = stream.read(16)
            declared = struct.unpack("<I", header[12:])[0] if len(header) == 16 else 16
            if size != declared:
                chunk = file.relative_to(folder).as_posix()
                problems.append(f"chunk {chunk} is {size} bytes long; expected {declared}")
    return sorted(problems)
