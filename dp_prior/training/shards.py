"""Optimizer state divided among the ranks: each parameter is updated by one rank, which sends it to the others.

ZeRO stage 1 (Rajbhandari et al. 2020, arXiv:1910.02054), of whole tensors, so that it serves optimizers that look at
matrices, such as Muon. Every number is that of ranks which each update all parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dp_prior.config import ConfigError
from dp_prior.job.ranks import Ranks
from dp_prior.training.optimizer import AdamW
from dp_prior.training.replicas import Replicas


class Shards(Replicas):
    """Which rank updates which parameter; see `owners`."""

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        self._rank_of: dict[nn.Parameter, int] = {}

    def divide(self, optimizer: AdamW) -> None:
        super().divide(optimizer)
        parameters = optimizer.parameters
        ranks = owners([parameter.numel() for parameter in parameters], self._ranks.num_processes)
        self._rank_of = dict(zip(parameters, ranks, strict=True))

    def rank_of(self, parameter: nn.Parameter) -> int:
        """The rank that updates a parameter."""
        return self._rank_of[parameter]

    def is_own(self, parameter: nn.Parameter) -> bool:
        return self.rank_of(parameter) == self._ranks.process_index

    def share(self, parameters: Iterable[nn.Parameter]) -> None:
        updated: list[list[nn.Parameter]] = [[] for _ in range(self._ranks.num_processes)]
        for parameter in parameters:
            updated[self.rank_of(parameter)].append(parameter)
        for rank, those in enumerate(updated):
            self._ranks.share(those, rank)

    def collected(self, state: Mapping[nn.Parameter, dict[str, Tensor]]) -> dict[nn.Parameter, dict[str, Tensor]]:
        collected, ranks = dict(state), self._ranks
        held = [state.get(parameter, {}) for parameter in self._rank_of]
        forms = ranks.tell_all([_forms(moments) for moments in held])
        for number, (parameter, rank) in enumerate(self._rank_of.items()):
            if parameter not in state:
                continue
            if ranks.is_main_process and not self.is_own(parameter):
                sent = forms[rank][number].items()
                collected[parameter] = {name: ranks.receive(*form, rank).cpu() for name, form in sent}
            elif self.is_own(parameter) and not ranks.is_main_process:
                for tensor in state[parameter].values():
                    ranks.send_to_main(tensor)
        return collected

    def refusal(self, optimizer: AdamW) -> ConfigError:
        """The error of an optimizer that updates weights of other ranks."""
        step = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}.step"
        finding = f"is 'optimizer', but {step} updates weights of other ranks, too"
        remedy = "override `step_group` instead (docs/extending.md), or set train.shard=false"
        return ConfigError("train.shard", [f"{finding}; {remedy}"])

    def __str__(self) -> str:
        return f"its state divided among {self._ranks.num_processes} ranks"


def owners(sizes: Sequence[int], n_ranks: int) -> list[int]:
    """The rank that updates each parameter: the largest first, each by the rank with the fewest numbers so far."""
    totals, ranks = [0] * n_ranks, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        ranks[number] = totals.index(min(totals))
        totals[ranks[number]] += sizes[number]
    return ranks


def _forms(moments: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype by the name of a moment."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in moments.items()}
