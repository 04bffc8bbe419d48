"""Why a process cannot join the ranks that a launcher has started, as one clear error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import shorten

from dp_prior.config import ConfigError
from dp_prior.job.stop import LOST, RankLostError, Verdict

STARTED_ONE = (
    "warning: accelerate launch was asked for several processes and started one, so this run has one rank. "
    "With --multi_gpu it starts several; without GPUs set ACCELERATE_USE_CPU=true before it, too"
)
"""The warning of a launcher that starts fewer ranks than its command names."""


def unfit_variables(error: ValueError, variables: Mapping[str, str]) -> ConfigError | None:
    """The error of variables of a launcher that do not fit each other; None if they are not the cause.

    Args:
        variables: by which ranks find each other; empty texts for those that are not set.
    """
    numbers = all(value.isdecimal() for name, value in variables.items() if name != "MASTER_ADDR")
    if (numbers and variables["MASTER_ADDR"]) or not any(variables.values()):
        return None
    listed = ", ".join(f"{name}={value!r}" for name, value in variables.items())
    return ConfigError(
        "the launcher",
        [f"{error}. The variables are {listed}; a launcher sets all of them. For one process, unset them"],
    )


def unconnected(launched: int, n_processes: int) -> ConfigError:
    """The error of processes that a launcher has started and that do not know of each other."""
    return ConfigError(
        "the launcher",
        [
            f"WORLD_SIZE is {launched}, but this process knows of {n_processes}, so each would train "
            f"alone in the same directory. Without GPUs, set ACCELERATE_USE_CPU=true; "
            f"for one process, unset WORLD_SIZE"
        ],
    )


def apart(reason: str, variables: Mapping[str, str]) -> ConfigError | RankLostError:
    """The error of a rank that does not meet the others, for a reason in one line, such as torch's words."""
    rank, size, host, port = (variables[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if "EADDRINUSE" in reason:
        problem = f"MASTER_PORT is {port}, which another process of this machine uses; give all ranks a free one"
        return ConfigError("the launcher", [problem])
    who = f"rank {rank} of {size} did not meet the others at {host}:{port} (MASTER_ADDR, MASTER_PORT)"
    advice = (
        "Start all ranks, rank 0 at that address, and on a port that no other program uses; GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME, where they are set, name a network interface"
    )
    cause = shorten(reason, 400, placeholder=" ...").rstrip(".?!")
    return RankLostError(Verdict(int(rank or 0), LOST, f"{who}: {cause}. {advice}"))


def divided_models(variables: Iterable[str]) -> ConfigError:
    """The error of a launcher that is asked, by these variables, to divide the model among ranks."""
    return ConfigError(
        "the launcher",
        [
            f"{name} is true, which divides a model among ranks; expected ranks that hold whole models"
            for name in variables
        ],
        advice="start `accelerate launch --multi_gpu` without options of FSDP, DeepSpeed and Megatron, with a "
        "--config_file of its own if its default one asks for them; or unset the variable. "
        '`train.shard` "model" divides the model by FSDP2, "optimizer" the state of its optimizer alone',
    )
