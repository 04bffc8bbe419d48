"""The chunks of a zarr array: stored bytes, missing chunks, and chunks that are cut short."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import reading
from dp_prior.data.found_files import raise_error
from dp_prior.files.regular_files import check_regular, open_regular

if TYPE_CHECKING:
    import zarr

DEFLATE_RATIO = 1100
"""Largest number of bytes that a byte of a zip file decodes to: deflate reaches 1032."""

MOST_CHUNKS_COUNTED = 1_000_000
"""Up to this number, all declared chunks are looked for; in larger arrays, only enough to name some missing chunks."""


def stored_bytes(path: Path, name: str) -> dict[str, int]:
    """Bytes of each file of an array in a group, by the file's name below the array."""
    if path.is_file():
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.startswith(f"{name}/")]
        sizes = {info.filename: min(info.file_size, info.compress_size * DEFLATE_RATIO) for info in members}
        return {file.removeprefix(f"{name}/"): size for file, size in sizes.items()}
    return dict(_files_below(path / name, path))


def missing_chunks(array: zarr.Array, present: Collection[str], ends: np.ndarray | None) -> str:
    """Describe missing chunks: their number, and the first three with the episodes of their rows; empty if none is
    missing.

    Args:
        present: names of the files of the array.
        ends: (E,) exclusive end row of each episode; None for an array without a row per step.
    """
    grid = [-(-size // length) for size, length in zip(array.shape, chunk_lengths(array), strict=True)]
    total = math.prod(grid)
    looked_at = total if total <= MOST_CHUNKS_COUNTED else len(present) + 4  # at least four of them are missing
    key_of = array.metadata.encode_chunk_key
    indices = (np.unravel_index(number, grid) for number in range(looked_at))
    missing = [index for index in indices if key_of(index) not in present]
    if not missing:
        return ""
    listed = [key_of(index) + _episodes_of(array, index, ends) for index in missing[:3]]
    listed += ["..."] if len(missing) > 3 else []
    chunks = [name for name in present if not name.startswith(".") and name != "zarr.json"]
    count = len(missing) if looked_at == total else total - len(chunks)
    return f"{count} of {total} chunks are missing: {', '.join(listed)}"


def _episodes_of(array: zarr.Array, index: tuple[int, ...], ends: np.ndarray | None) -> str:
    if ends is None:
        return ""
    length = chunk_lengths(array)[0]
    first, stop = index[0] * length, min((index[0] + 1) * length, array.shape[0])
    begin, end = (int(np.searchsorted(ends, row, side="right")) for row in (first, stop - 1))
    return f" (rows {first} to {stop - 1}, episode{f's {begin} to {end}' if end > begin else f' {begin}'})"


def chunk_lengths(array: zarr.Array) -> tuple[int, ...]:
    """Lengths of a stored chunk along each axis; zarr calls a stored chunk that holds several chunks a shard."""
    return array.shards or array.chunks


def chunks_cut_short(folder: Path, metadata: dict[str, Any]) -> list[str]:
    """Describe chunks whose length differs from their blosc header; numcodecs would read memory behind them."""
    codecs = metadata.get("codecs") or [metadata.get("compressor") or {}]
    if "blosc" not in (codecs[-1].get("id"), codecs[-1].get("name")):
        return []
    problems = []
    for file in folder.rglob("*"):
        if file.is_file() and not is_hidden(file) and file.name not in (".zarray", ".zattrs", "zarr.json"):
            size = file.stat().st_size
            with reading(file), open_regular(file) as stream:
                header = stream.read(16)
            declared = struct.unpack("<I", header[12:])[0] if len(header) == 16 else 16
            if size != declared:
                chunk = file.relative_to(folder).as_posix()
                problems.append(f"chunk {chunk} is {size} bytes long; expected {declared}")
    return sorted(problems)


def is_hidden(file: Path) -> bool:
    """Whether a file was left by a file browser or a network disk, not by zarr."""
    return file.name.startswith(".") and not file.name.startswith(".z")


def _check_link(path: Path, data_set: Path) -> None:
    """Raises DataError for a file that is a link out of its data set, other than into the store of a Hub's client or of
    git-annex around the data set. Folders may be links to another disk."""
    target, real = os.path.realpath(path), Path(os.path.realpath(data_set))
    stores = [folder / store for folder in real.parents for store in ("blobs", ".git/annex/objects")]
    if not any(Path(target).is_relative_to(home) for home in (real, os.path.realpath(path.parent), *stores)):
        remedy = "if it is meant, put the file in the place of the link (cp -rL copies a data set like that)"
        raise DataError(str(path), [f"is a link out of the data set, to {target}; {remedy}"])


def _files_below(folder: Path, data_set: Path) -> Iterator[tuple[str, int]]:
    """List the regular files in a folder, as name below the folder and bytes; refuses other things than files."""
    with reading(folder):
        for inside, _, names in os.walk(folder, followlinks=True, onerror=raise_error):
            for name in names:
                path = Path(inside, name)
                if path.is_symlink():
                    _check_link(path, data_set)
                status = path.stat()
                with reading(path):
                    check_regular(path, status.st_mode)
                yield path.relative_to(folder).as_posix(), status.st_size
