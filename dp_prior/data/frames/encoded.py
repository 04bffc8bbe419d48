"""Frames in arrays whose rows are encoded pictures: PNG or JPEG, as texts or as bytes padded to one length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding
from dp_prior.data.frames import FramePart, frames_per_block, picture_frames
from dp_prior.data.frames.picture_frames import decode_picture
from dp_prior.pixels.picture_files import import_pillow

_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def is_encoded(row: Any) -> bool:
    """Whether a row of an array is an encoded picture."""
    try:
        return as_bytes(row).startswith(_SIGNATURES)
    except (TypeError, ValueError):
        return False


def as_bytes(row: Any) -> bytes:
    """The bytes of a row: bytes, or an array of uint8, whose padding decoders ignore."""
    return bytes(row) if isinstance(row, bytes) else np.asarray(row, dtype=np.uint8).tobytes()


class EncodedFrames:
    """See `FrameSource`."""

    def __init__(
        self,
        rows: Callable[[int, int], Iterator[Any]],
        ends: np.ndarray,
        root: Path,
        files: list[Path],
        described: dict[str, Any],
        parts: list[FramePart],
    ):
        """
        Args:
            rows: yields rows first to stop - 1 in order.
            described: see `FrameSource.describe`.
        """
        import_pillow()
        self.root, self.ends, self.parts = root, ends, parts
        self._rows, self._files = rows, files
        first = as_bytes(next(rows(0, 1)))
        self.size = decode_picture(first, parts[0].where, None).shape[:2]
        self._described = {**described, **picture_frames.turned(first)}

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """See `FrameSource`."""
        begin, stop = part.rows(self.ends)
        step = frames_per_block(self.size[0] * self.size[1] * 3)
        for first in range(begin + skip, stop, step):
            last = min(first + step, stop)
            with decoding(part.where, f"frames of rows {first} to {last - 1} cannot be read"):
                rows = [as_bytes(row) for row in self._rows(first, last)]
            if len(rows) != last - first:
                raise DataError(part.where, [f"holds {len(rows)} of the pictures {first} to {last - 1}"])
            yield np.stack(
                [decode_picture(row, f"{part.where}, row {first - begin + n}", self.size) for n, row in enumerate(rows)]
            )

    def files(self) -> list[Path]:
        """See `FrameSource`."""
        return self._files

    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""
        return self._described
