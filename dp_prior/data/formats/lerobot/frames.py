"""Frames of LeRobot data sets: video files of formats v2.0, v2.1 and v3.0, and columns of PNG or JPEG pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import decoding, reading
from dp_prior.data.formats.choice import leaving_out
from dp_prior.data.formats.lerobot.depth_codes import coded
from dp_prior.data.formats.lerobot.meta import LeRobotMeta, as_count
from dp_prior.data.formats.lerobot.tables import read_columns
from dp_prior.data.frames import (
    FrameContents,
    FrameFile,
    FramePart,
    frame_bytes,
    frames_per_block,
    picture_frames,
    video_frames,
)
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.video_frames import called, read_video, size_of
from dp_prior.data.parquet_sizes import check_columns_fit
from dp_prior.files.regular_files import open_regular
from dp_prior.tensors.pixels.picture_files import import_pillow
from dp_prior.tensors.pixels.video_files import import_av

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 64  # of encoded pictures


def lerobot_frames(
    meta: LeRobotMeta, key: str, ends: np.ndarray, episodes: set[int], contents: FrameContents
) -> LeRobotVideo | LeRobotPictures:
    """Open the camera called `key`, from video or from a column of pictures.

    Args:
        episodes: places of episodes in the order of the rows; files without such an episode are not opened.

    Raises:
        DataError: `key` names no camera, or files are missing; all missing files in one report.
        ImportError: PyAV or Pillow is not installed.
    """
    contents = checked_contents(meta, key, contents)
    opened = LeRobotPictures if meta.features[key].get("dtype") == "image" else LeRobotVideo
    return opened(meta, key, ends, episodes, contents)


def checked_contents(meta: LeRobotMeta, key: str, contents: FrameContents) -> FrameContents:
    """The contents as the data set stores them, for a camera.

    Raises:
        DataError: `key` names no camera, or one of other contents.
    """
    kind, is_depth = meta.features[key].get("dtype"), key in meta.depths()
    if key not in meta.cameras:
        finding = f"key {key!r} is {kind}; expected video or image"
        raise DataError(str(meta.path), [f"{finding}. {nearest_name(key, meta.cameras)}"])
    if is_depth and contents == COLOURS:
        finding = f"key {key!r} is depth (meta/info.json: is_depth_map)"
        raise DataError(str(meta.path), [f"{finding}; name it in data.depth instead of data.images"])
    return coded(contents, meta, key) if is_depth and kind == "video" else contents


class LeRobotVideo:
    """See `FrameSource`."""

    def __init__(self, meta: LeRobotMeta, key: str, ends: np.ndarray, episodes: set[int], contents: FrameContents):
        """See `lerobot_frames`."""
        import_av()
        self.root, self.ends = meta.path, ends
        self._key, self._version, self._contents = key, meta.version, contents
        self._names = list(meta.lengths)  # by the number in the order of rows
        self._lengths = np.diff(ends, prepend=0).tolist()
        videos = [video for video in videos_of(meta, key) if episodes.intersection(video.episodes)]
        problems, missing = [], []
        for video in videos:
            if not video.path.is_file():
                episodes_of_video = [self._names[episode] for episode in video.episodes]
                missing += episodes_of_video
                problems.append(f"{video.path}: no such file; {key!r} of {called(episodes_of_video)} belongs there")
        if problems:
            advice = f"copy the videos too, {leaving_out(missing)}, or leave the camera out"
            raise DataError(str(meta.path), problems, advice)
        self._videos = {str(video.path): video for video in videos}
        self.parts = [FramePart(str(video.path), video.episodes) for video in videos]
        self.size = size_of(videos[0].path, contents)
        self._turned = video_frames.turned(videos[0].path, contents)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        lengths = {str(self._names[episode]): self._lengths[episode] for episode in part.episodes}
        video = self._videos[part.where]
        return read_video(video.path, self.size, lengths, skip, video.begins, self._contents)

    def files(self) -> list[Path]:
        return sorted(video.path for video in self._videos.values())

    def describe(self) -> dict[str, Any]:
        begins = {Path(where).name: list(video.begins) for where, video in self._videos.items() if video.begins}
        gaps = {"begins": begins} if begins else {}
        return {"format": "lerobot video", "key": self._key, **gaps, **self._contents.describe(), **self._turned}


class LeRobotPictures:
    """See `FrameSource`."""

    def __init__(self, meta: LeRobotMeta, key: str, ends: np.ndarray, episodes: set[int], contents: FrameContents):
        """See `lerobot_frames`."""
        import_pillow()
        self.root, self.ends = meta.path, ends
        places = {name: place for place, name in enumerate(meta.lengths)}
        parts = []
        for file in meta.tables:
            parts.append(FramePart(str(file.path), tuple(places[name] for name in file.episodes)))
        self.parts = [part for part in parts if episodes.intersection(part.episodes)]
        self._rows = {str(file.path): file.rows(meta.lengths) for file in meta.tables}
        self._key, self._files, self._contents = key, [Path(part.where) for part in self.parts], contents
        self._lengths = np.diff(ends, prepend=0)
        first = next(self._pictures(self.parts[0]), None)
        if first is None:
            raise DataError(str(self._files[0]), [f"key {key!r} has no rows"])
        self.size = contents.decode(first, f"{self._files[0]}, key {key!r}, row 0", None).shape[:2]
        self._turned = picture_frames.turned(first)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        expected = int(self._lengths[list(part.episodes)].sum())
        per_block = frames_per_block(frame_bytes(self.size, self._contents))
        block: list[np.ndarray] = []
        row = -1
        for row, data in enumerate(self._pictures(part)):
            if skip <= row < expected:
                block.append(self._contents.decode(data, f"{part.where}, key {self._key!r}, row {row}", self.size))
            if block and (len(block) == per_block or row == expected - 1):
                yield np.stack(block)
                block = []
        if row + 1 != expected:
            raise DataError(part.where, [f"holds {row + 1} rows, but the episode list gives its episodes {expected}"])

    def files(self) -> list[Path]:
        return self._files

    def describe(self) -> dict[str, Any]:
        return {"format": "lerobot pictures", "key": self._key, **self._contents.describe(), **self._turned}

    def _pictures(self, part: FramePart) -> Iterator[bytes]:
        """Read the encoded picture of each row of the episodes."""
        rows = self._rows[part.where]
        chosen_rows = None if rows is None else frozenset(rows.tolist())
        for row, value in enumerate(_stored(Path(part.where), self._key)):
            if chosen_rows is not None and row not in chosen_rows:
                continue
            if not value.is_valid:
                finding = f"key {self._key!r}, row {row} has no bytes, perhaps only the path of a picture"
                raise DataError(part.where, [f"{finding}; save the pictures into the parquet files"])
            yield value.as_buffer().to_pybytes()


def rows_without_picture(path: Path, key: str) -> list[int]:
    """Find the rows of a parquet file in which a camera has no bytes of a picture.

    Raises:
        DataError: the column cannot be read.
    """
    return [row for row, value in enumerate(_stored(path, key)) if not value.is_valid]


def _stored(path: Path, key: str) -> Iterator[pyarrow.BinaryScalar]:
    """Read the bytes of a picture in each row of a file; null for a row without a picture."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise DataError(str(path), ["no such file, but the episode list names it; the copy is incomplete"])
    with decoding(path, "is damaged"), reading(path), open_regular(path) as stream:
        rows_at_once = min(_ROWS_AT_ONCE, check_columns_fit(str(path), stream, [key]).rows_at_once)
    with decoding(path, "is damaged"), pq.ParquetFile(path, page_checksum_verification=True) as file:
        kind = file.schema_arrow.field(key).type if key in file.schema_arrow.names else None
        is_struct = kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if not is_struct:
            finding = f"key {key!r} is {'missing' if kind is None else kind}"
            raise DataError(str(path), [f"{finding}; expected encoded pictures (struct<bytes, path>)"])
        batches = file.iter_batches(batch_size=rows_at_once, columns=[key])
        for batch in batches:
            yield from batch.column(0).field("bytes")


