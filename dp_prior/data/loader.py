"""The order of training, a pure function of (seed, samples_seen), and the batches it makes.

The loader has no state: any position is computed directly. Every rank knows the global order and takes every
`world_size`-th row of it, so the number of ranks decides which rank computes a sample, never which sample comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from dp_prior.batch import Batch
from dp_prior.config import ConfigError
from dp_prior.data.order import FullOrder, Order


class Dataset(Protocol):
    """Samples by index, fetched a batch at a time."""

    def __len__(self) -> int: ...

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids (B,) int64, which lie on the CPU."""
        ...

    def fetch(self, ids: Tensor) -> Batch:
        """The samples at ids (B,) int64, which lie on the data set's device."""
        ...

    @property
    def device(self) -> torch.device:
        """Where samples are gathered."""
        ...


class Loader:
    """Batches of the training set for one rank, from any position on.

    Args:
        order: of the samples; None for a full shuffle.
        batch_size: samples per rank and micro-batch.
        accumulation: micro-batches per optimizer step.
        device: of the batches; None for that of the data set.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        accumulation: int,
        seed: int,
        rank: int,
        world_size: int,
        device: torch.device | str | None = None,
        order: Order | None = None,
    ):
        self.dataset = dataset
        self.order = FullOrder(seed, len(dataset)) if order is None else order
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(dataset.device if device is None else device)
        self.global_batch_size = batch_size * accumulation * world_size
        if len(dataset) < self.global_batch_size:
            ranks = f"{world_size} rank" + ("s" if world_size != 1 else "")
            raise ConfigError(
                "data",
                [
                    f"one step takes batch_size {batch_size} x accumulation {accumulation} x {ranks} = "
                    f"{self.global_batch_size} samples, but the training set has {len(dataset)}. "
                    f"Lower batch_size or train on more episodes"
                ],
            )
        self._length = len(dataset)

    def __len__(self) -> int:
        """Samples in one epoch, over all ranks."""
        return self._length

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]:
        """Endless iterator over the micro-batches of each global batch, from sample `samples_seen` on."""
        while True:
            yield self.global_batch(samples_seen)
            samples_seen += self.global_batch_size

    def global_batch(self, samples_seen: int) -> list[Batch]:
        """This rank's micro-batches of the global batch that begins at sample `samples_seen`."""
        ids, valid = self._span(samples_seen)
        denominator = valid / (self.world_size * self.accumulation)
        per_micro_batch = self.batch_size * self.world_size
        batches = []
        for begin in range(0, self.global_batch_size, per_micro_batch):
            rows = slice(begin + self.rank, begin + per_micro_batch, self.world_size)
            batch = self.dataset.fetch(ids[rows])
            if batch.x.device != self.device:
                batch = batch.to(self.device)
            positions = torch.arange(
                samples_seen + rows.start, samples_seen + rows.stop, self.world_size, device=self.device
            )
            shared = torch.full((), denominator, dtype=torch.float32, device=self.device)
            batches.append(replace(batch, positions=positions, denominator=shared))
        return batches

    def ids(self, samples_seen: int) -> Tensor:
        """(global_batch_size,) int64 ids, on all ranks, of the batch that begins after `samples_seen` samples."""
        return self._span(samples_seen)[0]

    def _span(self, samples_seen: int) -> tuple[Tensor, int]:
        """Ids (G,) of a global batch, which may reach into the next epoch, and its number of valid positions."""
        epoch, begin = divmod(samples_seen, self._length)
        end = begin + self.global_batch_size
        ids = torch.from_numpy(self.order.ids(epoch, begin, min(end, self._length)))
        if end > self._length:
            ids = torch.cat([ids, torch.from_numpy(self.order.ids(epoch + 1, 0, end - self._length))])
        valid = int(self.dataset.count_valid(ids))
        return ids.to(self.dataset.device, non_blocking=True), valid
