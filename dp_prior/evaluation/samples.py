"""The samples that an evaluator measures, the same every time, distributed over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.job.work import Work
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.metrics import ReducingRanks

Part = Literal["train", "val", "test"]


def pick_samples(data: SplitData, split: Part, evaluator: str, data_set: str | None = None) -> Samples:
    """One part of the data, or, with `data_set`, of one of several joined data sets.

    Raises:
        ConfigError: the part is empty, or the data set does not exist.
    """
    if data_set is not None:
        if data_set not in data.sets:
            problem = f"evaluator {evaluator!r} measures data_set {data_set!r}; data.sets has {sorted(data.sets)}"
            raise ConfigError("data", [problem])
        data = data.sets[data_set]
    samples = {"train": data.train, "val": data.val, "test": data.test}[split]
    if not len(samples):
        where = "the data" if data_set is None else f"data set {data_set!r}"
        problem = f"evaluator {evaluator!r} measures the {split} part of {where}, which is empty"
        remedy = "give it a share in data.split, a larger one if the data are few, or remove the evaluator "
        remedy += '("evaluate": [] for no evaluator at all); a command takes another part with --split'
        raise ConfigError("data.split", [f"{problem}; {remedy}"])
    return samples


def evenly_spread(total: int, most: int | None) -> Tensor:
    """(n,) int64 evenly spread numbers below `total`, with n at most `most`; all numbers for None."""
    n = total if most is None else min(most, total)
    return torch.arange(n) * total // n


def shared_batches(
    samples: Samples, max_samples: int | None, batch_size: int, ranks: ReducingRanks | None, device: torch.device
) -> Iterator[Batch]:
    """This rank's batches of at most `max_samples` samples, evenly spread over the split and dealt to ranks in turn.

    Every sample is measured once, on any number of ranks, with noise determined by its id.
    """
    ids = evenly_spread(len(samples), max_samples)
    rank, size = rank_and_size(ranks)
    for part in work_of(ranks).parts(ids[rank::size].split(batch_size)):
        if len(part):  # splitting no ids gives one empty part
            heartbeat(ranks)
            yield samples.fetch(part.to(samples.device)).to(device)


def dealt(
    n: int, batch_size: int, ranks: ReducingRanks | None, work: Callable[[Tensor], Tensor], like: Tensor
) -> Tensor:
    """The results of `work(ids)` for ids 0 to n - 1, whole batches dealt to ranks in turn. A collective.

    Batches do not depend on the number of ranks, so the result is equal bit for bit.

    Args:
        work: (B,) int64 ids -> (B, *shape).
        like: (0, *shape), of the dtype and on the device of the results.

    Returns:
        (n, *shape) on every rank.
    """
    rank, size = rank_and_size(ranks)
    batches = torch.arange(n).split(batch_size)
    results = like.new_zeros(-(-len(batches) // size), batch_size, *like.shape[1:])  # equal lengths on all ranks
    for place, ids in enumerate(work_of(ranks).parts(batches[rank::size])):
        heartbeat(ranks)
        results[place, : len(ids)] = work(ids)
    if size > 1:
        results = ranks.gather(results).view(size, *results.shape).transpose(0, 1).flatten(0, 1)
    return results.flatten(0, 1)[:n]


def rank_and_size(ranks: ReducingRanks | None) -> tuple[int, int]:
    """This rank and the number of ranks; (0, 1) for None."""
    return (0, 1) if ranks is None else (ranks.process_index, ranks.num_processes)


def work_of(ranks: ReducingRanks | None) -> Work:
    """Counts the parts of an evaluation, for the line that shows how much is done; an `accelerate.Accelerator` alone
    has none."""
    return getattr(ranks, "work", None) or Work()


def heartbeat(ranks: ReducingRanks | None) -> None:
    """Send a heartbeat where ranks have them; leaves the evaluation if the run is asked to stop."""
    if hasattr(ranks, "beat"):
        ranks.beat()


def leave_if_asked(ranks: ReducingRanks | None) -> None:
    """Leave the evaluation if the run is asked to stop; a wait, which is no sign of progress."""
    if hasattr(ranks, "leave_if_asked"):
        ranks.leave_if_asked()
