"""Read access to recorded episodes, one file format per module."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from dp_prior.data.episodes.lerobot import LeRobotStoreConfig
from dp_prior.data.episodes.npz import NpzStoreConfig
from dp_prior.data.episodes.robomimic import RobomimicStoreConfig
from dp_prior.data.episodes.zarr import ZarrStoreConfig

EpisodeStoreConfig = Annotated[
    ZarrStoreConfig | NpzStoreConfig | LeRobotStoreConfig | RobomimicStoreConfig, Field(discriminator="type")
]


class EpisodeStore(Protocol):
    """Concatenated episodes by key. Everything wrong with the files themselves is a `DataError`."""

    episode_ends: np.ndarray
    """(E,) exclusive end row of each episode, as stored; not yet checked."""

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape, without the row axis, of every key the data set has."""
        ...

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) all rows of a key, in the stored dtype."""
        ...

    def locate(self, key: str, row: int) -> str:
        """The file (and array) that holds a row, for messages."""
        ...

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The files that hold these keys and the episode ends, those of the format itself included."""
        ...

    def describe(self) -> dict[str, Any]:
        """Format, path and whatever else identifies the data set; JSON-able."""
        ...
