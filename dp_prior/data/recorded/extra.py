"""The interface by which a data set asks everything that a sample holds beside its vectors, such as cameras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dp_prior.data.columns import Column
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.samples.order import Successes

if TYPE_CHECKING:
    from dp_prior.data.frames.frame_column import ImageColumn
    from dp_prior.data.recorded.shown import Shown
    from dp_prior.data.samples.weighted_order import Share


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Further columns of recorded episodes, or a change of their vectors or of the order of training. The defaults add
    nothing.

    Rows of a data set are numbered through over its chosen episodes and their mirror images.

    Attributes:
        keys: of the data set, that are read.
        files: that are read beside those of the keys.
        images: column of each camera, by the policy's name.
        in_blocks: whether rows are read from disk in blocks of neighbours, in which training then shuffles.
        follows: see `Demonstrations`.
    """

    keys: Iterable[str] = ()
    files: Sequence[Path] = ()
    images: Mapping[str, ImageColumn] = field(default_factory=dict)
    in_blocks: bool = False
    follows: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def open(cls, record: Any, opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        """Read and check the extra.

        Args:
            record: value of the extra's field in the configuration.

        Returns:
            The extra, and the episodes with arrays that it adds or changes.

        Raises:
            DataError: it cannot be trained on.
        """
        raise NotImplementedError

    def spec(self, opened: OpenedEpisodes, steps: int) -> Mapping[str, Mapping[str, Any]]:
        """Entries of the fields of `Spec`. Args: steps: number of steps of an observation."""
        return {}

    def columns(self, rows: np.ndarray) -> Mapping[str, Column]:
        """Columns by the policy's name. Args: rows: (m,) row of the data set for each row of the columns."""
        return {}

    def digest(self) -> bytes:
        """Bytes of the data's fingerprint, known once the extra is open."""
        return b""

    def cached_digest(self) -> bytes:
        """Bytes of the data's fingerprint that need the frame caches, which are built if they are not complete."""
        return b""

    def training_spec(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Fields of `Spec` that describe the training data. Args: rows: (n,) of the steps to train on."""
        return {}

    def has_loss(self, rows: np.ndarray) -> np.ndarray | None:
        """(m,) bool, False for rows whose actions carry no loss in training; None for no such row."""
        return None

    def shares(self, newest: np.ndarray, count: int, successes: Successes) -> list[Share] | None:
        """Weigh the windows of training; None for an extra without weights.

        Args:
            newest: (n,) row of the newest observation of each window.
            count: samples of an epoch.
            successes: see `FollowingOrder`.

        Raises:
            ConfigError: a weight would have no sample.
        """
        return None

    def shown(self, rows: np.ndarray) -> Mapping[str, Shown]:
        """Summarise the frames of each camera. Args: rows: (n,) recorded rows of the steps to train on."""
        return {}

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterable[str]:
        """Parts of a line about the data. Args: windows: to train on; shares: of these, None without weights."""
        return ()

    def mixture_warnings(self) -> Iterable[str]:
        """Warnings that also hold in a mixture of data sets."""
        return ()

    def warnings(self) -> Iterable[str]:
        """Warnings that hold for this data set alone."""
        return ()
