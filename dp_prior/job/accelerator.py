"""The accelerator of a process, as the launcher has set it up; its faults are one clear error."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    TorchDynamoPlugin,
    get_int_from_env,
    parse_choice_from_env,
)

from dp_prior.config import ConfigError
from dp_prior.files.left_behind import left_behind
from dp_prior.job.launcher import MARKS
from dp_prior.job.stop import Stop, StoppedEarly

T = TypeVar("T")

_SHARDS = tuple(f"ACCELERATE_USE_{way}" for way in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"))
"""Set by `accelerate launch` where its options or its configuration file ask to divide a model among ranks."""

_MEETING = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""By which ranks find each other."""

log = logging.getLogger(__name__)


def make_accelerator(
    precision: Literal["fp32", "bf16", "fp16"], timeout_s: float = 120.0, stop: Stop | None = None
) -> Accelerator:
    """The accelerator of this process, set up so that no rank overwrites another's buffers.

    Args:
        timeout_s: limit of a collective; the library's own limit is a little longer, so that heartbeats name the cause.
        stop: a request ends the meeting of the ranks; None for a meeting that only an exception ends.

    Raises:
        ConfigError: fp16 without a GPU, ranks that are not connected, variables of a launcher that do not fit each
            other, a taken port, or a launcher that would divide the model.
        RankLostError: the ranks did not meet.
        StoppedEarly: a stop was requested before they met.
    """
    _refuse_shards()
    if precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("train.precision", ["is 'fp16', which needs a GPU; use 'bf16' or 'fp32' here"])
    mixed = "no" if precision == "fp32" else precision
    AcceleratorState._reset_state()  # accelerate keeps one precision per process; the process group stays
    limit = InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=timeout_s + 15))
    try:
        launched = launched_ranks()
        # By default DDP changes the layout of its buckets after the first step of every process. With three or more
        # ranks a gradient's place in the bucket determines the order of summation, so a resumed run would differ by
        # rounding.
        layout = {"broadcast_buffers": False, "find_unused_parameters": launched > 2}  # keeps the first layout
        with _meeting(stop or Stop()):
            accelerator = Accelerator(
                mixed_precision=mixed,
                kwargs_handlers=[DistributedDataParallelKwargs(**layout), limit],
                # `train.accumulation` divides and `train.compile` compiles; the environment would do so again
                gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
                dynamo_plugin=TorchDynamoPlugin(backend="no"),
            )
    except ValueError as error:
        from dp_prior.job.launch_faults import unfit_variables

        if (fault := unfit_variables(error, _variables())) is not None:
            raise fault from error
        raise
    if launched != accelerator.num_processes:
        from dp_prior.job.launch_faults import unconnected

        raise unconnected(launched, accelerator.num_processes)
    if launched == 1 and _was_asked_for_several():
        from dp_prior.job.launch_faults import STARTED_ONE

        log.warning(STARTED_ONE)
    return accelerator


def launched_ranks() -> int:
    """The number of ranks that a launcher says it has started; 1 without a launcher."""
    return get_int_from_env(["WORLD_SIZE"], 1)


def launch_marks() -> dict[str, str]:
    """The variables that a launcher has set for this process, of those in `MARKS`."""
    values = {name: parse_choice_from_env(name, "") for name in MARKS}
    return {name: value for name, value in values.items() if value}


def meet(connect: Callable[[], T], stop: Stop) -> T:
    """Return the result of `connect`, which waits for all ranks; a stop request leaves it behind.

    Raises:
        ConfigError: the port is taken.
        RankLostError: the ranks did not meet.
        StoppedEarly: a stop was requested before they met.
    """

    def look() -> None:
        if stop.is_asked():
            raise StoppedEarly(stop.reason, get_int_from_env(["RANK"], 0))

    try:
        return left_behind(connect, look)
    except RuntimeError as error:
        from dp_prior.job.launch_faults import apart

        torch_message = " ".join(str(error).partition("Exception raised from")[0].split())
        raise apart(torch_message, _variables()) from error


@contextlib.contextmanager
def _meeting(stop: Stop) -> Iterator[None]:
    """Inside, `init_process_group`, which accelerate calls and which answers no signal, is called by `meet`."""
    connect = dist.init_process_group
    dist.init_process_group = lambda *arguments, **options: meet(lambda: connect(*arguments, **options), stop)
    try:
        yield
    finally:
        dist.init_process_group = connect


def _variables() -> dict[str, str]:
    return {name: parse_choice_from_env(name, "") for name in _MEETING}


def _refuse_shards() -> None:
    """Raises ConfigError if the launcher is asked to divide the model among ranks."""
    if asked := [name for name in _SHARDS if parse_choice_from_env(name, "").lower() == "true"]:
        from dp_prior.job.launch_faults import divided_models

        raise divided_models(asked)


def _was_asked_for_several() -> bool:
    """Whether `accelerate launch` was given several processes and did not connect them.

    It then sets the address at which they would meet, and neither WORLD_SIZE nor a rank.
    """
    is_launched = bool(parse_choice_from_env("ACCELERATE_MIXED_PRECISION", ""))
    is_connected = get_int_from_env(["WORLD_SIZE"], 0) > 0
    return is_launched and not is_connected and bool(parse_choice_from_env("MASTER_PORT", ""))
