"""Frames of LeRobot data sets in Lance tables: videos as large values, and columns of PNG or JPEG pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.frames import LeRobotPictures, videos_of
from dp_prior.data.formats.lerobot.meta import LeRobotMeta
from dp_prior.data.frames import FrameContents, FramePart
from dp_prior.data.frames.video_frames import read_video, size_of, turned
from dp_prior.tensors.pixels.video_files import import_av
from dp_prior_streams.lance_tables import LanceTables, column_of

FRAMES, VIDEOS = "frames", "videos"
"""Tables: a row for each step, and a row for each video file."""

VIDEO, PLACES = "video_bytes", ("video_key", "chunk_index", "file_index")
"""Columns of a video file: its bytes, and its place in a data set of files."""

PICTURES_AT_ONCE = 64
"""Encoded pictures that are read at a time."""


class LanceVideos:
    """See `FrameSource`; a video is copied into a temporary file while it is decoded."""

    def __init__(
        self,
        tables: LanceTables,
        meta: LeRobotMeta,
        key: str,
        ends: np.ndarray,
        episodes: set[int],
        contents: FrameContents,
    ):
        """
        Args:
            episodes: places of episodes in the order of the rows; videos without such an episode are not read.

        Raises:
            DataError: videos are missing, all in one report.
        """
        import_av()
        self.root, self.ends = meta.path, ends
        self._tables, self._key, self._contents = tables, key, contents
        self._names, self._lengths = list(meta.lengths), np.diff(ends, prepend=0).tolist()
        self._videos, missing = {}, []
        rows = _rows_of_videos(tables, meta)
        for video in videos_of(meta, key):
            name = video.path.relative_to(meta.path).as_posix()
            if not episodes.intersection(video.episodes):
                continue
            if video.path in rows:
                self._videos[f"{tables.where(VIDEOS)}, {name}"] = video, rows[video.path]
            else:
                missing.append(f"has no row for {name}, which the episode list names")
        if missing:
            raise DataError(tables.where(VIDEOS), missing, "convert the data set again, with all of its videos")
        self.parts = [FramePart(where, video.episodes) for where, (video, _) in self._videos.items()]
        with self._copied(self.parts[0]) as path:
            self.size, self._turned = size_of(path, contents), turned(path, contents)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """See `FrameSource`."""
        video, _ = self._videos[part.where]
        lengths = {str(self._names[episode]): self._lengths[episode] for episode in part.episodes}
        with self._copied(part) as path:
            yield from read_video(path, self.size, lengths, skip, video.begins, self._contents)

    def files(self) -> list[Path]:
        """See `FrameSource`; those of the table of videos."""
        return self._tables.files(VIDEOS)

    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""
        begins = {where: list(video.begins) for where, (video, _) in self._videos.items() if video.begins}
        gaps = {"begins": begins} if begins else {}
        place = _described(self._tables, VIDEOS)
        contents = {**self._contents.describe(), **self._turned}
        return {"format": "lance video", "key": self._key, **place, **gaps, **contents}

    @contextmanager
    def _copied(self, part: FramePart) -> Iterator[Path]:
        """A copy of a video, whose faults are reported by its place in the table."""
        video, row = self._videos[part.where]
        with tempfile.TemporaryDirectory(prefix="dp_prior_lance_") as folder:
            path = Path(folder, video.path.name)
            self._tables.save(VIDEOS, VIDEO, row, path)
            try:
                yield path
            except DataError as error:
                if error.source != str(path):
                    raise
                raise DataError(part.where, error.problems, error.advice) from None


class LancePictures(LeRobotPictures):
    """See `LeRobotPictures`; the bytes of a picture are in its row of the table."""

    def __init__(
        self,
        tables: LanceTables,
        begins: Mapping[str, int],
        meta: LeRobotMeta,
        key: str,
        ends: np.ndarray,
        episodes: set[int],
        contents: FrameContents,
    ):
        """Args: begins: first row of each part in the table, by `FramePart.where`."""
        self._tables, self._begins = tables, begins
        super().__init__(meta, key, ends, episodes, contents)

    def files(self) -> list[Path]:
        return self._tables.files(FRAMES)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "format": "lance pictures", **_described(self._tables, FRAMES)}

    def _pictures(self, part: FramePart) -> Iterator[bytes]:
        first, count = self._begins[part.where], int(self._lengths[list(part.episodes)].sum())
        column, row = column_of(self._key), 0
        for values in self._tables.batches(FRAMES, column, first, count, PICTURES_AT_ONCE):
            is_struct = hasattr(values, "field") and values.type.get_field_index("bytes") >= 0
            for value in values.field("bytes") if is_struct else values:
                if not (hasattr(value, "as_buffer") and value.is_valid):
                    finding = f"key {self._key!r}, row {first + row} is {values.type} without bytes of a picture"
                    raise DataError(part.where, [f"{finding}; convert a data set whose tables hold the pictures"])
                yield value.as_buffer().to_pybytes()
                row += 1


def _rows_of_videos(tables: LanceTables, meta: LeRobotMeta) -> dict[Path, int]:
    """The row of each video in the table, by the path that the metadata give it."""
    template, rows = meta.template("video_path"), {}
    columns = tables.read(VIDEOS, PLACES).to_pydict()
    for row, (key, chunk, file) in enumerate(zip(*(columns[name] for name in PLACES), strict=True)):
        rows[meta.file(template, video_key=key, chunk_index=chunk, file_index=file)] = row
    return rows


def _described(tables: LanceTables, name: str) -> dict[str, Any]:
    """The identity of a table without files on this machine; empty for others, whose files say it."""
    return {"table": tables.where(name), "version": tables.version(name)} if tables.is_remote else {}
