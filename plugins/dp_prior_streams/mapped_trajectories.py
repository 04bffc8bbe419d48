"""Trajectories whose numbers are mapped from files, once on a machine, instead of held in memory by every process."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.frames.frame_cache import USER_CACHE, cache_root
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.selection import ACTION
from dp_prior.data.recorded.trajectories import Trajectories, TrajectoriesConfig, file_warnings, opened_episodes
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior_streams.mapped_numbers import MappedColumn, MappedNumbers
from dp_prior_streams.statistics_pass import StatisticsPass


class MappedTrajectories(Trajectories):
    """See `Trajectories`; samples, order and fingerprint are equal. Mirror images need the numbers in memory, so these
    data are read as others are."""

    _numbers: MappedNumbers | None = None

    def _read(self, config: TrajectoriesConfig, store: EpisodeStore) -> tuple[OpenedEpisodes, list[str]]:
        """See `Trajectories`; one pass over the files at the first start."""
        if config.mirror:
            opened, warnings = super()._read(config, store)
            return opened, [*warnings, _held_in_memory(opened)]
        chosen, problems = config.choice.of(store)
        if problems:
            raise DataError(store.where, problems)
        chosen, caches = chosen.first(config.split.max_rows), config.frame_caches
        root = cache_root(caches.directory or (USER_CACHE if caches.is_remote else None), caches.data_set)
        keys = {**config.obs, ACTION: config.action}
        self._numbers = MappedNumbers(store, keys, chosen, config.stride, root, caches.verify)
        opened = opened_episodes(config, store, chosen, config.split.of(store, chosen), self._numbers.arrays)
        self._pass = StatisticsPass(self._numbers, opened.episodes)
        return opened, [*self._pass.result.warnings, *file_warnings(config, opened)]

    def _content_digest(self, opened: OpenedEpisodes) -> Any:
        """See `Trajectories`; the mapped numbers are converted to float32 a group at a time."""
        if self._numbers is None:
            return super()._content_digest(opened)
        digest = hashlib.sha256(np.ascontiguousarray(opened.episodes.ends, dtype="<i8").tobytes())
        for key in sorted(opened.arrays):
            array = opened.arrays[key]
            digest.update(f"{key}{array.shape}".encode())
            for group in range(len(self._numbers.plan.groups)):
                begin, end = self._numbers.plan.span(group)
                digest.update(np.ascontiguousarray(array[begin:end], dtype="<f4").data)
        for extra in self._extras:
            digest.update(extra.digest())
        return digest

    def _vectors(self, opened: OpenedEpisodes, source: np.ndarray) -> dict[str, Column]:
        """See `Trajectories`; what extras added is in memory."""
        mapped = {} if self._numbers is None else self._numbers.arrays
        columns: dict[str, Column] = {}
        for key, array in opened.values.items():
            is_mapped = key in mapped
            columns[key] = MappedColumn(array, source) if is_mapped else MemoryColumn(torch.from_numpy(array[source]))
        return columns

    def _motion(self, spec: Spec, opened: OpenedEpisodes, rows: np.ndarray, lengths: np.ndarray) -> ActionMotion:
        """See `Trajectories`; from what the pass found."""
        return super()._motion(spec, opened, rows, lengths) if self._numbers is None else self._pass.motion(spec)

    def _statistics_of(self, key: str, column: Column, steps: Tensor) -> Statistics:
        if self._numbers is not None and key in self._numbers.arrays:
            return self._pass.result.statistics[key]
        return super()._statistics_of(key, column, steps)

    def cache_directories(self) -> set[Path]:
        """See `SplitData`; with the files of the numbers."""
        return super().cache_directories() | ({self._numbers.directory} if self._numbers is not None else set())

    def summary(self) -> str:
        """See `Demonstrations.summary`; with the place of the numbers."""
        place = "" if self._numbers is None else f"; numbers are mapped from {self._numbers.directory}"
        return f"{super().summary()}{place}"


def _held_in_memory(opened: OpenedEpisodes) -> str:
    """A line about numbers that mirror images keep from being mapped."""
    n_bytes = 2 * sum(array.nbytes for array in opened.arrays.values())
    finding = f"data.mirror holds the numbers in memory, with mirror images {n_bytes:,} bytes in each process"
    return f"{finding}; without it they would be mapped from a file: remove it, or name fewer keys or a slice"
