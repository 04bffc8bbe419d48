"""The frames of a camera in a part: fetched, decoded and resized when the part arrives, as in a frame cache."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.formats.lerobot.depth_codes import coded
from dp_prior.data.formats.lerobot.frames import LeRobotPictures, videos_of
from dp_prior.data.formats.lerobot.meta import LeRobotMeta
from dp_prior.data.frames import FrameContents, FramePart, FrameSource
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.data.frames.frame_rows import FrameRows
from dp_prior.data.frames.video_frames import read_video, size_of, turned
from dp_prior.data.recorded.camera import FramesConfig
from dp_prior_streams.part_plan import PartPlan
from dp_prior_streams.record import StreamedStore
from dp_prior_streams.video_clip import VideoIndexes, cut_clip

JPEG_SHARE = 0.35
"""Most of the bytes of the pixels that JPEG is expected to take."""

INDEX_SHARE = 0.05
"""Bytes of the index of a video, as a share of its size; at least `LEAST_INDEX`."""

LEAST_INDEX = 64 << 10

RANGE_MARGIN = 1.5
"""How much more than its share of the rows the frames of a part may take of a video."""


class PartFrames:
    """See `Content`: the frames of one camera."""

    def __init__(self, store: StreamedStore, plan: PartPlan, camera: FramesConfig):
        self._store, self._plan, self.camera = store, plan, camera
        self.is_video = store.dtype(camera.key) == "video"
        self._videos = videos_of(store.meta, camera.key) if self.is_video else []
        self.video_names = [video.path.relative_to(store.meta.path).as_posix() for video in self._videos]
        store.remote.note(self.video_names)
        names = self.video_names if self.is_video else store.names_of(store.meta.tables)
        self.identity = {
            "camera": camera.model_dump(mode="json"),
            "files": store.remote.identity(names),
            "ends": plan.ends.tolist(),
            "version": 1,
        }
        self.digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()
        self._sources, self._indexes = self._source_bytes(), VideoIndexes(store.remote)

    def name(self, part: int) -> str:
        """See `Content`."""
        return f"frames-{self.digest[:16]}-{part:06d}"

    def n_bytes(self, part: int) -> int:
        """See `Content`."""
        begin, end = self._plan.part_span(part)
        encoding, size = self.camera.encoding, self.camera.resize.size
        exact = encoding.file_bytes(end - begin, size)
        mean = int(encoding.frame_bytes(size) * JPEG_SHARE) + 1024
        frames = encoding.expected_bytes(end - begin, size, mean) if exact is None else exact
        return frames + 8192 + 160 * len(self._plan.episodes(begin, end))

    def source_bytes(self, part: int) -> int:
        """See `Content`; of videos their ranges, twice, and their index."""
        return self._sources[part]

    def fill(self, part: int, folder: Path, needed: Collection[str]) -> None:
        """See `Content`.

        Raises:
            DataError: frames are damaged or missing, or do not have the size of the other frames.
        """
        sources = folder / "sources"
        sources.mkdir()
        store = self._store.part(self._plan.tables(part), needed, sources)
        source = self._source(store, sources)
        self.camera.seen(source)
        cache = FrameCache(source, self.camera.resize, folder / "frames", self.camera.encoding)
        cache.build()
        cache.directory.rename(folder / "cache")
        shutil.rmtree(folder / "frames")
        shutil.rmtree(sources)

    def open(self, folder: Path) -> FrameRows:
        """The frames of an arrived part."""
        if not folder.exists():
            raise FileNotFoundError(folder)
        return FrameRows(folder / "cache")

    def _source(self, store: StreamedStore, folder: Path) -> FrameSource:
        """The recorded frames of a part."""
        contents, key = self.camera.contents, self.camera.key
        if key in store.meta.depths():
            contents = coded(contents, store.meta, key) if self.is_video else contents
        if self.is_video:
            return ClippedVideos(store, key, contents, folder, self._indexes)
        store.fetch()
        meta = store.meta.part([store.local(table) for table in store.meta.tables])
        meta.path = folder  # the names of files are relative to it
        every = set(range(len(store.episode_ends)))
        return LeRobotPictures(meta, key, store.episode_ends, every, contents)

    def _source_bytes(self) -> list[int]:
        """Bytes that are fetched for each part, at most."""
        counts = np.zeros(len(self._plan.ends))
        if not self.is_video:
            return [self._store.bytes_of(self._plan.tables(part)) for part in range(len(counts))]
        lengths = list(self._store.meta.lengths.values())
        numbers = self._plan.numbers
        part_of = dict(zip(numbers.tolist(), self._plan.part_of(self._plan.episode_ends - 1).tolist(), strict=True))
        for video, name in zip(self._videos, self.video_names, strict=True):
            size, rows = self._store.remote.files[name].size, sum(lengths[number] for number in video.episodes)
            touched = set()
            for number in video.episodes:
                if number in part_of:
                    counts[part_of[number]] += 2 * RANGE_MARGIN * size * lengths[number] / rows
                    touched.add(part_of[number])
            for part in touched:
                counts[part] += max(INDEX_SHARE * size, LEAST_INDEX)
        return counts.astype(np.int64).tolist()


class ClippedVideos:
    """See `FrameSource`: the frames of the episodes of a part, from clips of the videos that hold them."""

    def __init__(self, store: StreamedStore, key: str, contents: FrameContents, folder: Path, indexes: VideoIndexes):
        meta: LeRobotMeta = store.meta
        self.root, self.ends, self._key, self._contents = folder, store.episode_ends, key, contents
        self._names, self._lengths = list(meta.lengths), list(meta.lengths.values())
        self.parts: list[FramePart] = []
        self._begins: dict[str, list[int]] = {}
        for number, video in enumerate(videos_of(meta, key)):
            counts = [self._lengths[episode] for episode in video.episodes]
            begins = list(video.begins) if video.begins is not None else (np.cumsum(counts) - counts).tolist()
            place = folder / str(number)
            place.mkdir()
            name = video.path.relative_to(meta.path).as_posix()
            clip = cut_clip(indexes, name, begins[0], begins[-1] + counts[-1], place)
            self.parts.append(FramePart(str(clip.path), video.episodes))
            self._begins[str(clip.path)] = [begin - begins[0] + clip.before for begin in begins]
        first = Path(self.parts[0].where)
        self.size, self._turned = size_of(first, contents), turned(first, contents)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        """See `FrameSource`."""
        lengths = {str(self._names[episode]): self._lengths[episode] for episode in part.episodes}
        return read_video(Path(part.where), self.size, lengths, skip, self._begins[part.where], self._contents)

    def files(self) -> list[Path]:
        """See `FrameSource`."""
        return [Path(part.where) for part in self.parts]

    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""
        return {"format": "lerobot clips", "key": self._key, **self._contents.describe(), **self._turned}


class PartFrameColumn(DiskColumn):
    """See `Column`. Row i is the frame of row i of the chosen episodes."""

    def __init__(self, parts: Any, frames: PartFrames):
        """Args: parts: the `Parts` that the frames belong to."""
        self._parts, self._frames = parts, frames
        encoding, self.identity = frames.camera.encoding, frames.identity
        self.shape, self.dtype = (*frames.camera.resize.size, encoding.channels), encoding.dtype

    def __len__(self) -> int:
        return int(self._parts.plan.ends[-1])

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`; waits for parts that are not on this machine."""
        frames = torch.empty(len(ids), *self.shape, dtype=self.dtype)
        parts = torch.from_numpy(self._parts.plan.part_of(ids.numpy()))
        for part in parts.unique().tolist():
            is_here = parts == part
            begin, _ = self._parts.plan.part_span(part)
            frames[is_here] = self._parts.read(self._frames, part, self._frames.open, _taking(ids[is_here] - begin))
        return frames


def _taking(rows: Tensor) -> Callable[[FrameRows], Tensor]:
    """A function that reads rows of the frames of a part."""
    return lambda opened: opened.rows(rows)
