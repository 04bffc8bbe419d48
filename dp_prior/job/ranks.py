"""Ranks: how a process becomes one, and agreement: what is decided once is decided on the main rank for all."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    broadcast_object_list,
    get_int_from_env,
)

from dp_prior.config import ConfigError

T = TypeVar("T")


def decide(accelerator: Accelerator, choose: Callable[[], T], patience_s: float | None = None) -> T:
    """Run `choose` on the main rank alone and give its result to all ranks, or raise its error on all of them.

    A collective: every rank calls it, so a file that only one rank can read never sends the ranks different ways. With
    `RanksAtWork` the others wait for the choice as long as the main rank lives, and not only as long as for a step.

    Args:
        patience_s: how long the others wait where nobody watches yet; None as long as for a step.
    """
    outcome: list = [None, None, None]
    cause: Exception | None = None
    if accelerator.is_main_process:
        try:
            with getattr(accelerator, "busy", contextlib.nullcontext)():
                outcome[0] = choose()
        except Exception as error:  # not swallowed: raised below, here and on every other rank
            cause = error
            outcome[1:] = type(error), str(error)  # an error with arguments of its own would not survive the journey
    if accelerator.num_processes > 1:
        if patience_s is not None:
            _await_main(accelerator, patience_s)
        getattr(accelerator, "meet", lambda: None)()
        broadcast_object_list(outcome)
    result, kind, message = outcome
    if kind is not None:
        raise cause or kind.__new__(kind, message)
    return result


def _await_main(accelerator: Accelerator, patience_s: float) -> None:
    """Wait until the main rank is here too, by the job's store, which has no limit for steps."""
    store = dist.PrefixStore("dp_prior/decisions", dist.distributed_c10d._get_default_store())
    number = store.add(f"of rank {accelerator.process_index}", 1)
    if accelerator.is_main_process:
        store.set(f"{number}", "made")
    else:
        store.wait([f"{number}"], datetime.timedelta(seconds=patience_s))


def make_accelerator(precision: Literal["fp32", "bf16", "fp16"], timeout_s: float = 120.0) -> Accelerator:
    """The accelerator of this process, with settings that keep ranks exact: no rank overwrites another's buffers.

    Args:
        timeout_s: a rank that waits longer than this for the others is told by the `Watch` why; the library's own limit
            comes a little later.

    Raises:
        ConfigError: fp16 without a GPU, or ranks that do not know of each other.
    """
    if precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("train.precision", ["is 'fp16', which needs a GPU; use 'bf16' or 'fp32' here"])
    mixed = "no" if precision == "fp32" else precision
    limit = InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=timeout_s + 15))
    handlers = [DistributedDataParallelKwargs(broadcast_buffers=False), limit]
    accelerator = Accelerator(mixed_precision=mixed, kwargs_handlers=handlers)
    launched = get_int_from_env(["WORLD_SIZE"], 1)
    if launched != accelerator.num_processes:
        raise ConfigError(
            "the launcher",
            [
                f"WORLD_SIZE is {launched}, but this process knows of {accelerator.num_processes}, so each would train "
                f"alone in the same directory. Without GPUs, set ACCELERATE_USE_CPU=true; "
                f"for one process, unset WORLD_SIZE"
            ],
        )
    return accelerator
