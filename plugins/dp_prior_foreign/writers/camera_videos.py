"""The videos of a camera in a LeRobot data set, compressed as LeRobot does by default, so that its tools join both."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.tensors.pixels.video_files import import_av
from dp_prior.tensors.pixels.video_writer import Compression, VideoWriter

VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILES_PER_CHUNK = 1000

VIDEO_BYTES = 200 << 20
"""A video is closed after the episode with which it has this size, as LeRobot does."""

LEAST_SIDE, MOST_FPS = 64, 240
"""Smaller and faster frames stay pictures: SVT-AV1 refuses the latter, and at 16 x 16 some versions end the process."""

_CHOSEN = {"g": 2, "crf": 30, "preset": 12, "fast_decode": 0}
"""LeRobot's defaults: every second frame can be decoded by itself."""

AV1 = Compression(
    "libsvtav1",
    {**{name: str(_CHOSEN[name]) for name in ("g", "crf", "preset")}, "svtav1-params": "fast-decode=0"},
)


def place_of(number: int) -> dict[str, int]:
    """Chunk and file of a numbered file, named as in the episode list and in templates of paths."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return {"chunk_index": chunk, "file_index": file}


class CameraVideos:
    """Writes the episodes of a camera to a video, and begins the next video when a file is full."""

    def __init__(self, folder: Path, key: str, fps: float):
        """Args: folder: folder of the data set."""
        self._folder, self._key, self._fps = folder, key, fps
        self._writer: VideoWriter | None = None
        self._open = contextlib.ExitStack()
        self._number, self._frames = -1, 0

    def add(self, frames: np.ndarray) -> dict[str, int | float]:
        """Append an episode (k, H, W, 3) uint8; returns its entries in the list of episodes."""
        if self._writer is None or self._writer.n_bytes >= VIDEO_BYTES:
            self._begin_file()
        begin, self._frames = self._frames, self._frames + len(frames)
        for frame in frames:
            self._writer.write(frame)
        entries = {
            **place_of(self._number),
            "from_timestamp": begin / self._fps,
            "to_timestamp": self._frames / self._fps,
        }
        return {f"videos/{self._key}/{name}": value for name, value in entries.items()}

    def close(self) -> None:
        """Complete the last video."""
        self._open.close()

    def _begin_file(self) -> None:
        self.close()
        self._number, self._frames = self._number + 1, 0
        path = self._folder / VIDEO_PATH.format(video_key=self._key, **place_of(self._number))
        self._writer = self._open.enter_context(VideoWriter(path, self._fps, AV1))


def check_encoder() -> None:
    """Check that PyAV is installed with the codec.

    Raises:
        ImportError: PyAV is missing.
        DataError: PyAV was built without the codec.
    """
    av = import_av("; or give --pictures")
    if AV1.codec not in av.codecs_available:
        raise DataError("PyAV", [f"has no codec {AV1.codec}"], "install PyAV's own wheel (pip), or give --pictures")


def video_info(size: tuple[int, int], fps: float) -> dict[str, Any]:
    """The entry of a video in meta/info.json, as LeRobot writes it.

    Args:
        size: height and width.
    """
    return {
        "video.height": size[0],
        "video.width": size[1],
        "video.codec": "av1",
        "video.pix_fmt": "yuv420p",
        "video.fps": int(fps),
        "video.channels": 3,
        "has_audio": False,
        **{f"video.{name}": value for name, value in _CHOSEN.items()},
        "video.video_backend": "pyav",
        "video.extra_options": {},
        "is_depth_map": False,
    }
