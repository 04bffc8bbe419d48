"""Camera pictures: from the files of a data set, once, into a cache of uint8 frames at the size that a network sees.

A source reads the frames of one camera in order, as a format opens it; `cache` stores them resized; `rows` gives
the trainer frames by row number. A frame belongs to its row by count and order, checked while the cache is built.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class FrameSource(Protocol):
    """The frames of one camera, RGB, in the size and order of the recording. Damage of any kind is a `DataError`."""

    root: Path
    """The data set; the names of files are relative to it."""

    size: tuple[int, int]
    """Height and width of every frame."""

    ends: np.ndarray
    """(E,) exclusive end row of each episode."""

    parts: list[FramePart]
    """Every episode once. Parts may be read at the same time, each by a thread of its own."""

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """The frames of a part without the first `skip`, in order, as blocks of (k, H, W, 3) uint8.

        Exhausting it checks that the part holds exactly the frames of its episodes.
        """
        ...

    def files(self) -> list[Path]:
        """Every file that the pixels depend on and that `describe` does not cover."""
        ...

    def describe(self) -> dict[str, Any]:
        """Format and key, with whatever else decides about the pixels; JSON-able."""
        ...


def frames_per_block(frame_bytes: int) -> int:
    """How many frames a source hands on at a time, so that a thread needs little memory whatever their size."""
    return max(1, BLOCK_BYTES // max(1, frame_bytes))
