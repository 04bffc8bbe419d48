"""The resize of camera pictures for the frame cache, the agent and the server.

Depth takes the nearest pixel: a mean across an edge would be a distance at which no object stands.

A policy must see the same pixels in training and on the robot, and resize algorithms differ: swscale's AREA from ours
by 1.2 on average and by 47 at most. Therefore no other module of the package resizes, and a checkpoint keeps the `Fit`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from dp_prior.config import Config

MOST_PIXELS = 8192

Pixels = Annotated[int, Field(ge=1, le=MOST_PIXELS)]

MILLION = 1_000_000


def _ordered(region: tuple[float, ...]) -> tuple[float, ...]:
    """Check a region. Raises ValueError unless it is a part of a picture."""
    row, column, row_end, column_end = map(_millionths, region)
    if not (0 <= row < row_end <= MILLION and 0 <= column < column_end <= MILLION):
        raise ValueError(
            f"{list(region)} is no part of a picture; expected [top, left, bottom, right] as shares from 0 to 1, with "
            f"top < bottom and left < right: divide rows by the picture's height, columns by its width"
        )
    return region


def _millionths(share: float) -> int:
    return round(share * MILLION)


Region = Annotated[tuple[float, float, float, float], AfterValidator(_ordered)]
"""Top, left, bottom and right of a part of a picture, as shares of its height and width."""

WHOLE: Region = (0.0, 0.0, 1.0, 1.0)

Turn = Literal["right", "half", "left", "up_down", "left_right"]
"""A quarter turn clockwise, half a turn, a quarter turn counterclockwise, or rows or columns in the opposite order."""


class Fit(Config):
    """How a picture of any size becomes one of the size that a network sees: cut, then resized."""

    size: tuple[Pixels, Pixels]
    """Height and width in pixels."""

    how: Literal["resize", "crop", "letterbox"] = "resize"
    """Where the aspect ratios differ: stretch the picture (resize), cut equal strips off its longer sides (crop), or
    add equal black strips (letterbox)."""

    version: Literal[1] = 1
    """Version of the algorithm; changes whenever a pixel does. 1 is torch's antialiased bilinear kernel on uint8, and
    for depth the nearest pixel."""

    region: Region | None = None
    """The part of the turned picture that is cut out and then fitted, in pixels see `box`; null: the whole picture."""

    turn: Turn | None = None
    """How the picture is turned before all else; null: not at all."""

    bgr: bool = False
    """The picture holds blue, green and red, which become red, green and blue."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write a `Fit` of whole upright pictures like versions without regions and turns did."""
        optional = {"region": None, "turn": None, "bgr": False}
        return {name: value for name, value in write(self).items() if optional.get(name, ...) != value}

    @property
    def changes_all(self) -> bool:
        """Whether pictures of the network's size are changed too: cut, turned, or of exchanged colours."""
        return self.region is not None or self.turn is not None or self.bgr

    def turned_size(self, high: int, wide: int) -> tuple[int, int]:
        """Height and width, after the turn, of pictures of this height and width."""
        return (wide, high) if self.turn in ("right", "left") else (high, wide)

    def turned(self, frames: Tensor) -> Tensor:
        """Turn (N, H, W, C) pictures and exchange their colours; the same pictures where nothing is to be done."""
        frames = frames.flip(3) if self.bgr else frames
        if self.turn in ("right", "left"):
            return frames.transpose(1, 2).flip(2 if self.turn == "right" else 1)
        axes = {"half": (1, 2), "up_down": (1,), "left_right": (2,)}.get(self.turn)
        return frames if axes is None else frames.flip(axes)

    def box(self, high: int, wide: int) -> tuple[slice, slice]:
        """Rows and columns of the region in turned pictures, which have this height and width before the turn.

        A side of the region is `share * length`, with the share in whole millionths, rounded to the nearest pixel and
        a half upward, all in integers.

        Raises:
            ValueError: the region has no row or no column.
        """
        high, wide = self.turned_size(high, wide)
        region, lengths = self.region or WHOLE, (high, wide, high, wide)
        sides = [_ratio(_millionths(share) * length, MILLION) for share, length in zip(region, lengths, strict=True)]
        row, column, row_end, column_end = sides
        if row == row_end or column == column_end:
            raise ValueError(
                f"region {list(region)} has {row_end - row} rows and {column_end - column} columns in pictures of "
                f"{high} x {wide} (height x width); expected at least one pixel: take a larger region or picture"
            )
        return slice(row, row_end), slice(column, column_end)

    def seen(self, high: int, wide: int) -> str:
        """Describe the visible part of pictures of this height and width, and their turn; empty for whole upright
        pictures."""
        if not self.changes_all:
            return ""
        rows, columns = (f"{side.start} to {side.stop - 1}" for side in self.box(high, wide))
        high, wide = self.turned_size(high, wide)
        changes = (f", turned {self.turn}" if self.turn else "") + ", blue and red exchanged (bgr)" * self.bgr
        return f"sees rows {rows} and columns {columns} of {high} x {wide}{changes}"

    @property
    def drawn(self) -> tuple[int, int]:
        """Height and width, before the turn, of a picture whose region has `size`, to the nearest pixel."""
        row, column, row_end, column_end = map(_millionths, self.region or WHOLE)
        high, wide = _ratio(self.size[0] * MILLION, row_end - row), _ratio(self.size[1] * MILLION, column_end - column)
        return self.turned_size(high, wide)

    def apply(self, frames: Tensor) -> Tensor:
        """Fit pictures of one size: (N, H, W, 3) uint8 -> (N, height, width, 3) uint8, both RGB, on the CPU; or depth,
        (N, H, W, 1) float32 -> (N, height, width, 1), which holds no new value but the 0 of strips.

        The result depends only on the pixels of each picture: not on N, the memory layout, the number of threads or the
        processor (the kernel computes in integers). Returns `frames` itself for pictures of this size without a region
        and a turn.
        Raises ValueError for other arrays, and see `box`.
        """
        is_frame = (frames.dtype, *frames.shape[3:]) in ((torch.uint8, 3), (torch.float32, 1))
        if not is_frame or 0 in frames.shape[1:3]:
            raise ValueError(f"pictures are {frames.dtype} of shape {tuple(frames.shape)}; expected uint8 (N, H, W, 3)")
        if frames.device.type != "cpu":
            raise ValueError(f"pictures are on {frames.device}; expected on the CPU: GPU kernels round differently")
        size, frames = frames.shape[1:3], self.turned(frames)
        if self.region is not None:
            rows, columns = self.box(*size)
            frames = frames[:, rows, columns]
        frames = frames.contiguous() if self.changes_all else frames
        if frames.shape[1:3] == self.size:
            return frames
        if self.how == "crop":
            frames = cropped(frames, *self.size)
        if self.how != "letterbox":
            return _resize(frames, *self.size)
        height, width = inside(frames.shape[1], frames.shape[2], *self.size)
        row, column = (self.size[0] - height) // 2, (self.size[1] - width) // 2
        fitted = frames.new_zeros((len(frames), *self.size, frames.shape[3]))
        fitted[:, row : row + height, column : column + width] = _resize(frames, height, width)
        return fitted


