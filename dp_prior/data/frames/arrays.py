"""Frames in arrays with one picture per row, whatever stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding
from dp_prior.data.frames import FramePart

PART_FRAMES = 2048
"""Frames that one thread reads at a time."""

Blocks = Callable[[int, int], Iterator[np.ndarray]]
"""Rows first to stop - 1 of an array, in order, as blocks in the stored layout."""


@dataclass(frozen=True)
class PictureArray:
    """An array with one picture per row, of which nothing is read yet.

    Attributes:
        where: the file (and array) that holds it, for messages.
    """

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Blocks


class ArrayFrames:
    """See `FrameSource`."""

    def __init__(
        self,
        array: PictureArray,
        ends: np.ndarray,
        root: Path,
        files: list[Path],
        format: str,
        more: dict[str, Any] | None = None,
        parts: list[FramePart] | None = None,
    ):
        """
        Args:
            format, more: of `describe`.
            parts: episodes that are read together; None groups them by `PART_FRAMES`.

        Raises:
            DataError: they are no uint8 RGB pictures, one per row.
        """
        rows, shape = int(ends[-1]) if len(ends) else 0, array.shape
        problem = _not_pictures(shape, np.dtype(array.dtype), lambda: next(array.blocks(0, min(rows, 8))))
        if problem:
            raise DataError(array.where, [problem])
        if shape[0] != rows:
            found = f"holds {shape[0]} frames, but the episodes have {rows} rows; expected one per row"
            raise DataError(array.where, [found])
        self.root, self.ends = root, ends
        self._blocks, self._files, self._channels_first = array.blocks, files, shape[1] == 3 and shape[3] != 3
        self.size = tuple(shape[2:4] if self._channels_first else shape[1:3])
        self.parts = _grouped(array.where, ends) if parts is None else parts
        self._described = {"format": format, "channels_first": self._channels_first, **(more or {})}

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """See `FrameSource`."""
        first, stop = part.rows(self.ends)
        with decoding(part.where, f"frames of rows {first} to {stop - 1} cannot be read"):
            for block in self._blocks(first + skip, stop):
                yield block.transpose(0, 2, 3, 1) if self._channels_first else block

    def files(self) -> list[Path]:
        """See `FrameSource`."""
        return self._files

    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""
        return self._described


def _not_pictures(shape: tuple[int, ...], dtype: np.dtype, read_some: Callable[[], np.ndarray]) -> str | None:
    """Why an array does not hold 8 bit RGB pictures, and the remedy; None for an array that does."""
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


def _grouped(where: str, ends: np.ndarray) -> list[FramePart]:
    """Consecutive episodes, together until they have enough frames to be worth a thread's start."""
    parts: list[FramePart] = []
    first = 0
    for episode, end in enumerate(ends):
        if end - (ends[first - 1] if first else 0) >= PART_FRAMES or episode == len(ends) - 1:
            parts.append(FramePart(where, tuple(range(first, episode + 1))))
            first = episode + 1
    return parts


def row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of one row of an array of this shape."""
    return int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
