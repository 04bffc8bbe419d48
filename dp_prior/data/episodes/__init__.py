"""Read access to recorded episodes, one file format per module."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dp_prior.config import family
from dp_prior.data.episodes.lerobot import LeRobotStoreConfig
from dp_prior.data.episodes.npz import NpzStoreConfig
from dp_prior.data.episodes.robomimic import RobomimicStoreConfig
from dp_prior.data.episodes.zarr import ZarrStoreConfig

EpisodeStoreConfig = family(
    "episodes", ZarrStoreConfig, NpzStoreConfig, LeRobotStoreConfig, RobomimicStoreConfig, needs=("create", "path")
)


class EpisodeStore(Protocol):
    """Concatenated episodes by key. Methods raise DataError for damaged content and UnreadableError for refusals."""

    episode_ends: np.ndarray
    """(E,) exclusive end row of each episode, as stored; not yet checked."""

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape, without the row axis, of every key the data set has."""

    def dtype(self, key: str) -> str:
        """Stored type of a key as numpy names it, such as uint8, from the metadata; other text if numpy has no such."""

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) all rows of a key, in the stored dtype."""

    def locate(self, key: str, row: int) -> str:
        """The file (and array) that holds a row, for messages."""

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The files that hold these keys and the episode ends, those of the format itself included."""

    def describe(self) -> dict[str, Any]:
        """Format, path and other identification of the data set; JSON-able."""
