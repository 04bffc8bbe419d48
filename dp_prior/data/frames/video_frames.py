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
from dp_prior.data.frames import FrameContents, frame_bytes, frames_per_block
from dp_prior.data.frames.colours import COLOURS
from dp_prior.files.regular_files import UnfitError
from dp_prior.tensors.pixels.video_files import opened_video

if TYPE_CHECKING:
    import av


def size_of(path: Path, contents: FrameContents = COLOURS) -> tuple[int, int]:
    """Height and width of the first frame, turned as its display matrix says.

    Raises:
        DataError: there is none, or it does not hold `contents`.
    """
    for frame in _frames(path, contents):
        return _turned_size(frame)
    raise DataError(str(path), ["holds no frame"])


def turned(path: Path, contents: FrameContents = COLOURS) -> dict[str, int]:
    """For `describe`: by how many degrees the display matrix turns the frames, if it does."""
    turn = next((_turn(frame) for frame in _frames(path, contents)), 0)
    return {"turned": turn} if turn else {}


def declared_frames(path: Path) -> int:
    """How many frames the header of the file states; 0 if it states none."""
    with opened_video(path) as (_, stream):
        return stream.frames


def whole_frames(path: Path, contents: FrameContents = COLOURS) -> tuple[int, str]:
    """How many frames can be decoded from the first one on, evenly spaced, and why no more: empty at a sound end."""
    times: list[int | None] = []
    why = ""
    try:
        times += (frame.pts for frame in _frames(path, contents))
    except DataError as error:
        why = error.problems[0]
    if (odd := _unevenly_spaced(times)) is not None:
        return odd
    return len(times), why


