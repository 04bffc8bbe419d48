"""What a part of a policy computes first: examples of the inputs of its graph."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from dp_prior.diffusion.denoiser import Network
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.example_rows import observations


class _FirstInputs(Exception):
    """Ends a sampling at the first computation of a part."""


@torch.no_grad()
def first_inputs(policy: DiffusionPolicy, name: str, rows: int) -> list[Any]:
    """The first inputs of a policy's `runtime` or `encoding`, for observations within the range of training."""
    inputs: list[Any] = []
    caller = threading.get_ident()

    def encoding(values: dict[str, Tensor]) -> None:
        if threading.get_ident() == caller:  # else the policy acts meanwhile
            inputs.append({key: value.contiguous().clone() for key, value in values.items()})
            raise _FirstInputs

    def runtime(tokens: Tensor) -> Network | None:
        if threading.get_ident() != caller:
            return None

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            inputs.extend(value.contiguous().clone() for value in (x_t, t, tokens))
            raise _FirstInputs

        return network

    setattr(policy, name, {"runtime": runtime, "encoding": encoding}[name])
    try:
        random = Randomness.from_counts(0, "runtime", torch.arange(rows))
        policy.predict(observations(policy, 0, rows), random)
    except _FirstInputs:
        pass
    finally:
        setattr(policy, name, None)
    return inputs
