"""Windows in three parts, with their statistics, their order of training, and a report with warnings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from dp_prior.batch import Spec
from dp_prior.data.errors import first_few
from dp_prior.data.images import ImageColumn, build_caches
from dp_prior.data.loader import Loader
from dp_prior.data.order import BlockOrder, Share, WeightedOrder
from dp_prior.data.recorded import WindowsConfig
from dp_prior.data.selection import ACTION
from dp_prior.data.window_set import WindowSet
from dp_prior.normalizer import Limits, Statistics, varies_in
from dp_prior.rich_text import facts_table

HUGE = 1e6
"""Larger magnitudes are worth a warning: they are more often a sentinel or a broken sensor than a measurement."""

OUTLIER_WIDTHS = 100.0
"""A value this many times the 1 %..99 % width away from it is worth a warning."""

MOST_EMBEDDINGS_FITTED = 4096


class SplitTrajectories:
    """Windows in three parts: what one data set and several of them have in common.

    Attributes:
        spec: shapes of one sample.
        train, val, test: WindowSets; val and test may be empty.
        split_ids: episodes of each part by name, to be stored with a run.
        files: of the episodes that the samples were read from.
        images: the column of each camera; see `build_caches`.
        counts: numbers of episodes, steps, windows and padded positions of each part.
        is_train_step: (m,) bool, True where a padded row of `train` is no repeated edge.
        has_embeddings: whether observations are read from disk in blocks.
        shares: groups of the windows of `train`, with fixed shares of an epoch; None if each comes once per epoch.
        warnings: about the files.
        fingerprint: SHA-256 of the content.
    """

    spec: Spec
    train: WindowSet
    val: WindowSet
    test: WindowSet
    split_ids: dict[str, list[Any]]
    files: list[Path]
    images: dict[str, ImageColumn]
    counts: dict[str, dict[str, int]]
    is_train_step: np.ndarray
    has_embeddings: bool
    shares: list[Share] | None
    warnings: list[str]
    fingerprint: str

    def __init__(self, config: WindowsConfig):
        self._config = config
        self._statistics: dict[str, Statistics] | None = None

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Build the frame caches that are not complete; see `dp_prior.data.images.build_caches`."""
        build_caches(self.images, os.cpu_count() or 1, report, check)

    def cache_directories(self) -> set[Path]:
        """Where the frame caches lie, built or not."""
        return {column.cache.directory for column in self.images.values()}

    def statistics(self) -> dict[str, Statistics]:
        """Statistics over the frames of train episodes, by observation key, and of the action as "x"; none of images.

        Those of embeddings and instructions are over `MOST_EMBEDDINGS_FITTED` frames at most, evenly spread.
        """
        if self._statistics is None:
            steps = torch.from_numpy(np.flatnonzero(self.is_train_step))
            self._statistics = {}
            for key, column in self.train.columns.items():
                if self.spec.kind(key) == "image":
                    continue
                is_long = column.on_disk or self.spec.kind(key) == "text"
                most = MOST_EMBEDDINGS_FITTED if is_long else len(steps)
                count = min(len(steps), most)
                seen = steps[torch.arange(count) * len(steps) // count]
                self._statistics[key] = Statistics.of(column.to("cpu").rows(seen).numpy())
        return self._statistics

    def loader(self, *, seed: int, **how: Any) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        if self.shares is not None:
            return Loader(self.train, order=WeightedOrder(seed, self.shares), seed=seed, **how)
        if not self.has_embeddings:
            return Loader(self.train, seed=seed, **how)
        config = self._config
        order = BlockOrder(seed, len(self.train), block_rows=config.block_rows, shuffle_blocks=config.shuffle_blocks)
        # A block of windows touches a few blocks of rows: validation episodes lie between those of training.
        return Loader(self.train.cached(config.block_rows, 4 * config.shuffle_blocks), order=order, seed=seed, **how)

    def document(self) -> dict[str, Any]:
        """What identifies these data, to be stored with a run."""
        return {"fingerprint": self.fingerprint, "episodes": self.split_ids}

    def summary(self) -> str:
        """Counts of episodes and windows, in one line."""
        episodes = {name: counts["episodes"] for name, counts in self.counts.items()}
        return (
            f"{episodes['train']} train episodes, {len(self.train):,} windows; "
            f"{episodes['val']} val, {episodes['test']} test episodes"
        )

    def _repr_html_(self) -> str:
        observations = {key: f"{self.spec.kind(key)} {shape[1:]}" for key, shape in self.spec.cond_shapes.items()}
        parts = {f"{name} episodes": f"{counts['episodes']:,}" for name, counts in self.counts.items()}
        action = {"action": f"{self.spec.x_shape[0]} steps of {self.spec.x_shape[1:]}"}
        warnings = {f"warning {number}": line for number, line in enumerate(self._warnings(), 1)}
        return facts_table("recorded episodes", parts | observations | action | warnings)

    def to(self, device: torch.device | str) -> Self:
        """Have batches made for the training device; columns move there if the config lets them, frames included.

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
            "keys": {key: _describe_key(value) for key, value in self.statistics().items()},
            "fingerprint": self.fingerprint,
            "warnings": self._warnings(),
        }

    def _warnings(self) -> list[str]:
        """About the files, the parts and the numbers; reads no frames."""
        statistics = self.statistics()
        vectors = {key: _describe_key(value) for key, value in statistics.items() if self.spec.kind(key) != "text"}
        no_val = [] if self.split_ids["val"] else ["no episode is left to validate on: val metrics will be missing"]
        return [*self.warnings, *no_val, *_constant_warnings(vectors), *_range_warnings(statistics)]

    def _column_bytes(self) -> dict[str, int]:
        """Memory that the column of each key would take on another device, over all parts."""
        parts = (self.train, self.val, self.test)
        return {key: sum(part.columns[key].n_bytes for part in parts) for key in self.train.columns}


def _free_bytes(device: torch.device) -> int:
    """Free memory of an accelerator; the CPU's own memory holds the arrays already."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 1 << 62


def _describe_key(statistics: Statistics) -> dict[str, Any]:
    constant = np.flatnonzero(~varies_in(statistics.min, statistics.max, Limits().range_eps)).tolist()
    low, high = statistics.min.ravel().tolist(), statistics.max.ravel().tolist()
    return {"shape": list(statistics.min.shape), "min": low, "max": high, "constant_dimensions": constant}


def _called(key: str) -> str:
    return "action" if key == ACTION else f"{key!r}"


def _constant_warnings(keys: dict[str, dict[str, Any]]) -> list[str]:
    warnings = []
    for key, found in keys.items():
        constant, count = found["constant_dimensions"], len(found["min"])
        if constant:
            effect = "the policy always gives these values" if key == ACTION else "they tell the policy nothing"
            warnings.append(
                f"{_called(key)}, dimensions {first_few(constant, 20)} ({len(constant)} of {count}): constant over the "
                f"train episodes, or within a millionth of their size; {effect}"
            )
    return warnings


def _range_warnings(statistics: dict[str, Statistics]) -> list[str]:
    warnings = []
    for key, value in statistics.items():
        ends = (array.ravel() for array in (value.min, value.max, value.q01, value.q99))
        for i, (low, high, q01, q99) in enumerate(zip(*ends, strict=True)):
            width = q99 - q01
            far = width > 0 and max(high - q99, q01 - low) > OUTLIER_WIDTHS * width
            if far or max(abs(low), abs(high)) > HUGE:
                warnings.append(
                    f"{_called(key)}, dimension {i}: values reach from {low:g} to {high:g}, but 98 % of them lie in "
                    f"[{q01:g}, {q99:g}]; look for sentinels or outliers, or use the quantile normalizer"
                )
    return warnings
