"""Remedies for a training that needs more memory than there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dp_prior.run.memory import Memory, amount

if TYPE_CHECKING:
    from dp_prior.job.ranks import Ranks

GROWTHS = (2, 4, 8, 16, 32, 64)
"""Times the ranks, or the machines, that a remedy proposes."""


def memory_remedies(
    plans_of: Callable[[int], Mapping[str, Memory]], shard: str, ranks: Ranks, n_sharing: int, room: int
) -> list[str]:
    """The changes by which the same network fits, each by itself.

    Args:
        plans_of: the memory by `train.shard` of a number of ranks.
        shard: that of the configuration.
        n_sharing: ranks that share `room`, the bytes of a device or a machine.
    """
    n_ranks, n_machines = ranks.num_processes, ranks.num_processes // n_sharing
    plans, remedies = plans_of(n_ranks), []
    fitting = [name for name, plan in plans.items() if n_ranks > 1 and n_sharing * plan.total <= room]
    remedies += [f"set train.shard to {name!r}, {amount(plans[name].total)} a rank" for name in fitting[:1]]
    for fewer in range(n_sharing - 1, 0, -1):
        if fewer * plans_of(fewer * n_machines)[shard].total <= room:
            remedies.append(f"start {fewer} rank{'s' * (fewer > 1)} on a machine")
            break
    for times in GROWTHS:
        if n_sharing * plans_of(times * n_ranks)["model"].total <= room:
            places = "" if ranks.device.type == "cuda" else f" on {times * n_machines} machines"
            remedies.append(f"start {times * n_ranks} ranks{places} with train.shard 'model'")
            break
    return remedies
