"""Frames that a renderer draws from recorded states, for data sets without pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.frames import FramePart, frames_per_block
from dp_prior.tensors.pixels.renderers import RendererConfig


class RenderedFrames:
    """See `FrameSource`. The cache is found by the states themselves, so a copy of the data set shares it.

    A part for each stage of the renderer, drawn by a thread. Without stages one part: drawing then holds Python's
    interpreter lock, and the 86,017 frames of the scripted Push-T demonstrations take a minute and a half at 96 x 96,
    too few for processes.

    Attributes:
        places: the part of all episodes, by which the cache is found, however they are drawn.
    """

    def __init__(self, store: EpisodeStore, key: str, chosen: Chosen, renderer: RendererConfig, size: tuple[int, int]):
        """
        Args:
            key: key of the states.
            chosen: the episodes whose frames are drawn.
            size: height and width of a frame.

        Raises:
            DataError: the key is missing, or holds states that the renderer does not draw.
            ImportError: a package of the renderer is not installed.
        """
        self.root = Path(store.where)
        self.ends = ends = chosen.ends
        self.size, self._renderer = size, renderer
        shape, keys = renderer.state_shape, store.keys()
        if key not in keys:
            raise DataError(str(self.root), [f"has {store.no_key(key)}"])
        where = store.locate(key, 0)
        if keys[key] != shape:
            finding = f"holds states of shape {keys[key]}; renderer {renderer.type!r} draws those of shape {shape}"
            raise DataError(where, [finding])
        states = chosen.read(store, key)[: ends[-1]]
        if states.dtype.kind not in "biuf" or len(states) < ends[-1]:
            raise DataError(where, [f"holds {len(states)} rows of {states.dtype}; expected {ends[-1]} of numbers"])
        self._states = np.ascontiguousarray(states, "<f4")
        bad = np.flatnonzero(~np.isfinite(self._states.reshape(len(states), -1)).all(axis=1))
        if len(bad):
            raise DataError(store.locate(key, bad[0]), [f"the state of row {bad[0]} is not finite"])
        self._starts = starts = ends - np.diff(ends, prepend=0)
        numbers = renderer.stages(self._states[starts]) if hasattr(renderer, "stages") else np.zeros(len(ends), int)
        self.places = [FramePart(where, tuple(range(len(ends))))]
        self.parts = [FramePart(where, tuple(np.flatnonzero(numbers == n).tolist())) for n in np.unique(numbers)]
        self._described = {
            "format": "rendered",
            "renderer": renderer.model_dump(mode="json"),
            "versions": renderer.versions(),
            "states": hashlib.sha256(self._states.tobytes()).hexdigest(),
        }

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        draw = self._renderer.create(self.size)
        step = frames_per_block(self.size[0] * self.size[1] * 3)
        rows = np.concatenate([np.arange(self._starts[number], self.ends[number]) for number in part.episodes])
        for first in range(skip, len(rows), step):
            yield draw(self._states[rows[first : first + step]])

    def files(self) -> list[Path]:
        """An empty list, since `describe` has the hash of the states."""
        return []

    def describe(self) -> dict[str, Any]:
        return self._described
