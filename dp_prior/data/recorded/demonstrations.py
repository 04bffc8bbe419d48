"""Windows over recorded demonstrations in three parts, with their statistics, their order and a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from dp_prior.data.columns import Column
from dp_prior.data.recorded.odd_values import constant_warnings, describe_key, range_warnings
from dp_prior.data.recorded.records import WindowsConfig
from dp_prior.data.samples.order import Order, Successes
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.tensors.batch import SENSED
from dp_prior.tensors.normalizer import Statistics

if TYPE_CHECKING:
    from dp_prior.data.recorded.shown import Shown
    from dp_prior.data.samples.weighted_order import Share

MOST_EMBEDDINGS_FITTED = 4096


class Demonstrations(SplitData):
    """The base of one data set and of a mixture: windows in three parts.

    Attributes:
        split_ids: episodes of each part by name, to be stored with a run.
        counts: numbers of episodes, steps, windows and padded positions of each part.
        is_train_step: (m,) bool, False where a padded row of `train` repeats an edge.
        has_embeddings: whether observations are read from disk in blocks.
        shares: groups of the windows of `train`, with shares of an epoch, at the start; None if each comes once.
        follows: instructions by the name of the evaluator whose success rates change their shares.
        file_warnings: warnings about the files.
    """

    noun, title = "episode", "recorded episodes"

    split_ids: dict[str, list[Any]]
    counts: dict[str, dict[str, int]]
    is_train_step: np.ndarray
    has_embeddings: bool
    shares: list[Share] | None
    follows: dict[str, list[str]]
    file_warnings: list[str]

    def __init__(self, config: WindowsConfig):
        self._config = config
        self._statistics: dict[str, Statistics] | None = None

    def statistics(self) -> dict[str, Statistics]:
        """Statistics over the frames of train episodes, by observation key, and of the action as "x"; none of frames
        and points.

        Embeddings and instructions are sampled: at most `MOST_EMBEDDINGS_FITTED` frames, evenly spread.
        """
        if self._statistics is None:
            steps = torch.from_numpy(np.flatnonzero(self.is_train_step))
            self._statistics = {}
            for key, column in self.train.columns.items():
                if self.spec.kind(key) in SENSED:
                    continue
                self._statistics[key] = self._statistics_of(key, column, steps)
        return self._statistics

    def _statistics_of(self, key: str, column: Column, steps: torch.Tensor) -> Statistics:
        """Statistics of a key. Args: steps: rows of the column to train on."""
        is_long = column.on_disk or self.spec.kind(key) == "text"
        count = min(len(steps), MOST_EMBEDDINGS_FITTED) if is_long else len(steps)
        sampled = steps[torch.arange(count) * len(steps) // count]
        return Statistics.of(column.to("cpu").rows(sampled).numpy())

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """See `SplitData`; then add a summary of the frames to the spec."""
        super().build_caches(report, check)
        if not self.images:
            return
        from dp_prior.data.recorded.shown import joint_scene

        scenes = {key: joint_scene(parts) for key, parts in self.shown().items()}
        self.spec = self.spec.model_copy(update={"scenes": scenes})

    def shown(self) -> dict[str, list[Shown]]:
        """Summarise the training frames of each camera, one summary per data set; needs the frame caches."""
        raise NotImplementedError

    def order(self, seed: int) -> Order | None:
        """See `SplitData`: by shares, in blocks where embeddings are read, or a full shuffle."""
        if self.follows or self.shares is not None:
            from dp_prior.data.samples.weighted_order import FollowingOrder, WeightedOrder

            if self.follows:
                return FollowingOrder(seed, self.follows, partial(self.divided, len(self.train)))
            return WeightedOrder(seed, self.shares)
        if not self.has_embeddings:
            return None
        from dp_prior.data.samples.block_order import BlockOrder

        config = self._config
        return BlockOrder(seed, len(self.train), block_rows=config.block_rows, shuffle_blocks=config.shuffle_blocks)

    def divided(self, count: int, successes: Successes) -> list[Share]:
        """Divide the `count` samples of an epoch among groups of windows of `train`.

        Args:
            successes: see `FollowingOrder`.
        """
        raise NotImplementedError

    def training_samples(self) -> Samples:
        """See `SplitData`; with a cache of the blocks of embeddings."""
        if self.shares is not None or not self.has_embeddings:
            return self.train
        # A block of windows touches a few blocks of rows: validation episodes lie between those of training.
        return self.train.cached(self._config.block_rows, 4 * self._config.shuffle_blocks)

    def sizes(self) -> dict[str, int]:
        """See `SplitData`; of episodes."""
        return {part: counts["episodes"] for part, counts in self.counts.items()}

    def document(self) -> dict[str, Any]:
        """See `SplitData`; with the episodes of each part."""
        return {"fingerprint": self.fingerprint, "episodes": self.split_ids}

    def summary(self) -> str:
        """Counts of episodes and windows, in one line."""
        sizes = self.sizes()
        return (
            f"{sizes['train']} train episodes, {len(self.train):,} windows; "
            f"{sizes['val']} val, {sizes['test']} test episodes"
        )

    def facts(self) -> dict[str, str]:
        """See `SplitData`; of one step."""
        observations = {key: f"{self.spec.kind(key)} {shape[1:]}" for key, shape in self.spec.cond_shapes.items()}
        return observations | {"action": f"{self.spec.x_shape[0]} steps of {self.spec.x_shape[1:]}"}

    def to(self, device: torch.device | str) -> Self:
        """Make batches on the training device; with `device` auto, move columns there, frames included.

        Columns move from the smallest up while they take at most half of the device's free memory. Frames that move
        are read here.
        """
        device = torch.device(device)
        if self._config.device == "auto":
            room, moved = _free_bytes(device) // 2, []
            for key, size in sorted(self._column_bytes().items(), key=lambda item: item[1]):
                room -= size
                if room >= 0:
                    moved.append(key)
            self.train, self.val, self.test = (part.to(device, moved) for part in (self.train, self.val, self.test))
        return self

    def report(self) -> dict[str, Any]:
        """Counts per part, padding, ranges and warnings; JSON-able."""
        return {
            "dropped_train_episodes": len(self.split_ids["dropped"]),
            "parts": self.counts,
            "keys": {key: describe_key(value) for key, value in self.statistics().items()},
            "fingerprint": self.fingerprint,
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """See `SplitData`; about the files and the numbers too."""
        statistics = self.statistics()
        vectors = {key: value for key, value in statistics.items() if self.spec.kind(key) != "text"}
        odd = [*constant_warnings(vectors), *range_warnings(statistics)]
        return [*self.file_warnings, *super().warnings(), *odd]

    def _column_bytes(self) -> dict[str, int]:
        """Memory that the column of each key would take on another device, over all parts."""
        sizes = dict.fromkeys(self.train.columns, 0)
        for samples in (self.train, self.val, self.test):
            for key, column in samples.columns.items():
                sizes[key] += column.n_bytes
        return sizes


def _free_bytes(device: torch.device) -> int:
    """Free memory of an accelerator; the CPU's own memory holds the arrays already."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 1 << 62
