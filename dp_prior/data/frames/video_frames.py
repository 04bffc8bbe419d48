"""One video file, decoded from its first frame to its last: no seeking, no timestamps to look frames up by.

Which frame belongs to which row follows from counting alone, so what would spoil the count is an error: frames that are
missing or too many, damaged frames, and timestamps that tell of a dropped frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import raise_refusal
from dp_prior.data.frames import frames_per_block
from dp_prior.files.regular_files import UnfitError
from dp_prior.pixels.video_files import opened_video

if TYPE_CHECKING:
    import av


def size_of(path: Path) -> tuple[int, int]:
    """Height and width of the first frame, turned as its display matrix says.

    Raises:
        DataError: there is none, or it is not 8 bit colour.
    """
    for frame in _frames(path):
        return _turned_size(frame)
    raise DataError(str(path), ["holds no frame"])


def turned(path: Path) -> dict[str, int]:
    """For `describe`: by how many degrees the display matrix turns the frames, if it does."""
    turn = next((_turn(frame) for frame in _frames(path)), 0)
    return {"turned": turn} if turn else {}


def whole_frames(path: Path) -> tuple[int, str]:
    """How many frames can be decoded from the first one on, evenly spaced, and why no more: empty at a sound end."""
    times: list[int | None] = []
    why = ""
    try:
        times += (frame.pts for frame in _frames(path))
    except DataError as error:
        why = error.problems[0]
    if (odd := _unevenly_spaced(times)) is not None:
        return odd
    return len(times), why


def read_video(
    path: Path, size: tuple[int, int], lengths: dict[str, int], skip: int = 0, begins: Sequence[int] | None = None
) -> Iterator[np.ndarray]:
    """The frames of a file but the first `skip`, in order, as blocks of (k, H, W, 3) uint8 RGB.

    Args:
        size: height and width that every frame must have.
        lengths: number of rows of each episode in the file, in order, by the episode's name in messages.
        begins: first frame of each episode, where other frames lie between; None if there are none.

    Raises:
        DataError: the file cannot be decoded to its end, or does not hold exactly one frame per row, evenly spaced.
    """
    import av
    from av.video.reformatter import VideoReformatter

    kept = _kept(list(lengths.values()), begins)
    reformatter = VideoReformatter()  # kept, since each new one prepares its tables again: 3 times slower at 96 x 96
    # PyAV 17 began to split each frame between threads, which costs more than it saves where files are read side by
    # side: 4 times as long for 640 x 480 on two busy cores.
    how = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
    times: list[int | None] = []
    block = np.empty((frames_per_block(size[0] * size[1] * 3), *size, 3), np.uint8)
    filled, place = 0, 0
    for frame in _frames(path):
        number = len(times)
        times.append(frame.pts)
        if (found_size := _turned_size(frame)) != size:
            found = f"frame {number} is {found_size[0]} x {found_size[1]}; expected {size[0]} x {size[1]}"
            raise DataError(str(path), [f"{found} as in the other frames of this camera"])
        if place == len(kept) or kept[place] != number:
            continue
        place += 1
        if place <= skip:
            continue
        block[filled] = np.rot90(_pixels(reformatter.reformat(frame, format="rgb24", **how)), _turn(frame) // 90)
        filled += 1
        if filled == len(block) or place == len(kept):
            yield block[:filled]
            block, filled = np.empty_like(block), 0
        if begins is not None and place == len(kept):  # frames of other episodes may follow the last row too
            break
    found = len(times) if begins is None else place
    if problem := _wrong_count(found, lengths) or (_unevenly_spaced(times) or (0, ""))[1]:
        raise DataError(str(path), [problem])


def _frames(path: Path) -> Iterator[av.VideoFrame]:
    """Every frame in the order of display, checked to be 8 bit colour or greyscale, and undamaged."""
    import av

    if not path.is_file():
        raise DataError(str(path), ["no such file; the copy of the data set is incomplete"])
    number = 0
    try:
        with opened_video(path) as (container, stream):
            stream.codec_context.thread_count = 1  # files are decoded side by side instead
            stream.codec_context.options["err_detect"] = "explode"  # or damage would be painted over
            for frame in container.decode(stream):
                if number == 0:
                    _refuse_format(path, frame)
                if frame.is_corrupt:
                    raise DataError(str(path), [f"frame {number} is damaged; copy the file again"])
                yield frame
                number += 1
    except DataError:
        raise
    except UnfitError as error:
        raise DataError(str(path), [error.problem]) from None
    except (av.FFmpegError, OSError, ValueError, IndexError, MemoryError) as error:
        raise_refusal(path, error)
        raise DataError(
            str(path), [f"cannot be decoded after {number} frames: {error}; copy or encode it again"]
        ) from None


def _refuse_format(path: Path, frame: av.VideoFrame) -> None:
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
    if kind:
        raise DataError(str(path), [f"has pixel format {frame.format.name} ({kind}); expected 8 bit colour"])
    sides = [side for side in frame.side_data if side.type.name == "DISPLAYMATRIX"]
    a, b, _, c, d = np.frombuffer(sides[0], "i4")[:5].tolist() if sides else (1, 0, 0, 0, 1)
    if frame.rotation % 90 or a * d < b * c:
        how = f"turns its frames by {frame.rotation} degrees" if frame.rotation % 90 else "mirrors its frames"
        raise DataError(str(path), [f"{how} (display matrix); expected quarter turns. Encode it again without that"])


def _turn(frame: av.VideoFrame) -> int:
    return frame.rotation % 360


def _turned_size(frame: av.VideoFrame) -> tuple[int, int]:
    return (frame.width, frame.height) if _turn(frame) in (90, 270) else (frame.height, frame.width)


def _pixels(frame: av.VideoFrame) -> np.ndarray:
    """(H, W, 3) of an rgb24 frame, whose rows may be padded; a view."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)
    return rows[:, : frame.width * 3].reshape(frame.height, frame.width, 3)


