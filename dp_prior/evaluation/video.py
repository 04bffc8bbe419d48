"""Videos: h264 written frame by frame, so that memory does not grow with length, and GIFs made from them."""

from __future__ import annotations

import contextlib
import fractions
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dp_prior.durable import replacing


def import_av() -> Any:
    """PyAV, or an ImportError that names the extra."""
    try:
        import av
    except ImportError as error:
        raise ImportError(f'videos need PyAV ({error}): pip install "dp_prior[video]"; or set videos to 0') from error
    return av


class VideoWriter:
    """An .mp4 that appears under its name, durably, when it is complete. Use it in a `with` statement."""

    def __init__(self, path: Path, fps: float, crf: int = 23):
        """
        Args:
            crf: x264's quality; 18 is visually lossless, 28 small.
        """
        self.path = path
        self.fps = fps
        self.crf = crf
        self._container: Any = None
        self._file = contextlib.ExitStack()

    def write(self, frame: np.ndarray) -> None:
        """Append a frame (height, width, 3) uint8; all have the size of the first."""
        av = import_av()
        if self._container is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.enter_context(replacing(self.path))
            self._container = av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"})
            rate = fractions.Fraction(self.fps).limit_denominator(1000)
            self._stream = self._container.add_stream(
                "h264", rate=rate, options={"crf": str(self.crf), "preset": "veryfast"}
            )
            self._stream.height, self._stream.width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
            self._stream.pix_fmt = "yuv420p"  # the only format that every player supports; it needs even sides
            self._stream.codec_context.thread_count = 1  # the other cores are training
        even = np.ascontiguousarray(frame[: self._stream.height, : self._stream.width])
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        with self._file:  # closed last: it syncs and renames, or deletes
            if self._container is not None:
                with contextlib.closing(self._container):
                    if error is None:
                        self._container.mux(self._stream.encode())
            if error is not None:
                raise error


def read_video(path: Path) -> Iterator[np.ndarray]:
    """The frames of a video, (height, width, 3) uint8 each, in order."""
    with import_av().open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def write_gif(
    video: Path, path: Path, *, width: int = 320, every: int = 1, speed: float = 1.0, max_frames: int = 400
) -> Path:
    """Convert a video to an endlessly repeating GIF, for pages that cannot show videos.

    Args:
        width: of the GIF in pixels; the height follows.
        every: keep every N-th frame.
        speed: times real time.
        max_frames: the rest is cut off.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f'GIFs need Pillow ({error}): pip install "dp_prior[plots]"') from error
    with import_av().open(str(video)) as container:
        fps = float(container.streams.video[0].average_rate)
    pictures = []
    for number, frame in enumerate(read_video(video)):
        if number % every == 0:
            height = round(frame.shape[0] * width / frame.shape[1])
            pictures.append(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS))
        if len(pictures) == max_frames:
            break
    # One palette for all frames, taken from a sheet of several, keeps colours from flickering.
    picked = pictures[:: max(1, len(pictures) // 8)]
    sheet = Image.new("RGB", (width, sum(picture.height for picture in picked)))
    for row, picture in enumerate(picked):
        sheet.paste(picture, (0, row * picture.height))
    palette = sheet.quantize(colors=128, method=Image.Quantize.MEDIANCUT)
    indexed = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    duration_ms = max(20, round(1000 * every / (fps * speed)))  # browsers slow down what is faster than 20 ms
    path.parent.mkdir(parents=True, exist_ok=True)
    looped = {"duration": duration_ms, "loop": 0, "optimize": True}
    with replacing(path) as temporary:
        indexed[0].save(temporary, format="GIF", save_all=True, append_images=indexed[1:], **looped)
    return path
