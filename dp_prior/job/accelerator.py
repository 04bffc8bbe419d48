"""The accelerator of a process, as the launcher has set it up; its faults are one clear error."""

from __future__ import annotations

import contextlib
import datetime
import logging
from typing import TYPE_CHECKING, Literal

import torch
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
from dp_prior.job.launcher import MARKS
from dp_prior.job.stop import Stop

if TYPE_CHECKING:
    from dp_prior.job.meeting import Meeting

_SHARDS = tuple(f"ACCELERATE_USE_{way}" for way in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"))
"""Set by `accelerate launch` where its options or its configuration file ask to divide a model among ranks."""

_OVERRULED = {
    "ACCELERATE_MIXED_PRECISION": "train.precision",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "train.accumulation",
    "ACCELERATE_DYNAMO_BACKEND": "train.compile",
}
"""Options of `accelerate launch` without effect, and the setting in place of each."""

_MEETING = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""By which ranks find each other."""

_MARGIN_S = 15.0
"""By which torch's limits are longer than ours, so that the heartbeats, or the meeting, name the cause."""

log = logging.getLogger(__name__)


def make_accelerator(
    precision: Literal["fp32", "bf16", "fp16"], timeout_s: float = 120.0, stop: Stop | None = None
) -> Accelerator:
    """The accelerator of this process, set up so that no rank overwrites another's buffers.

    Args:
        timeout_s: limit of a collective, and of the meeting of the ranks.
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
    limit = InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=timeout_s + _MARGIN_S))
    try:
        launched = launched_ranks()
        # By default DDP changes the layout of its buckets after the first step of every process. With three or more
        # ranks a gradient's place in the bucket determines the order of summation, so a resumed run would differ by
        # rounding.
        layout = {"broadcast_buffers": False, "find_unused_parameters": launched > 2}  # keeps the first layout
        is_alone = not parse_choice_from_env("WORLD_SIZE", "")
        with contextlib.nullcontext() if is_alone else meeting(limit, stop or Stop()).connecting():
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
    for name, setting in _OVERRULED.items() if accelerator.is_main_process else ():
        asked = parse_choice_from_env(name, "no").lower()
        if asked not in ("no", "1", mixed):
            log.warning(f"{name} is {asked!r} by the launcher or its configuration, without effect: set {setting}")
    return accelerator


def launched_ranks() -> int:
    """The number of ranks that a launcher says it has started; 1 without a launcher."""
    return get_int_from_env(["WORLD_SIZE"], 1)


def launch_marks() -> dict[str, str]:
    """The variables that a launcher has set for this process, of those in `MARKS`."""
    values = {name: parse_choice_from_env(name, "") for name in MARKS}
    return {name: value for name, value in values.items() if value}


def meeting(limit: InitProcessGroupKwargs | None, stop: Stop) -> Meeting:
    """The meeting of the ranks that a launcher has started.

    Args:
        limit: of torch, as `make_accelerator` sets it; None for the library's.
    """
    from dp_prior.job.meeting import Meeting

    limit_s = (limit or InitProcessGroupKwargs()).timeout.total_seconds() - _MARGIN_S
    return Meeting(_variables(), limit_s, stop)


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