def videos_of(meta: LeRobotMeta, key: str) -> list[FrameFile]:
    """The files that the metadata name for a camera, including missing files.

    Raises:
        DataError: the metadata lack usable places of the camera's videos.
    """
    return _videos_v3(meta, key) if meta.version == "v3.0" else _videos_v2(meta, key)


def _videos_v2(meta: LeRobotMeta, key: str) -> list[FrameFile]:
    """Name the files of format v2, one per episode."""
    camera_files = (file for file in (meta.path / "videos").glob("*/*/*.mp4") if file.parent.name == key)
    files = meta.files_of_episodes("video_path", camera_files, video_key=key)
    return [FrameFile(file, (number,)) for number, file in enumerate(files)]


def _videos_v3(meta: LeRobotMeta, key: str) -> list[FrameFile]:
    """Name the files of format v3, with several episodes each in the order of their first frames.

    Raises:
        DataError: the episode list lacks the columns, or episodes of a file overlap.
    """
    numbers = {name: number for number, name in enumerate(meta.lengths)}
    begins_by_file, problems = _begins_by_file(meta, key)
    template = meta.template("video_path")
    videos = []
    for (chunk, file), begins in begins_by_file.items():
        path = meta.file(template, video_key=key, chunk_index=chunk, file_index=file)
        expected, has_gaps = 0, meta.is_part
        begins.sort()
        for frame, name in begins:
            if frame < expected:
                begin = f"episode {name} begins at frame {frame} (from_timestamp x fps)"
                problems.append(f"{path}: {begin}; expected {expected}, after the episodes before it in this file")
                break
            has_gaps |= frame > expected  # of episodes that the list of a subset lacks
            expected = frame + meta.lengths[name]
        first_frames = tuple(frame for frame, _ in begins) if has_gaps else None
        videos.append(FrameFile(path, tuple(numbers[name] for _, name in begins), first_frames))
    if problems:
        raise DataError(str(meta.path), problems)
    return videos


def _begins_by_file(meta: LeRobotMeta, key: str) -> tuple[dict[tuple[int, int], list[tuple[int, int]]], list[str]]:
    """First frame and name of each episode, by the chunk and the number of its video; and lines about unusable entries.

    Raises:
        DataError: the episode list lacks the columns, or the rate is unknown.
    """
    fps = meta.info.get("fps")
    if not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
        raise DataError(str(meta.info_file), [f"fps is {fps!r}; expected frames per second"])
    before = f"videos/{key}/"
    columns = ["episode_index", f"{before}chunk_index", f"{before}file_index", f"{before}from_timestamp"]
    begins_by_file: dict[tuple[int, int], list[tuple[int, int]]] = {}
    problems = []
    for listing in meta.listings:
        table = read_columns(listing, columns, why=f", so camera {key!r} has no videos").to_pydict()
        for name, chunk, file, begin in zip(*(table[column] for column in columns), strict=True):
            if meta.is_part and name not in meta.lengths:
                continue
            try:
                place = as_count(chunk), as_count(file)
                frame = round(float(begin) * fps)  # to_timestamp is off by one frame in published sets, so it is unused
            except (ValueError, TypeError, OverflowError) as error:
                problems.append(f"{listing}: episode {name} has no usable place in the videos of {key!r}: {error}")
                continue
            begins_by_file.setdefault(place, []).append((frame, name))
    return begins_by_file, problems