def cropped(frames: Tensor, height: int, width: int) -> Tensor:
    """Cut (N, H, W, C) to the largest centred part with the aspect ratio height : width, rounded to whole pixels."""
    high, wide = frames.shape[1:3]
    if wide * height >= high * width:
        length = max(1, _ratio(high * width, height))
        return frames[:, :, (wide - length) // 2 :][:, :, :length]
    length = max(1, _ratio(wide * height, width))
    return frames[:, (high - length) // 2 :][:, :length]


def inside(high: int, wide: int, height: int, width: int) -> tuple[int, int]:
    """The largest size within height and width that has the aspect ratio high : wide."""
    if wide * height >= high * width:
        return max(1, _ratio(high * width, wide)), width
    return height, max(1, _ratio(wide * height, high))


def _ratio(numerator: int, denominator: int) -> int:
    """Round a ratio to nearest, in integers, so that a row of pixels never depends on floating-point rounding."""
    return (2 * numerator + denominator) // (2 * denominator)


def nearest(length: int, fitted: int) -> Tensor:
    """(fitted,) int64: the index, in a line of `length` pixels, of the pixel at the centre of each fitted pixel."""
    return (2 * torch.arange(fitted) + 1) * length // (2 * fitted)


def _resize(frames: Tensor, height: int, width: int) -> Tensor:
    if frames.shape[1:3] == (height, width) or len(frames) == 0:
        return frames.new_zeros((0, height, width, frames.shape[3])) if len(frames) == 0 else frames.contiguous()
    if frames.shape[3] == 1:
        return frames[:, nearest(frames.shape[1], height)][:, :, nearest(frames.shape[2], width)].contiguous()
    # torch calls contiguous NHWC, viewed as NCHW, channels-last: the uint8 kernel for this layout is 6 times faster
    # than float32; on other layouts it fails an internal assertion if the result is 1 x 1 (torch 2.13).
    planes = frames.contiguous().permute(0, 3, 1, 2)
    fitted = F.interpolate(planes, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
    return fitted.permute(0, 2, 3, 1).contiguous()
