"""Camera pictures: from the files of a data set, once, into a cache of frames at the size that a network sees.

A source reads the frames of one camera in order, as a format opens it; `cache` stores them resized; `rows` gives
the trainer frames by row number. A frame belongs to its row by count and order, checked while the cache is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BLOCK_BYTES = 2 << 20  # fits the cache of a core: larger blocks take a quarter longer for small frames


@dataclass(frozen=True)
class FramePart:
    """Frames that a file stores in sequence, and that are therefore read together."""

    where: str
    """The file (and array) that holds them, for messages."""

    episodes: tuple[int, ...]
    """Number of each episode, from 0 in the order of the rows; in the order of the file."""

    def rows(self, ends: np.ndarray) -> tuple[int, int]:
        """First row of episodes that follow one another, and the row after their last, given all exclusive ends."""
        first, last = self.episodes[0], self.episodes[-1]
        return (int(ends[first - 1]) if first else 0), int(ends[last])


@dataclass(frozen=True)
class FrameFile:
    """A file, which may be missing, of nothing but frames, and the episodes, by their number in the order of rows."""

    path: Path
    episodes: tuple[int, ...]
    begins: tuple[int, ...] | None = None
    """First frame of each episode, where the file holds frames of other episodes too; None without such frames."""


class StoredArray(Protocol):
    """How the rows of an array hold frames."""

    size: tuple[int, int]
    """Height and width of a frame."""

    channels_first: bool
    """Whether an axis of channels comes before those of rows and columns."""

    def frames(self, block: np.ndarray) -> np.ndarray:
        """(k, H, W, channels) of some rows.

        Raises:
            PixelError: a value is none of such frames.
        """
        ...

    def check(self, read_some: Callable[[], np.ndarray]) -> None:
        """Look at the first rows, where the type does not say what values mean.

        Raises:
            PixelError: they are no such frames, with the remedy.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Identity of the frames beside the order of axes; empty for three channels of uint8."""
        ...


class FrameContents(Protocol):
    """Colours or depth: how arrays, pictures and videos become frames of either."""

    channels: int
    """Channels of a frame."""

    dtype: np.dtype
    """Type of a frame's values."""

    def stored(self, shape: tuple[int, ...], dtype: np.dtype) -> StoredArray:
        """The layout of an array with one frame per row.

        Raises:
            PixelError: the array holds no such frames, or may hold something else.
        """
        ...

    def decode(self, data: bytes, where: str, size: tuple[int, int] | None) -> np.ndarray:
        """(H, W, channels) of an encoded picture of this height and width, or of any if None; `where` is for messages.

        Raises:
            DataError: it cannot be decoded, holds something else, or has another size.
        """
        ...

    def of_video(self) -> Callable[[Any], np.ndarray]:
        """A function from a frame of PyAV's to (H, W, channels), to be called frame after frame."""
        ...

    def video_fault(self, frame: Any) -> str | None:
        """Why the frames of a video are no such frames, and what is expected, after the name of their format."""
        ...

    def describe(self) -> dict[str, Any]:
        """Identity of the values beside the files; JSON-able, empty for colours."""
        ...


class FrameSource(Protocol):
    """The frames of one camera in the size and order of the recording. Damage of any kind is a `DataError`."""

    root: Path
    """The data set; the names of files are relative to it."""

    size: tuple[int, int]
    """Height and width of every frame."""

    ends: np.ndarray
    """(E,) exclusive end row of each episode."""

    parts: list[FramePart]
    """Every episode once. Parts may be read at the same time, each by a thread of its own."""

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """The frames of a part without the first `skip`, in order, as blocks: (k, H, W, 3) uint8 RGB, or depth,
        (k, H, W, 1) float32 metres.

        Exhausting it checks that the part holds exactly the frames of its episodes.
        """
        ...

    def files(self) -> list[Path]:
        """Every file that the pixels depend on and that `describe` does not cover."""
        ...

    def describe(self) -> dict[str, Any]:
        """Format and key, with whatever else decides about the pixels; JSON-able."""
        ...


def frame_bytes(size: tuple[int, int], contents: FrameContents) -> int:
    """Bytes of one frame of this height and width."""
    return size[0] * size[1] * contents.channels * contents.dtype.itemsize


def frames_per_block(frame_bytes: int) -> int:
    """How many frames a source hands on at a time, so that a thread needs little memory whatever their size."""
    return max(1, BLOCK_BYTES // max(1, frame_bytes))
