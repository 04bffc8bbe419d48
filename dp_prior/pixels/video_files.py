"""Video files are opened here, with PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.files.regular_files import UnfitError, check_regular

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer


def import_av(advice: str = "") -> Any:
    """PyAV.

    Args:
        advice: how to do without, at the end of the error.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError(f'videos need PyAV ({error}): pip install "dp_prior[video]"{advice}') from error
    return av


@contextmanager
def opened_video(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """A video file and its one video stream.

    Raises:
        UnfitError: it is not a regular file, or has another number of video streams.
        OSError: it cannot be read.
        FFmpegError: it is no video. Decoding inside the context may raise the same, and others, on damage.
        ImportError: PyAV is not installed.
    """
    av = import_av()
    check_regular(path, os.stat(path).st_mode)  # FFmpeg would take other names as addresses
    with av.open(str(path)) as container:
        streams = container.streams.video
        if len(streams) != 1:
            raise UnfitError(path, f"holds {len(streams)} video streams; expected 1")
        yield container, streams[0]
