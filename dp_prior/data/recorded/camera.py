"""Cameras of a data set, of colours or of depth, whose frames are read through frame caches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from dp_prior.config import Change, Config
from dp_prior.data.columns import Column
from dp_prior.data.columns.joined import join
from dp_prior.data.columns.mirrored import MirroredColumn
from dp_prior.data.errors import DataError
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.formats.rendered import RenderedFrames
from dp_prior.data.frames import FrameContents, FrameSource
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.depths import Depths
from dp_prior.data.frames.encodings import RAW, Depth, Encoding, Jpeg
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.frame_cache import USER_CACHE, FrameCache, cache_root
from dp_prior.data.frames.frame_column import ImageColumn
from dp_prior.data.recorded.episodes import FrameCaches, OpenedEpisodes
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.recorded.mirror import FrameMirrorConfig
from dp_prior.data.recorded.shown import Shown
from dp_prior.tensors.batch import DepthRange
from dp_prior.tensors.pixels.renderers import RendererConfig
from dp_prior.tensors.pixels.resize import MOST_PIXELS, Fit, Pixels, Region, Turn

if TYPE_CHECKING:
    from dp_prior.data.samples.weighted_order import Share

DEPTHS_LOOKED_AT = 64
"""Frames of depth that are compared with its range."""


class FramesConfig(Config):
    """Base of the records of colours and depth: where frames lie, and their size."""

    key: str | None = None
    """Their name in the data set, with `render` that of the recorded states; give either this or `folder`."""

    folder: Annotated[Path | None, Change("harmless")] = None
    """A folder beside the data set with a video, or a folder of pictures, per episode, in the order of their names."""

    file: str | None = None
    """Name of the camera's video in each episode's folder, such as `0.mp4`, where the folders in `folder` hold one for
    every camera; null: each holds the pictures of this camera."""

    frames_per_row: int = Field(default=1, ge=1)
    """Frames in `folder` for each row, where the camera was faster than the rows: 3 for 30 frames and 10 rows per
    second. The first of them is the row's."""

    size: tuple[Pixels, Pixels]
    """Height and width to which frames are resized, in pixels."""

    fit: Literal["resize", "crop", "letterbox"] = "resize"
    """Where the camera's aspect ratio differs: stretch (resize), cut the longer sides (crop), or add strips of 0
    (letterbox): black, or depth that was not measured."""

    region: Region | None = None
    """The part of the picture that the policy sees, cut out before the resize: [top, left, bottom, right] as shares of
    its height and width from 0 to 1, rounded to whole pixels. null: the whole picture."""

    turn: Turn | None = None
    """Turn recorded frames, and the robot's frames alike, before all else: a quarter clockwise (right) or
    counterclockwise (left), by half, or over (up_down, as OpenGL's rows, which begin at the bottom; left_right)."""

    mirror: FrameMirrorConfig | None = None
    """How the frames read in the mirror, where `data.mirror` trains on mirror images; null without these."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.key is None) == (self.folder is None):
            finding = "both key and folder are" if self.key else "neither key nor folder is"
            remedy = 'write "key" for frames in the data set, or "folder" for files beside it'
            raise ValueError(f"{finding} given; {remedy}")
        if self.file is not None and self.folder is None:
            raise ValueError('file is given without "folder", the folder with a folder for each episode')
        if self.file is not None and (PurePath(self.file).is_absolute() or ".." in PurePath(self.file).parts):
            raise ValueError(f"file is {self.file!r}, which leaves the folder of an episode")
        if self.frames_per_row > 1 and self.folder is None:
            raise ValueError('frames_per_row is given without "folder"; frames under "key" have one for each row')
        return self

    @property
    def resize(self) -> Fit:
        """The resize that training and the robot share."""
        return Fit(size=self.size, how=self.fit, region=self.region, turn=self.turn)

    @property
    def kind(self) -> Literal["image", "depth"]:
        """Kind of the observation, see `Spec`."""
        return "image"

    @property
    def range(self) -> DepthRange | None:
        """The range that the policy reads; None for colours."""
        return None

    @property
    def contents(self) -> FrameContents:
        """The contents of a frame."""
        return COLOURS

    @property
    def encoding(self) -> Encoding:
        """How the frame cache stores them."""
        return RAW

    def cache(self, store: EpisodeStore, chosen: Chosen, root: Path) -> FrameCache:
        """The frame cache of this camera, built or not; of the chosen episodes.

        Args:
            root: directory of all caches.

        Raises:
            DataError: there are no such frames, or the region has no pixel of theirs.
        """
        source = self.source(store, chosen)
        self.seen(source)
        return FrameCache(source, self.resize, root, self.encoding)

    def seen(self, source: FrameSource) -> str:
        """See `Fit.seen`. Raises DataError if the region has no pixel of these frames."""
        try:
            return self.resize.seen(*source.size)
        except ValueError as error:
            raise DataError(f"{source.root}, {self.key or self.folder}", [str(error)]) from None

    def source(self, store: EpisodeStore, chosen: Chosen) -> FrameSource:
        """The frames of the chosen episodes as they are recorded."""
        if self.folder is not None:
            how = (self.file, self.contents, self.frames_per_row)
            return FolderFrames(self.folder, chosen.recorded, chosen.numbers, *how)
        return store.frames(self.key, chosen.recorded, self.contents, chosen.numbers)


class ImageConfig(FramesConfig):
    """Frames of one camera, which the policy sees as uint8 RGB of (height, width, 3)."""

    render: RendererConfig | None = None
    """Draws the frames from the states under `key`, for a data set without pictures: at the given size, with a region
    the whole so large that the region has this size. null reads pictures."""

    bgr: bool = False
    """Recorded frames, and the robot's frames alike, hold blue, green and red, as OpenCV reads pictures; the policy
    sees red, green and blue."""

    jpeg_quality: int | None = Field(default=None, ge=1, le=95)
    """Store the frame cache as JPEG of this quality, in a sixth to a tenth of the space; null keeps every pixel."""

    @model_validator(mode="after")
    def _renders_what_it_can(self) -> Self:
        if self.render is not None and self.folder is not None:
            raise ValueError('render and folder are both given; a renderer reads the states that "key" names')
        if self.render is not None and (self.fit != "resize" or self.turn is not None or self.bgr):
            settings = f"fit is {self.fit!r}, turn {self.turn!r} and bgr {self.bgr}"
            raise ValueError(f"{settings}, but a renderer draws upright RGB at the given size; leave all three out")
        if self.render is not None and max(self.resize.drawn) > MOST_PIXELS:
            high, wide = self.resize.drawn
            finding = f"a renderer would draw {high} x {wide} pixels, of which the region is {list(self.size)}"
            remedy = "take a larger region or a smaller size"
            raise ValueError(f"{finding}; expected at most {MOST_PIXELS} a side: {remedy}")
        return self

    @property
    def resize(self) -> Fit:
        return super().resize.model_copy(update={"bgr": self.bgr})

    @property
    def encoding(self) -> Encoding:
        return RAW if self.jpeg_quality is None else Jpeg(quality=self.jpeg_quality)

    def source(self, store: EpisodeStore, chosen: Chosen) -> FrameSource:
        if self.render is not None:
            return RenderedFrames(store, self.key, chosen, self.render, self.resize.drawn)
        return super().source(store, chosen)


class DepthConfig(FramesConfig):
    """Depth of one camera, which the policy reads as float32 metres of (height, width, 1), 0 where nothing was
    measured. Resizing takes the nearest pixel."""

    unit: float | None = Field(default=None, gt=0)
    """Metres of the number 1 in the files; null: 0.001 for integers, 1 for floats, LeRobot's own for its videos."""

    near: float = Field(ge=0)
    """Distance in metres that the network reads as 0; what is nearer reads so too."""

    far: float = Field(gt=0)
    """Distance in metres that the network reads as 1; what is farther reads so too."""

    camera: str | None = None
    """The observation of `images` that shows the same pixels; random crops of both are then the same. null: none."""

    def faults(self) -> Iterator[str]:
        yield from self.range.faults()

    @property
    def kind(self) -> Literal["image", "depth"]:
        return "depth"

    @property
    def range(self) -> DepthRange:
        return DepthRange.model_construct(near=self.near, far=self.far, camera=self.camera)

    @property
    def contents(self) -> FrameContents:
        return Depths(self.unit)

    @property
    def encoding(self) -> Encoding:
        return Depth()


