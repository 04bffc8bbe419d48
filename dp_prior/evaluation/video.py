"""Videos: h264 written frame by frame, so that memory does not grow with length, and GIFs made from them."""

from __future__ import annotations

import fractions
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np


def import_av() -> Any:
    """PyAV, or an ImportError that names the extra."""
    try:
        import av
    except ImportError as error:
        raise ImportError(f'videos need PyAV ({error}): pip install "dp_prior[video]"; or set videos to 0') from error
    return av


class VideoWriter:
    """An .mp4 that appears under its name when it is complete. Use it in a `with` statement."""

    def __init__(self, path: Path, fps: float, crf: int = 23):
        """
        Args:
            crf: x264's quality; 18 is visually lossless, 28 small.
        """
        self.path = path
        self.fps = fps
        self.crf = crf
        self._part = path.with_name(path.name + ".part")
        self._container: Any = None

    def write(self, frame: np.ndarray) -> None:
        """Append a frame (height, width, 3) uint8; all have the size of the first."""
        av = import_av()
        if self._container is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._part), "w", format="mp4", options={"movflags": "+faststart"})
            rate = fractions.Fraction(self.fps).limit_denominator(1000)
            self._stream = self._container.add_stream(
                "h264", rate=rate, options={"crf": str(self.crf), "preset": "veryfast"}
            )
            self._stream.height, self._stream.width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
            self._stream.pix_fmt = "yuv420p"  # the only format every player knows; it needs even sides
            self._stream.codec_context.thread_count = 1  # the other cores are training
        even = np.ascontiguousarray(frame[: self._stream.height, : self._stream.width])
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._container is None:
            return
        try:
            if kind is None:
                self._container.mux(self._stream.encode())
        finally:
            self._container.close()
        if kind is None:
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)


def read_video(path: Path) -> Iterator[np.ndarray]:
    """The frames of a video, (height, width, 3) uint8 each, in order."""
    with import_av().open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def write_gif(
    video: Path, path: Path, *, width: int = 320, every: int = 1, speed: float = 1.0, max_frames: int = 400
) -> Path:
    """A video as an endlessly repeating GIF, for places that show no video.

    Args:
        width: of the GIF in pixels; the height follows.
        every: keep each so-manieth frame.
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
    indexed[0].save(
        path, format="GIF", save_all=True, append_images=indexed[1:], duration=duration_ms, loop=0, optimize=True
    )
    return path
