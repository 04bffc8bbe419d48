"""Camera frames of a data set: the record of one camera, and its column over the frame cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.config import Change, Config
from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.files import memory_bytes
from dp_prior.data.formats.rendered import RenderedFrames
from dp_prior.data.formats.store import EpisodeStore
from dp_prior.data.frames import FrameSource
from dp_prior.data.frames.build import BuildProgress
from dp_prior.data.frames.cache import FrameCache, cache_root
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.layout import Encoding
from dp_prior.data.frames.rows import FrameRows
from dp_prior.data.integrity import Verify
from dp_prior.data.mirror import FrameMirrorConfig
from dp_prior.renderers import RendererConfig
from dp_prior.resize import Fit, Pixels

REPORT_EVERY_S = 10.0


class ImageConfig(Config):
    """Frames of one camera, which the policy sees as uint8 RGB of (height, width, 3)."""

    key: str | None = None
    """Their name in the data set, with `render` that of the recorded states; give either this or `folder`."""

    render: RendererConfig | None = None
    """Draws the frames, at the given size, from the states under `key`, for a data set without pictures; null reads
    pictures."""

    folder: Annotated[Path | None, Change("harmless")] = None
    """A folder beside the data set with a video, or a folder of pictures, per episode, in the order of their names."""

    size: tuple[Pixels, Pixels]
    """Height and width to which frames are resized, in pixels."""

    fit: Literal["resize", "crop", "letterbox"] = "resize"
    """Where the camera's aspect ratio differs: stretch (resize), cut the longer sides (crop), or add black strips
    (letterbox)."""

    jpeg_quality: int | None = Field(default=None, ge=1, le=95)
    """Store the frame cache as JPEG of this quality, in a sixth to a tenth of the space; null keeps every pixel."""

    mirror: FrameMirrorConfig | None = None
    """How the frames read in the mirror, where `data.mirror` trains on mirror images; null without these."""

    @model_validator(mode="after")
    def _has_one_source(self) -> ImageConfig:
        if (self.key is None) == (self.folder is None):
            found = "both key and folder are" if self.key else "neither key nor folder is"
            raise ValueError(f'{found} given; write "key" for frames in the data set, or "folder" for files beside it')
        if self.render is not None and self.folder is not None:
            raise ValueError('render and folder are both given; a renderer reads the states that "key" names')
        if self.render is not None and self.fit != "resize":
            raise ValueError(f"fit is {self.fit!r}, but a renderer draws at the given size, so nothing is fitted")
        return self

    @property
    def resize(self) -> Fit:
        """The resize that training and the robot share."""
        return Fit(size=self.size, how=self.fit)

    def cache(self, store: EpisodeStore, ends: np.ndarray, root: Path) -> FrameCache:
        """The frame cache of this camera, built or not.

        Args:
            ends: (E,) exclusive end row of each episode, checked.
            root: directory of all caches.
        """
        quality = self.jpeg_quality
        encoding = Encoding(type="raw") if quality is None else Encoding(type="jpeg", quality=quality)
        return FrameCache(self._source(store, ends), self.resize, root, encoding)

    def _source(self, store: EpisodeStore, ends: np.ndarray) -> FrameSource:
        if self.folder is not None:
            return FolderFrames(self.folder, ends)
        if self.render is not None:
            return RenderedFrames(store, self.key, ends, self.render, self.size)
        return store.frames(self.key, ends)


class ImageColumn(DiskColumn):
    """See `Column`. Row i is frame i of a frame cache, which is opened, and built if needed, at the first read."""

    dtype = torch.uint8
    may_move = True

    def __init__(self, cache: FrameCache, verify: Verify):
        """Args: verify: with "hashes", every byte of the cache is compared, and a damaged cache is built again."""
        self.cache, self._verify = cache, verify
        self.shape = cache.shape

    @cached_property
    def frames(self) -> FrameRows:
        """The frames by row."""
        return self.cache.open(verify=self._verify)

    def __len__(self) -> int:
        return self.cache.n_frames

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`."""
        return self.frames.rows(ids)


def open_images(
    images: Mapping[str, ImageConfig],
    store: EpisodeStore,
    ends: np.ndarray,
    root: Path | None,
    data_set: Path,
    verify: Verify,
) -> dict[str, ImageColumn]:
    """A column for each camera; nothing is decoded yet.

    Args:
        root: directory of the frame caches; None for the usual one.
    """
    if not images:
        return {}
    place = cache_root(root, data_set)
    return {name: ImageColumn(image.cache(store, ends, place), verify) for name, image in images.items()}


def build_caches(
    images: Mapping[str, ImageColumn],
    workers: int,
    report: Callable[[str], None],
    check: Callable[[], None],
) -> None:
    """Build the caches that are not complete, with a line about what each costs and lines about its progress.

    One more line says if the frames take more than the memory of this machine.

    Every rank may call it: one process builds, the others wait for it without a time limit.

    Args:
        workers: threads, each of which reads one file at a time.
        check: called about once per second while building or waiting; what it raises ends that, and the episodes read
            so far stay.
    """
    for name, image in images.items():
        estimate = image.cache.estimate(workers)
        if not estimate.frames_left:
            continue
        report(f"  frames        {name}: {estimate}, in {image.cache.directory}")
        image.cache.build(
            workers, _Throttled(name, report), lambda line: report(f"  frames        {line}"), check=check
        )
    size, memory = sum(sum(image.frames.index.sizes.values()) for image in images.values()), memory_bytes()
    if size > memory:
        found = f"{size / 1e9:.3g} GB of frames, but {memory / 1e9:.3g} GB of memory"
        report(f"  frames        {found}: training reads them from the disk; watch train/data_share")


class _Throttled:
    """Reports the progress of a build about once per `REPORT_EVERY_S` seconds of it, and its end."""

    def __init__(self, name: str, report: Callable[[str], None]):
        self._name, self._report, self._last = name, report, 0

    def __call__(self, found: BuildProgress) -> None:
        if found.frames_done - self._last >= REPORT_EVERY_S * found.frames_per_s or found.frames_done == found.frames:
            self._last = found.frames_done
            self._report(f"  frames        {self._name}: {found}")
