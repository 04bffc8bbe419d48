"""The rule by which arrays with one picture per row become 8 bit RGB without a loss; other arrays are refused by name.

Floats and wide integers must be whole numbers from 0 to 255, as Diffusion Policy's Push-T pictures are. Greyscale is
repeated in three channels. A fourth channel of 255 alone is opaque alpha and left out; any other may be depth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

EXPECTED = "expected (N, H, W, 3) uint8"


class PixelError(ValueError):
    """Values that are no 8 bit pictures. Attributes: row: the first such row of the block; None for the whole array."""

    def __init__(self, problem: str, row: int | None = None):
        self.row = row
        super().__init__(problem)


@dataclass(frozen=True)
class FrameAxes:
    """Which axes of an array, one frame per row, hold the frame.

    Attributes:
        shape: of the whole array.
        axis: of the channels; None for one channel without such an axis.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    axis: int | None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        height, width = (length for axis, length in enumerate(self.shape) if axis not in (0, self.axis))
        return height, width

    @property
    def channels_first(self) -> bool:
        """Whether an axis of channels comes before those of rows and columns."""
        return self.axis == 1


@dataclass(frozen=True)
class StoredPixels(FrameAxes):
    """How the rows of an array hold their pictures. Attributes: channels: 1, 3 or 4."""

    channels: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype) -> StoredPixels:
        """The layout of an array.

        Raises:
            PixelError: the array holds no pictures, or may hold something else.
        """
        stored = f"holds {dtype.name} of shape {tuple(shape)}"
        if len(shape) not in (3, 4) or 0 in shape[1:]:
            remedy = '. If they are PNG or JPEG, decode them, or write them to files and name their "folder"'
            raise PixelError(f"{stored}, which is no array of pictures; {EXPECTED}{remedy if len(shape) < 3 else ''}")
        if len(shape) == 4 and shape[3] == 3 and shape[1] == 3:
            raise PixelError(
                f"{stored}: whether channels come first or last cannot be told; {EXPECTED} with H other than 3"
            )
        axes = itertools.product((3, 4, 1), (3, 1)) if len(shape) == 4 else ()
        axis = next((axis for count, axis in axes if shape[axis] == count), None)
        if len(shape) == 4 and axis is None:
            raise PixelError(f"{stored}, which has no axis of 3 channels; {EXPECTED}")
        layout = cls(shape, dtype, axis, 1 if axis is None else shape[axis])
        if layout.channels == 1 and dtype != np.uint8:
            raise PixelError(f"{stored}, which may be depth, for data.depth; {EXPECTED}")
        if dtype.kind in "iu" and dtype.itemsize == 2:
            remedy = "Scale them to 0 to 255 once; depth goes into data.depth"
            raise PixelError(f"{stored}, which may be depth or 16 bit pictures; {EXPECTED}. {remedy}")
        if dtype != np.uint8 and dtype.kind != "f" and not (dtype.kind in "iu" and dtype.itemsize > 2):
            raise PixelError(f"{stored}; {EXPECTED}")
        return layout

    def describe(self) -> dict[str, Any]:
        """Identity of the pixels beside the order of axes; empty for three channels of uint8."""
        stored = {} if self.dtype == np.uint8 else {"stored": self.dtype.name}
        return stored if self.channels == 3 else {**stored, "channels": self.channels}

    def frames(self, block: np.ndarray) -> np.ndarray:
        """See `StoredArray`; (k, H, W, 3) uint8.

        Raises:
            PixelError: a value is not whole, not in 0 to 255, or not opaque.
        """
        pictures = self._as_bytes(block)
        if self.axis is None:
            pictures = pictures[..., None]
        elif self.channels_first:
            pictures = np.moveaxis(pictures, 1, 3)
        if self.channels == 4:
            clear = _first_row(pictures[..., 3] != 255)
            if clear is not None:
                rgb = "x[:, :3]" if self.channels_first else "x[..., :3]"
                raise PixelError(f"has 4 channels, the last not 255 everywhere (alpha or depth). Save {rgb}", clear)
            return pictures[..., :3]
        return np.repeat(pictures, 3, axis=3) if self.channels == 1 else pictures

    def check(self, read_some: Callable[[], np.ndarray]) -> None:
        """Look at the first rows, where the type does not say what values mean.

        Raises:
            PixelError: they are no 8 bit pictures, with the remedy.
        """
        if self.dtype == np.uint8 and self.channels != 4:
            return
        some = read_some()
        if self.dtype.kind == "f" and 0 < np.nanmax(some, initial=0) <= 1:
            finding = f"holds {self.dtype.name} with values from {np.nanmin(some):g} to {np.nanmax(some):g}"
            raise PixelError(f"{finding}; {EXPECTED}. Convert it once: np.round(x * 255).astype(np.uint8)")
        self.frames(some)

    def _as_bytes(self, block: np.ndarray) -> np.ndarray:
        if self.dtype == np.uint8:
            return block
        with np.errstate(invalid="ignore"):
            pictures = block.astype(np.uint8)
        row = _first_row(pictures != block)
        if row is None:
            return pictures
        value = block[row][pictures[row] != block[row]][0]
        finding = f"holds {self.dtype.name} with the value {value:g}; expected whole numbers from 0 to 255"
        whole = "np.round(x * 255)" if np.nanmax(block, initial=0) <= 1 else "np.round(x)"
        remedy = f"{whole}.astype(np.uint8)" if 0 <= value <= 255 else "scale them to 0 to 255"
        raise PixelError(f"{finding}. Convert it once: {remedy}", row)


def _first_row(is_wrong: np.ndarray) -> int | None:
    rows = np.flatnonzero(is_wrong.reshape(len(is_wrong), -1).any(axis=1))
    return int(rows[0]) if len(rows) else None
