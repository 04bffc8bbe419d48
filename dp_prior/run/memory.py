"""Memory of a training on each rank, for each `train.shard`, and whether the device has as much."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.data.files import memory_bytes
from dp_prior.files.entry_points import ask
from dp_prior.job.ranks import Ranks
from dp_prior.run.assembly import Assembly
from dp_prior.training.optimizer import AdamW
from dp_prior.training.shards import owners
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig

WHOLE = "false"
"""The name of ranks that divide nothing."""


class Memory(NamedTuple):
    """Bytes on the rank that keeps the most."""

    weights: int
    gradients: int
    optimizer: int
    averages: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    def __str__(self) -> str:
        listed = ", ".join(f"{amount(size)} of {name}" for name, size in self._asdict().items())
        return f"{amount(self.total)} a rank: {listed}"


def planned(model: nn.Module, local: nn.Module, optimizer: AdamW, n_averages: int, n_ranks: int) -> dict[str, Memory]:
    """The memory of a training by `train.shard`.

    Args:
        model: with the shapes of whole weights.
        local: whose parameters the optimizer updates; see `Replicas`.
    """
    weights = parts = gradients = parted_gradients = parted_state = 0
    states: list[int] = []
    for whole, parameter in zip(model.parameters(), local.parameters(), strict=True):
        size = whole.numel() * whole.itemsize
        part = -(-len(whole) // n_ranks) * size // max(1, len(whole)) if whole.ndim else size
        weights, parts = weights + size, parts + part
        if whole.requires_grad:
            moments = sum(name != "step" for name in optimizer.moments(parameter))
            states.append(moments * size)
            gradients, parted_gradients = gradients + size, parted_gradients + part
            parted_state += moments * part
    trained = [whole.numel() for whole in model.parameters() if whole.requires_grad]
    dealt = [0] * n_ranks
    for rank, size in zip(owners(trained, n_ranks), states, strict=True):
        dealt[rank] += size
    return {
        WHOLE: Memory(weights, gradients, sum(states), n_averages * weights),
        "optimizer": Memory(weights, gradients, max(dealt), n_averages * weights),
        "model": Memory(parts, parted_gradients, parted_state, n_averages * parts),
    }


def memory_row(model: nn.Module, trainer: PolicyTrainer) -> str:
    """Memory of each rank, now and with another `train.shard`."""
    n_ranks, shard = trainer.ranks.num_processes, trainer.config.shard or WHOLE
    plans = planned(model, trainer.local, trainer.optimizer, len(trainer.averages), n_ranks)
    row = f"{plans[shard]}; activations come on top"
    if n_ranks == 1:
        return row + "; a single rank divides nothing, so train.shard has no effect" * bool(trainer.config.shard)
    alternatives = ", ".join(f"{name} {amount(plan.total)}" for name, plan in plans.items() if name != shard)
    row += f"; by train.shard: {alternatives}"
    if shard == "model":
        row += f"; {amount(plans[WHOLE].weights)} of a whole model where it is measured"
    return row


def check_room(config: TrainingConfig, parts: Assembly) -> None:
    """Raises ConfigError if a device has less memory than its ranks keep there. Allocates nothing."""
    ranks, optimizer, shard = parts.ranks, config.optimizer.create(parts.model), config.shard or WHOLE
    plans_of = partial(planned, parts.model, parts.model, optimizer, len(config.ema))
    n_sharing, room = shared_memory(ranks)
    plan = plans_of(ranks.num_processes)[shard]
    if n_sharing * plan.total <= room:
        return
    place = f"{ranks.device} has {amount(room)} for a rank"
    if n_sharing > 1:
        place = f"the {n_sharing} ranks of this machine share {amount(room)}"
    remedies = ask("memory_remedies", plans_of, shard, ranks, n_sharing, room) or ()
    remedy = ", or ".join([*remedies, "make the network smaller"])
    raise ConfigError("train", [f"does not fit: {plan}, without activations, but {place}; {remedy}"])


def shared_memory(ranks: Ranks) -> tuple[int, int]:
    """(ranks that share it, bytes) of the accelerator of this rank, or of this machine."""
    if ranks.device.type == "cuda":
        return 1, torch.cuda.get_device_properties(ranks.device).total_memory
    return ranks.num_local_processes, memory_bytes()


def amount(n_bytes: int) -> str:
    """Bytes for people, such as `5.4 MB` or `12 GB`."""
    exponent = min(4, int(math.log(max(1, n_bytes), 1000)))
    value = n_bytes / 1000**exponent
    return f"{value:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[exponent]}"
