"""Windows over recorded episodes of which only some parts are on this machine at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.data.columns import Column
from dp_prior.data.errors import DataError
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.recorded.episodes import EpisodeParts, OpenedEpisodes
from dp_prior.data.recorded.selection import ACTION
from dp_prior.data.recorded.split import Split
from dp_prior.data.recorded.trajectories import (
    EXTRAS,
    Trajectories,
    TrajectoriesConfig,
    file_warnings,
    opened_episodes,
)
from dp_prior.data.samples.order import Order
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior_streams.arrivals import Arrivals, ArrivingOrder
from dp_prior_streams.part_cache import NoRoomError, budget_bytes, too_small
from dp_prior_streams.part_column import PartColumn
from dp_prior_streams.part_order import PartOrder
from dp_prior_streams.part_plan import PartPlan
from dp_prior_streams.parts import MIXED_PARTS, EveryEpisode, PartArray, Parts
from dp_prior_streams.record import StreamedStore, metadata_bytes
from dp_prior_streams.statistics_pass import StatisticsPass

LEAST_PARTS_DIVIDED = 10
"""A data set of at least so many parts is split by whole parts, so training fetches no validation episodes."""

PASS_BYTES, PASS_FILE_BYTES = 32 << 10, 512
"""Bytes of statistics and columns, and of hashes and locks for each file, that the first pass adds to the metadata."""

NOT_STREAMED = ("points", "embeddings", "mirror", "previous_action", "weights")
"""Fields of data that need all numbers in memory, or another order."""


class StreamedTrajectories(Trajectories):
    """See `Trajectories`; numbers come from parts that arrive in the order of training."""

    extra_places: ClassVar[Mapping[str, str]] = {**EXTRAS, "cameras": "dp_prior_streams.cameras:StreamedCameras"}

    def _read(self, config: TrajectoriesConfig, store: StreamedStore) -> tuple[OpenedEpisodes, list[str]]:
        """See `Trajectories`; one pass over the numbers, at the first start alone."""
        _refuse_fields(config)
        store.cache.verify = config.verify
        if config.cameras:
            from dp_prior_streams.cameras import check_cameras

            check_cameras(config.cameras)
        try:
            chosen, problems = (config.choice if store.path.exists() else EveryEpisode()).of(store)
        except NoRoomError:  # the column of the choice takes more room than there is
            self._refuse_small_budget(_parts_of(config, store, EveryEpisode().of(store)[0]))
            raise
        if problems:
            raise DataError(store.where, problems)
        chosen = chosen.first(config.split.max_rows)
        self._parts = store.arriving = _parts_of(config, store, chosen)
        plan = self._parts.plan
        self._arrivals = Arrivals(self._parts)
        self._refuse_small_budget(self._parts)
        store.cache.trim()
        split = _split(config, store, chosen, plan)
        numbers = {part: np.searchsorted(chosen.numbers, episodes) for part, episodes in split.ids().items()}
        self._pass = StatisticsPass(self._parts, EpisodeParts(chosen, chosen.ends, numbers, config.stride))
        statistics = self._pass.result.statistics
        keys = {**config.obs, ACTION: config.action}
        arrays = {key: PartArray(self._parts, key, statistics[key].min.shape) for key in keys}
        opened = opened_episodes(config, store, chosen, split, arrays)
        return opened, [*self._pass.result.warnings, *file_warnings(config, opened)]

    def _refuse_small_budget(self, parts: Parts) -> None:
        store, least = parts.store, parts.least_bytes()
        permanent = store.cache.permanent_bytes() + (0 if store.path.exists() else metadata_bytes(store.remote))
        if least + permanent > budget_bytes(store.disk_gb):
            reason = f"{MIXED_PARTS} parts that are shuffled together, and the part that arrives, take {least:,} bytes"
            to_come = PASS_BYTES + PASS_FILE_BYTES * len(store.remote.files)
            raise too_small(store.disk_gb, f"{reason}, and metadata {permanent:,}", least + permanent + to_come)

    def _content_digest(self, opened: OpenedEpisodes) -> Any:
        """See `Trajectories`; the numbers of each key have a SHA-256 of their own, so that one pass finds all."""
        digest = hashlib.sha256(np.ascontiguousarray(opened.episodes.ends, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self._parts.plan.ends, dtype="<i8").tobytes())
        for key in sorted(self._pass.result.digests):
            digest.update(f"{key}{opened.arrays[key].shape}{self._pass.result.digests[key]}".encode())
        for extra in self._extras:
            digest.update(extra.digest())
        return digest

    def _vectors(self, opened: OpenedEpisodes, source: np.ndarray) -> dict[str, Column]:
        index = torch.from_numpy(source)
        return {key: PartColumn(array).taking(index) for key, array in opened.arrays.items()}

    def _motion(self, spec: Spec, opened: OpenedEpisodes, rows: np.ndarray, lengths: np.ndarray) -> ActionMotion:
        """See `Trajectories`; from what the pass found."""
        return self._pass.motion(spec)

    def _statistics_of(self, key: str, column: Column, steps: Tensor) -> Statistics:
        if key in self._pass.result.statistics:
            return self._pass.result.statistics[key]
        return super()._statistics_of(key, column, steps)

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """See `SplitData`; from now on a request to stop, or the end of the process, ends every wait for a part."""
        super().build_caches(report, check)

        def look() -> None:
            check()
            self._arrivals.check()

        self._parts.store.watch(look)

    def order(self, seed: int) -> Order:
        """See `SplitData`: by parts, of which `MIXED_PARTS` are shuffled together."""
        return ArrivingOrder(self.part_order(seed), self._arrivals)

    def part_order(self, seed: int) -> PartOrder:
        """The order of training, which reads nothing."""
        parts = self._parts.plan.part_of(self._newest["train"])
        return PartOrder(seed, parts, self._parts.plan.group_of, mixed_parts=MIXED_PARTS)

    def summary(self) -> str:
        """See `Demonstrations.summary`; with the parts and the budget."""
        store = self._parts.store
        count = len(self._parts.plan.ends)
        parts = f"{count} part{'s' if count > 1 else ''}"
        return f"{super().summary()}; streamed in {parts} through {store.disk_gb:g} GB of disk"


def _parts_of(config: TrajectoriesConfig, store: StreamedStore, chosen: Chosen) -> Parts:
    """The parts of the chosen episodes; fetches none."""
    sizes = [store.remote.files[name].size for name in store.names_of(store.meta.tables)]
    plan = PartPlan.of(store.meta, chosen, sizes, has_frames=bool(config.cameras))
    return Parts(store, plan, {**config.obs, ACTION: config.action}, config.stride, config.cameras)


def _refuse_fields(config: TrajectoriesConfig) -> None:
    used = [field for field in NOT_STREAMED if getattr(config, field)]
    used += [f"language.{name}.weights" for name, record in config.language.items() if record.weights is not None]
    if used:
        finding = f"{', '.join(used)} cannot be streamed, since all numbers would have to be in memory"
        raise ConfigError("data", [f"{finding}; remove it, or read the data set from a disk: type lerobot"])


def _split(config: TrajectoriesConfig, store: StreamedStore, chosen: Chosen, plan: PartPlan) -> Split:
    """The split by whole parts; by episodes where parts are few, or the configuration lists or counts episodes."""
    split = config.split
    if split.parts is not None or split.max_train_episodes is not None or len(plan.ends) < LEAST_PARTS_DIVIDED:
        return split.of(store, chosen)
    of_parts = split.assign(len(plan.ends)).ids()
    part_of_episode = plan.part_of(chosen.ends - 1)
    return Split(**{name: chosen.numbers[np.isin(part_of_episode, parts)].tolist() for name, parts in of_parts.items()})