def read_video(
    path: Path,
    size: tuple[int, int],
    lengths: dict[str, int],
    skip: int = 0,
    begins: Sequence[int] | None = None,
    contents: FrameContents = COLOURS,
    per_row: int | None = None,
) -> Iterator[np.ndarray]:
    """The frames of a file but the first `skip`, in order, as blocks of (k, H, W, channels).

    Args:
        size: height and width that every frame must have.
        lengths: number of rows of each episode in the file, in order, by the episode's name in messages.
        begins: first frame of each episode, where other frames lie between; None if there are none.
        per_row: frames for each row of the one episode, of which the first is read; None where the format says that
            there is one.

    Raises:
        DataError: the file cannot be decoded to its end, or does not hold these frames, evenly spaced.
    """
    row_frames, picture = _row_frames(list(lengths.values()), begins) * (per_row or 1), contents.of_video()
    times: list[int | None] = []
    count = frames_per_block(frame_bytes(size, contents))
    block = np.empty((count, *size, contents.channels), contents.dtype)
    filled, place = 0, 0
    for frame in _frames(path, contents):
        number = len(times)
        times.append(frame.pts)
        if (frame_size := _turned_size(frame)) != size:
            finding = f"frame {number} is {frame_size[0]} x {frame_size[1]}; expected {size[0]} x {size[1]}"
            raise DataError(str(path), [f"{finding} as in the other frames of this camera"])
        if place == len(row_frames) or row_frames[place] != number:
            continue
        place += 1
        if place <= skip:
            continue
        block[filled] = np.rot90(picture(frame), _turn(frame) // 90)
        filled += 1
        if filled == len(block) or place == len(row_frames):
            yield block[:filled]
            block, filled = np.empty_like(block), 0
        if begins is not None and place == len(row_frames):  # frames of other episodes may follow the last row too
            break
    count = len(times) if begins is None else place
    if problem := wrong_count(count, lengths, per_row) or (_unevenly_spaced(times) or (0, ""))[1]:
        raise DataError(str(path), [problem])


def _frames(path: Path, contents: FrameContents) -> Iterator[av.VideoFrame]:
    """Every frame in the order of display, checked to hold `contents`, and undamaged."""
    import av

    if not path.exists():
        raise DataError(str(path), ["no such file; the copy of the data set is incomplete"])
    number = 0
    try:
        with opened_video(path) as (container, stream):
            stream.codec_context.thread_count = 1  # files are decoded side by side instead
            stream.codec_context.options["err_detect"] = "explode"  # or damage would be painted over
            for frame in container.decode(stream):
                if number == 0:
                    _refuse_format(path, frame, contents)
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


def _refuse_format(path: Path, frame: av.VideoFrame, contents: FrameContents) -> None:
    if fault := contents.video_fault(frame):
        raise DataError(str(path), [f"has pixel format {frame.format.name} {fault}"])
    sides = [side for side in frame.side_data if side.type.name == "DISPLAYMATRIX"]
    a, b, _, c, d = np.frombuffer(sides[0], "i4")[:5].tolist() if sides else (1, 0, 0, 0, 1)
    if frame.rotation % 90 or a * d < b * c:
        how = f"turns its frames by {frame.rotation} degrees" if frame.rotation % 90 else "mirrors its frames"
        raise DataError(str(path), [f"{how} (display matrix); expected quarter turns. Encode it again without that"])


def _turn(frame: av.VideoFrame) -> int:
    return frame.rotation % 360


def _turned_size(frame: av.VideoFrame) -> tuple[int, int]:
    return (frame.width, frame.height) if _turn(frame) in (90, 270) else (frame.height, frame.width)


def called(names: Iterable[int | str]) -> str:
    """Episodes in messages."""
    listed = [*names]
    return f"episodes {listed[0]} to {listed[-1]}" if len(listed) > 1 else f"episode {listed[0]}"


def _row_frames(lengths: Sequence[int], begins: Sequence[int] | None) -> np.ndarray:
    """Numbers of the frames that belong to rows."""
    ends = np.cumsum(lengths)
    begins = ends - lengths if begins is None else begins
    return np.concatenate([np.arange(begin, begin + length) for begin, length in zip(begins, lengths, strict=True)])


def wrong_count(count: int, lengths: dict[str, int], per_row: int | None, noun: str = "frames") -> str | None:
    """Why this number of frames does not belong to these rows, and the remedy; None for a right number.

    Args:
        lengths, per_row: see `read_video`.
    """
    rows = sum(lengths.values())
    fewest, largest = _bounds(rows, per_row or 1)
    if fewest <= count <= largest:
        return None
    verb = "has" if len(lengths) == 1 else "have"
    problem = f"holds {count} {noun}, but its {called(lengths)} {verb} {rows} rows"
    usual = round(count / rows)
    low, high = _bounds(rows, max(1, usual))
    if per_row is not None and usual != per_row and low <= count <= high:
        return f'{problem}. If each row has {usual}, since the camera was faster, write "frames_per_row": {usual}'
    if per_row is not None and per_row > 1:
        remedy = "Look at the rates of both, or leave the episode out by choice in data"
        return f"{problem}; with {per_row} frames per row it needs {fewest} to {largest}. {remedy}"
    end = 0
    for name, length in lengths.items():
        if count < end + length:
            left_out = "" if len(lengths) > 1 else ", or leave the episode out by choice in data"
            ending = f"it ends in episode {name} after {count - end} of {length} {noun}"
            return f"{problem}: {ending}. Copy the file again{left_out}"
        end += length
    # Of a faster video as many frames as rows end long before the episode.
    how = "-vf fps=ROWS_PER_SECOND" if count > rows + max(1, rows // 20) else f"-frames:v {rows}"
    return f"{problem}. Encode it again with one frame per row, such as by ffmpeg -i OLD {how} NEW"


def _bounds(rows: int, per_row: int) -> tuple[int, int]:
    """How many frames so many rows need, and may have: a camera that is faster than the rows may stop a row or 5 %
    of the time later. With more its rate is probably another, and later rows would see frames of other times."""
    if per_row == 1:
        return rows, rows
    return per_row * (rows - 1) + 1, per_row * rows + max(per_row, per_row * rows // 20)


def _unevenly_spaced(times: list[int | None]) -> tuple[int, str] | None:
    """The first frame whose time tells of a dropped or repeated one, and how; the unit of times does not matter."""
    if None in times:
        number = times.index(None)
        return number, f"frame {number} has no timestamp; encode the file again, for example as mp4"
    gaps = [later - earlier for earlier, later in pairwise(times)]
    usual = float(np.median(gaps)) if gaps else 0.0
    for number, gap in enumerate(gaps, 1):
        if gap <= 0 or abs(gap - usual) > usual / 2:
            finding = f"frame {number} comes {gap} time units after the one before, others {usual:g}"
            cause = "a frame was dropped or repeated, so rows and frames may not match"
            return number, f"{finding}: {cause}. Encode it again"
    return None
