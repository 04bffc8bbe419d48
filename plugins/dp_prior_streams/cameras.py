"""Cameras of a streamed data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from dp_prior.config import ConfigError
from dp_prior.data.columns import Column
from dp_prior.data.recorded.camera import Cameras, FramesConfig
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.shown import Shown
from dp_prior.data.samples.weighted_order import Share
from dp_prior_streams.part_frames import PartFrameColumn


@dataclass(frozen=True)
class StreamedCameras(Cameras):
    """See `Cameras`; frames arrive with their part, so there is no frame cache of the whole data set."""

    frames: Mapping[str, PartFrameColumn] = field(default_factory=dict)

    @classmethod
    def open(cls, record: Mapping[str, FramesConfig], opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        parts = opened.store.arriving
        return cls(record, frames={name: PartFrameColumn(parts, parts.frames[name]) for name in record}), opened

    def spec(self, opened: OpenedEpisodes, steps: int) -> Mapping[str, Mapping[str, Any]]:
        shapes = {name: (steps, *column.shape) for name, column in self.frames.items()}
        cameras = self.cameras.items()
        return {
            "cond_shapes": shapes,
            "kinds": {name: camera.kind for name, camera in cameras},
            "fits": {name: camera.resize for name, camera in cameras},
            "depths": {name: camera.range for name, camera in cameras if camera.range is not None},
        }

    def columns(self, rows: np.ndarray) -> Mapping[str, Column]:
        return {name: column.taking(torch.from_numpy(rows)) for name, column in self.frames.items()}

    def cached_digest(self) -> bytes:
        """See `Extra`; names, sizes and versions of the files, since frames were not all decoded."""
        identities = {name: column.identity for name, column in self.frames.items()}
        return json.dumps(identities, sort_keys=True).encode()

    def shown(self, rows: np.ndarray) -> Mapping[str, Shown]:
        """See `Extra`; nothing, since the frames of a whole data set would have to arrive."""
        return {}

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterable[str]:
        return ()

    def mixture_warnings(self) -> Iterable[str]:
        return ()


def check_cameras(cameras: Mapping[str, FramesConfig]) -> None:
    """Refuse frames that do not lie in the data set.

    Raises:
        ConfigError: a camera names a folder, or draws its frames from states.
    """
    for name, camera in cameras.items():
        if camera.folder is not None or getattr(camera, "render", None) is not None:
            finding = f"{name}: frames of a streamed data set lie in it under a key, neither in a folder nor drawn"
            raise ConfigError("data", [f'{finding}; give "key" alone, or read the data set from a disk: type lerobot'])