def camera_columns(
    cameras: Mapping[str, FramesConfig], store: EpisodeStore, chosen: Chosen, caches: FrameCaches
) -> dict[str, ImageColumn]:
    """The column of each camera; nothing is decoded yet. Caches of data on the Hub lie apart from its client's files.

    Args:
        store, chosen: the data set, which is on this machine, and the episodes whose frames are read.
    """
    root = cache_root(caches.directory or (USER_CACHE if caches.is_remote else None), caches.data_set)
    return {name: ImageColumn(camera.cache(store, chosen, root), caches.verify) for name, camera in cameras.items()}


@dataclass(frozen=True)
class Cameras(Extra):
    """The observations that are frames, by the policy's name; `images` are the columns of the recorded frames."""

    cameras: Mapping[str, FramesConfig]

    @classmethod
    def open(cls, record: Mapping[str, FramesConfig], opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        images = camera_columns(record, opened.store, opened.chosen, opened.caches)
        files = {file for column in images.values() for file in column.cache.files}
        return cls(record, images=images, files=sorted(files)), opened

    def spec(self, opened: OpenedEpisodes, steps: int) -> Mapping[str, Mapping[str, Any]]:
        cameras = self.cameras.items()
        return {
            "cond_shapes": {name: (steps, *column.shape) for name, column in self.images.items()},
            "kinds": {name: camera.kind for name, camera in cameras},
            "fits": {name: camera.resize for name, camera in cameras},
            "depths": {name: camera.range for name, camera in cameras if camera.range is not None},
        }

    def columns(self, rows: np.ndarray) -> Mapping[str, Column]:
        return {name: self._with_mirror(name).taking(torch.from_numpy(rows)) for name in self.images}

    def _with_mirror(self, name: str) -> Column:
        """The frames of a camera, followed by the frames of the mirror images."""
        rule = self.cameras[name].mirror
        if rule is None:
            return self.images[name]
        return join([self.images[name], MirroredColumn(self.images[rule.camera or name], rule.flip)])

    def cached_digest(self) -> bytes:
        parts = []
        for name in sorted(self.images):
            rule = self.cameras[name].mirror
            parts += ["" if rule is None else rule.model_dump_json(), name, self.images[name].frames.index.content()]
        return "".join(parts).encode()

    def shown(self, rows: np.ndarray) -> Mapping[str, Shown]:
        return {name: Shown.of(column, self.cameras[name].resize, rows) for name, column in self.images.items()}

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterable[str]:
        return [f"{name} {column.cache.seen}" for name, column in self.images.items() if column.cache.seen]

    def mixture_warnings(self) -> Iterator[str]:
        """See `Extra`: about depth of which little lies in its range, as in another unit. Reads a few frames."""
        for name, camera in self.cameras.items():
            if camera.range is not None:
                yield from _depth_doubts(name, self.images[name], camera.range)


def _depth_doubts(name: str, column: ImageColumn, depth: DepthRange) -> Iterator[str]:
    """At most one line about distances outside their range."""
    count = min(DEPTHS_LOOKED_AT, len(column))
    metres = column.rows(torch.arange(count) * len(column) // count)
    measured = metres[metres > 0]
    if not len(measured):
        finding = f"none of {count} frames looked at has a distance"
        yield f"depth.{name}: {finding}; look at the recording, or leave it out"
        return
    inside = ((measured >= depth.near) & (measured <= depth.far)).float().mean()
    if inside < 0.5:
        extent = f"which are {measured.min():.3g} to {measured.max():.3g} m"
        limits = f"from near {depth.near:g} to far {depth.far:g} m; look at unit, near and far"
        yield f"depth.{name}: {inside:.0%} of the measured distances, {extent}, lie {limits}"
