"""The order of training, a pure function of (seed, samples_seen), and the batches it makes.

The loader has no state but the successes that its order may follow: any position is computed directly. Every rank knows
the global order and takes every `world_size`-th row of it, so the number of ranks decides which rank computes a sample,
never which sample comes next. Micro-batches may differ in size: a loss is divided by the valid positions of the global
batch, so that every sample weighs the same in any micro-batch.

Samples on disk are read in a thread while the loop trains on those before them; samples in memory need no thread.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.data.samples.order import FullOrder, Order, Successes, SuccessOrder
from dp_prior.data.samples.over_columns import Samples
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness

T = TypeVar("T")

READ_AHEAD = 2
"""Global batches that are read before they are asked for."""


@dataclass(frozen=True)
class _Read:
    """A global batch before an accelerator sees it.

    Attributes:
        ids: (G,) on the CPU.
        valid: number of valid positions in it.
        parts: what was read from disk for each micro-batch of this rank; None where all is in memory.
    """

    samples_seen: int
    ids: Tensor
    valid: int
    parts: list[dict[str, Tensor] | None]


class Loader:
    """Batches of the training set for one rank, from any position on.

    Args:
        dataset: the samples, or anything with `device`, `__len__`, `fetch(ids)` and `count_valid(ids)`, which is then
            in memory.
        order: of the samples; None for a full shuffle.
        augment: makes the batch to train on of a batch of the data set, given a random row for each sample, which is a
            function of seed and position; None leaves it.
        batch_size: samples per rank and micro-batch; at most these with `global_batch_size`.
        accumulation: micro-batches per optimizer step; with `global_batch_size` 1 for as many as `batch_size` requires.
        device: of the batches; None for that of the data set.
        shortage: a sentence for the error about too few samples, with a space at the end; or empty.
        global_batch_size: samples per optimizer step over all ranks; None for the product of the others.

    Attributes:
        batch_size: samples of the largest micro-batch of a rank.
        accumulation: micro-batches of a rank per optimizer step.
    """

    def __init__(
        self,
        dataset: Samples,
        *,
        batch_size: int,
        accumulation: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
        order: Order | None = None,
        augment: Callable[[Batch, Randomness], Batch] | None = None,
        shortage: str = "",
        global_batch_size: int | None = None,
    ):
        self.dataset = dataset
        self._seed, self._augment = seed, augment
        self.order = FullOrder(seed, len(dataset)) if order is None else order
        sizes = micro_batch_sizes(global_batch_size, batch_size, accumulation, world_size)
        self.batch_size = sizes[0]
        self.accumulation = len(sizes)
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(dataset.device if device is None else device)
        self._bounds = [*itertools.accumulate((size * world_size for size in sizes), initial=0)]
        self.global_batch_size = self._bounds[-1]
        if len(dataset) < self.global_batch_size:
            setting, step = "global_batch_size", "global_batch_size"
            if global_batch_size is None:
                setting = "batch_size"
                step = f"batch_size {batch_size} x accumulation {accumulation} x {_ranks(world_size)} ="
            problem = f"one step takes {step} {self.global_batch_size} samples, but the training set has {len(dataset)}"
            raise ConfigError(f"data.{setting}", [f"{problem}. {shortage}Lower {setting} or train on more data"])
        self._length = len(dataset)
        self._disk = dataset if getattr(dataset, "reads_disk", False) else None
        self._reading = threading.Lock()  # a data set may keep the blocks that it has read

    def __len__(self) -> int:
        """Samples in one epoch, over all ranks."""
        return self._length

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]:
        """Endless iterator over the micro-batches of each global batch, from sample `samples_seen` on.

        Where samples lie on disk, the `READ_AHEAD` next ones are read meanwhile. An error there is raised here, when
        the batch that it belongs to is asked for. After `follow` and `load` they are read anew.
        """
        while True:
            order = self.order
            with contextlib.closing(self._from(samples_seen)) as reads:
                for read in reads:
                    yield self._finish(read)
                    samples_seen += self.global_batch_size
                    if self.order is not order:
                        break

    def follow(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Go on in the order that follows an evaluation; see `FollowingOrder.after`. Other orders stay."""
        if isinstance(self.order, SuccessOrder):
            self.order = self.order.after(tables)

    def state(self) -> Successes | None:
        """Successes of the newest rollouts, to be stored with a run; None if the order follows no rollouts."""
        return self.order.successes if isinstance(self.order, SuccessOrder) else None

    def load(self, state: Successes | None) -> None:
        """Go on in the order that follows stored successes; without any, in the order of a start."""
        if isinstance(self.order, SuccessOrder):
            self.order = self.order.resumed(state or {})

    def global_batch(self, samples_seen: int) -> list[Batch]:
        """This rank's micro-batches of the global batch that begins at sample `samples_seen`."""
        return self._finish(self._read(samples_seen))

    def ids(self, samples_seen: int) -> Tensor:
        """(global_batch_size,) int64 ids, on all ranks, of the batch that begins after `samples_seen` samples."""
        return self._span(samples_seen).to(self.dataset.device, non_blocking=True)

    def _from(self, samples_seen: int) -> Generator[_Read]:
        """The global batches from a sample on, some of them ahead of time where they lie on disk."""
        starts = itertools.count(samples_seen, self.global_batch_size)
        return (self._read(start) for start in starts) if self._disk is None else _ahead(self._read, starts, READ_AHEAD)

    def _read(self, samples_seen: int) -> _Read:
        """Everything about a global batch that needs no accelerator."""
        ids = self._span(samples_seen)
        parts: list[dict[str, Tensor] | None] = [None] * self.accumulation
        if self._disk is not None:
            with self._reading:
                parts = [self._pinned(self._disk.read(ids[rows])) for rows in self._rows()]
        return _Read(samples_seen, ids, int(self.dataset.count_valid(ids)), parts)

    def _pinned(self, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move the tensors to pinned memory, from which a GPU copies in the background."""
        if self.device.type != "cuda":
            return buffers
        with torch.cuda.device(self.device):  # a new thread begins with the first GPU, whose memory other ranks use
            return {key: value.pin_memory() for key, value in buffers.items()}

    def _finish(self, read: _Read) -> list[Batch]:
        ids = read.ids.to(self.dataset.device, non_blocking=True)
        denominator = read.valid / (self.world_size * self.accumulation)
        batches = []
        for rows, part in zip(self._rows(), read.parts, strict=True):
            batch = self.dataset.fetch(ids[rows]) if self._disk is None else self._disk.fetch(ids[rows], part)
            if batch.x.device != self.device:
                batch = batch.to(self.device)
            first, stop = read.samples_seen + rows.start, read.samples_seen + rows.stop
            positions = torch.arange(first, stop, self.world_size, device=self.device)
            shared = torch.full((), denominator, dtype=torch.float32, device=self.device)
            if self._augment is not None:
                batch = self._augment(batch, Randomness.from_counts(self._seed, "augmentation", positions))
            batches.append(replace(batch, positions=positions, denominator=shared))
        return batches

    def _rows(self) -> list[slice]:
        """Where in a global batch each micro-batch of this rank lies."""
        return [slice(begin + self.rank, end, self.world_size) for begin, end in itertools.pairwise(self._bounds)]

    def _span(self, samples_seen: int) -> Tensor:
        """Ids (G,), on the CPU, of a global batch, which may reach into the next epoch."""
        epoch, begin = divmod(samples_seen, self._length)
        end = begin + self.global_batch_size
        ids = torch.from_numpy(self.order.ids(epoch, begin, min(end, self._length)))
        if end > self._length:
            ids = torch.cat([ids, torch.from_numpy(self.order.ids(epoch + 1, 0, end - self._length))])
        return ids


def micro_batch_sizes(global_batch_size: int | None, batch_size: int, accumulation: int, world_size: int) -> list[int]:
    """Divide one optimizer step into the micro-batches of a rank; see `Loader` for the arguments.

    Returns:
        The sizes of the micro-batches, the largest first; they differ by at most 1.

    Raises:
        ConfigError: the ranks cannot share `global_batch_size` samples equally, or the sizes disagree.
    """
    if global_batch_size is None:
        return [batch_size] * accumulation
    share, rest = divmod(global_batch_size, world_size)
    if rest:
        below = next(n for n in range(world_size, 0, -1) if global_batch_size % n == 0)
        above = next((n for n in range(world_size, 4 * world_size) if global_batch_size % n == 0), below)
        numbers = " or ".join(_ranks(n) for n in dict.fromkeys((below, above)))
        totals = " or ".join(str(n * world_size) for n in (share, share + 1) if n)
        problem = f"is {global_batch_size}, which {world_size} ranks cannot share equally"
        raise ConfigError("data.global_batch_size", [f"{problem}; start {numbers}, which can, or set it to {totals}"])
    is_limited = batch_size != global_batch_size  # else `batch_size` was omitted; see `DataRecord`
    if is_limited and accumulation > 1 and batch_size * accumulation != share:
        product = f"batch_size {batch_size} x accumulation {accumulation} x {_ranks(world_size)}"
        total, required = batch_size * accumulation * world_size, -(-share // batch_size)
        problem = f"is {global_batch_size}, but {product} = {total} samples"
        remedy = f"remove train.accumulation (here {required} would follow), or set this to {total}"
        raise ConfigError("data.global_batch_size", [f"{problem}; {remedy}"])
    count = min(share, max(accumulation, -(-share // batch_size)))
    small, larger = divmod(share, count)
    return [small + 1] * larger + [small] * (count - larger)


def _ranks(count: int) -> str:
    return f"{count} rank" + ("s" if count != 1 else "")


def _ahead(read: Callable[[int], T], starts: Iterable[int], count: int) -> Generator[T]:
    """`read` of each start, in order; up to `count` of them are read in a thread before they are asked for."""
    starts = iter(starts)
    pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        waiting = deque(pool.submit(read, start) for start in itertools.islice(starts, count))
        while waiting:
            batch = waiting.popleft().result()
            waiting.extend(pool.submit(read, start) for start in itertools.islice(starts, 1))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)
