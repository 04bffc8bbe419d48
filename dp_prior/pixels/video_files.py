"""Video files are opened here, with PyAV: MP4, MOV, Matroska, WebM and AVI, known by their content, and no other.

FFmpeg by itself reads lists of other files (concat, HLS, DASH) and addresses, whatever the name of the file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.files.regular_files import UnfitError, check_regular
from dp_prior.pixels.picture_files import MOST_PIXELS

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer

_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"  # FFmpeg's names
_BOUNDED = {"max_pixels": str(MOST_PIXELS)}
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "file", **_BOUNDED}


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
        UnfitError: it is not a regular file, is none of the containers, or has another number of video streams.
        OSError: it cannot be read.
        FFmpegError: it is no video. Decoding inside the context may raise the same, and others, on damage and on
            frames of more than `MOST_PIXELS`.
        ImportError: PyAV is not installed.
    """
    av = import_av()
    check_regular(path, os.stat(path).st_mode)
    try:
        container = av.open(f"file:{path}", options=_OPTIONS)  # FFmpeg would take a bare name such as a:b as an address
    except av.FFmpegError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UnfitError(path, "is no video in MP4, MOV, Matroska, WebM or AVI; convert it to MP4") from None
    with container:
        streams = container.streams.video
        if len(streams) != 1:
            raise UnfitError(path, f"holds {len(streams)} video streams; expected 1")
        if streams[0].codec_context is None:
            raise UnfitError(path, "has a codec that FFmpeg does not know; encode it again, for example as H.264")
        streams[0].codec_context.options |= _BOUNDED
        yield container, streams[0]
