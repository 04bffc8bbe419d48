"""Frames in arrays with one picture per row: zarr replay buffers, npz files and robomimic's HDF5."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.episodes.npz import NpzStore
from dp_prior.data.episodes.robomimic import RobomimicStore
from dp_prior.data.episodes.zarr import ZarrStore
from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding, npy_header
from dp_prior.data.frames import Part, frames_per_block

PART_FRAMES = 2048
"""Frames that one thread reads at a time."""

Blocks = Callable[[int, int], Iterator[np.ndarray]]
"""Rows first to stop - 1 of an array, in order, as blocks in the stored layout."""


@dataclass(frozen=True)
class ArrayFrames:
    """See `FrameSource`."""

    root: Path
    where: str
    size: tuple[int, int]
    channels_first: bool
    ends: np.ndarray
    parts: list[Part]
    blocks: Blocks
    paths: list[Path]
    described: dict[str, Any]

    def read(self, part: Part, skip: int) -> Iterator[np.ndarray]:
        """See `FrameSource`."""
        first, stop = part.rows(self.ends)
        with decoding(part.where, f"frames of rows {first} to {stop - 1} cannot be read"):
            for block in self.blocks(first + skip, stop):
                yield block.transpose(0, 2, 3, 1) if self.channels_first else block

    def files(self) -> list[Path]:
        """See `FrameSource`."""
        return self.paths

    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""
        return self.described


def zarr_frames(store: ZarrStore, key: str, ends: np.ndarray) -> ArrayFrames:
    """The pictures of a replay buffer; chunks are decoded one after another, never the whole array.

    Raises:
        DataError: they are no uint8 RGB pictures, one per row, or chunks are missing or cut short.
    """
    where, array = store.locate(key, 0), store.open(key)

    def blocks(first: int, stop: int) -> Iterator[np.ndarray]:
        chunk = (array.shards or array.chunks)[0]
        step = chunk * frames_per_block(chunk * _bytes_per_row(array.shape, array.dtype))
        for row in range(first - first % step, stop, step):
            yield np.asarray(array[max(first, row) : min(stop, row + step)])

    return _array_frames(store.path, where, array.shape, array.dtype, ends, blocks, store.files([key]), store)


def npz_frames(store: NpzStore, key: str, ends: np.ndarray) -> ArrayFrames:
    """The pictures of an `.npz` file, decompressed from its beginning to its end, never the whole array at once.

    Raises:
        DataError: they are no uint8 RGB pictures, one per row.
    """
    where, (shape, dtype) = store.locate(key, 0), store.headers[key]

    def blocks(first: int, stop: int) -> Iterator[np.ndarray]:
        row_bytes = _bytes_per_row(shape, dtype)
        step = frames_per_block(row_bytes)
        with zipfile.ZipFile(store.path) as archive, archive.open(f"{key}.npy") as stream:
            if npy_header(stream)[1]:
                raise DataError(where, ["is in Fortran order; save np.ascontiguousarray of it"])
            stream.seek(first * row_bytes, 1)
            for row in range(first, stop, step):
                count = min(step, stop - row)
                block = np.frombuffer(stream.read(count * row_bytes), dtype)
                yield block.reshape(count, *shape[1:])

    found = _array_frames(store.path, where, shape, dtype, ends, blocks, [store.path], store)
    # A member of a zip file can only be decompressed from its beginning, so one thread reads all of it.
    return replace(found, parts=[Part(where, tuple(range(len(ends))))])


def robomimic_frames(store: RobomimicStore, key: str, ends: np.ndarray) -> ArrayFrames:
    """The pictures of robomimic's demonstrations, such as `obs/agentview_image`.

    Raises:
        DataError: they are no uint8 RGB pictures, one per row, or a demonstration has none or others.
    """
    shape, dtype = store.layout(key)

    def blocks(first: int, stop: int) -> Iterator[np.ndarray]:
        return store.blocks(key, first, stop, frames_per_block(_bytes_per_row(shape, dtype)))

    found = _array_frames(store.path, f"{store.path}[{key}]", shape, dtype, ends, blocks, [store.path], store)
    return replace(found, described={**found.described, "demonstrations": store.demonstrations})


def _array_frames(
    root: Path,
    where: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    ends: np.ndarray,
    blocks: Blocks,
    paths: list[Path],
    store: ZarrStore | NpzStore | RobomimicStore,
) -> ArrayFrames:
    rows = int(ends[-1]) if len(ends) else 0
    problem = _not_pictures(shape, np.dtype(dtype), lambda: next(blocks(0, min(rows, 8))))
    if problem:
        raise DataError(where, [problem])
    if shape[0] != rows:
        raise DataError(where, [f"holds {shape[0]} frames, but the episodes have {rows} rows; expected one per row"])
    channels_first = shape[1] == 3 and shape[3] != 3
    size = shape[2:4] if channels_first else shape[1:3]
    described = {"format": store.describe()["format"].split(" ")[0], "channels_first": channels_first}
    return ArrayFrames(root, where, tuple(size), channels_first, ends, _grouped(where, ends), blocks, paths, described)


def _not_pictures(shape: tuple[int, ...], dtype: np.dtype, read_some: Callable[[], np.ndarray]) -> str | None:
    """Why an array does not hold 8 bit RGB pictures, with what to do; None if it does."""
    expected = "expected (N, H, W, 3) uint8"
    stored = f"holds {dtype.name} of shape {tuple(shape)}"
    if len(shape) == 3 or (len(shape) == 4 and 1 in (shape[1], shape[3])):
        if dtype == np.uint8:
            channels = f"np.repeat(x, 3, axis={3 if shape[-1] == 1 else 1})"
            remedy = "np.stack([x] * 3, axis=3)" if len(shape) == 3 else channels
            return f"{stored}, which is greyscale; {expected}. Repeat the channel: {remedy}"
        return f"{stored}, which may be depth; {expected}"
    if len(shape) != 4 or 0 in shape[1:]:
        remedy = '. If they are PNG or JPEG, decode them, or write them to files and name their "folder"'
        return f"{stored}, which is no array of pictures; {expected}{remedy if len(shape) < 3 else ''}"
    if shape[3] != 3 and shape[1] != 3:
        if 4 in (shape[1], shape[3]):
            rgb = "x[..., :3]" if shape[3] == 4 else "x[:, :3]"
            return f"{stored}, which has 4 channels (alpha or depth); only RGB is read. Save {rgb}"
        return f"{stored}, which has no axis of 3 channels; {expected}"
    if shape[3] == 3 and shape[1] == 3:
        return f"{stored}: whether channels come first or last cannot be told; {expected} with H other than 3"
    if dtype.kind == "f":
        some = read_some()
        low, high = float(np.nanmin(some)), float(np.nanmax(some))
        remedy = "np.round(x * 255).astype(np.uint8)" if high <= 1.0 else "np.round(x).astype(np.uint8)"
        return f"{stored} with values from {low:g} to {high:g}; {expected}. Convert it once: {remedy}"
    if dtype.itemsize > 1:
        return f"{stored}, which may be depth or 16 bit pictures; {expected}. Scale them to 0 to 255 once"
    return None if dtype == np.uint8 else f"{stored}; {expected}"


def _grouped(where: str, ends: np.ndarray) -> list[Part]:
    """Consecutive episodes, together until they have enough frames to be worth a thread's start."""
    parts: list[Part] = []
    first = 0
    for episode, end in enumerate(ends):
        if end - (ends[first - 1] if first else 0) >= PART_FRAMES or episode == len(ends) - 1:
            parts.append(Part(where, tuple(range(first, episode + 1))))
            first = episode + 1
    return parts


def _bytes_per_row(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