def called(names: Iterable[str]) -> str:
    """Episodes in messages."""
    first, *others = names
    return f"episodes {first} to {others[-1]}" if others else f"episode {first}"


def _kept(lengths: Sequence[int], begins: Sequence[int] | None) -> np.ndarray:
    """Numbers of the frames that belong to rows."""
    ends = np.cumsum(lengths)
    begins = ends - lengths if begins is None else begins
    return np.concatenate([np.arange(begin, begin + length) for begin, length in zip(begins, lengths, strict=True)])


def _wrong_count(found: int, lengths: dict[str, int]) -> str | None:
    expected = sum(lengths.values())
    if found == expected:
        return None
    verb = "has" if len(lengths) == 1 else "have"
    problem = f"holds {found} frames, but its {called(lengths)} {verb} {expected} rows"
    end = 0
    for name, length in lengths.items():
        if found < end + length:
            return f"{problem}: it ends in episode {name} after {found - end} of {length} frames. Copy the file again"
        end += length
    return f"{problem}. Encode it again with one frame per row"


def _unevenly_spaced(times: list[int | None]) -> tuple[int, str] | None:
    """The first frame whose time tells of a dropped or repeated one, and how; the unit of times does not matter."""
    if None in times:
        number = times.index(None)
        return number, f"frame {number} has no timestamp; encode the file again, for example as mp4"
    gaps = [later - earlier for earlier, later in pairwise(times)]
    usual = float(np.median(gaps)) if gaps else 0.0
    for number, gap in enumerate(gaps, 1):
        if gap <= 0 or abs(gap - usual) > usual / 2:
            found = f"frame {number} comes {gap} time units after the one before, others {usual:g}: a frame was dropped"
            return number, f"{found} or repeated, so rows and frames may not match. Encode it again"
    return None
