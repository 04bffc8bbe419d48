"""Frames of colours: 8 bit RGB."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.frames.picture_frames import decode_picture
from dp_prior.data.frames.stored_pixels import StoredPixels

if TYPE_CHECKING:
    import av


@dataclass(frozen=True)
class Colours:
    """See `FrameContents`."""

    channels, dtype = 3, np.dtype(np.uint8)

    def stored(self, shape: tuple[int, ...], dtype: np.dtype) -> StoredPixels:
        """See `FrameContents` and `StoredPixels`."""
        return StoredPixels.of(shape, dtype)

    def decode(self, data: bytes, where: str, size: tuple[int, int] | None) -> np.ndarray:
        """See `FrameContents` and `decode_picture`."""
        return decode_picture(data, where, size)

    def of_video(self) -> Callable[[av.VideoFrame], np.ndarray]:
        """See `FrameContents`."""
        import av
        from av.video.reformatter import VideoReformatter

        reformatter = (
            VideoReformatter()
        )  # kept, since each new one prepares its tables again: 3 times slower at 96 x 96
        # PyAV 17 began to split each frame between threads, which costs more than it saves where files are read side by
        # side: 4 times as long for 640 x 480 on two busy cores.
        how = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
        return lambda frame: _pixels(reformatter.reformat(frame, format="rgb24", **how))

    def video_fault(self, frame: av.VideoFrame) -> str | None:
        """See `FrameContents`."""
        components = frame.format.components
        kind = None
        if any(component.bits > 8 for component in components):
            kind = f"{max(component.bits for component in components)} bit, perhaps depth"
        elif frame.format.has_palette:
            kind = "a palette"
        elif any(component.is_alpha for component in components):
            kind = "an alpha channel"
        elif len(components) not in (1, 3):
            kind = f"{len(components)} components"
        return f"({kind}); expected 8 bit colour" if kind else None

    def describe(self) -> dict[str, Any]:
        """See `FrameContents`."""
        return {}


COLOURS = Colours()


def _pixels(frame: av.VideoFrame) -> np.ndarray:
    """(H, W, 3) of an rgb24 frame, whose rows may be padded; a view."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)
    return rows[:, : frame.width * 3].reshape(frame.height, frame.width, 3)
