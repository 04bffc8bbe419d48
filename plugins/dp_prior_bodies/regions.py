"""The loss of a network for many bodies where torch compiles the steps: one region for each body.

The number of a body's samples changes from batch to batch. A region of a whole batch would be compiled again for each
division, until torch gives up. This module imports torch's compiler, which takes a second.
"""

from __future__ import annotations

from typing import Any

import torch

from dp_prior.diffusion.process import Loss
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness


@torch.compiler.disable(recursive=False)
def loss_by_regions(model: Any, batch: Batch, random: Randomness, self_condition: bool) -> Loss:
    """See `BodiesPolicy.forward`; the forward of each body's policy is compiled, and nothing else.

    Args:
        model: a `BodiesPolicy`, whose module imports this one.
    """
    parts = _divided(model, batch, random)
    losses = []
    for part in parts:
        losses.append(part.view(part.batch, part.random, self_condition))
    return _rejoined(model, losses, parts, len(batch))


@torch.compiler.disable
def _divided(model: Any, batch: Batch, random: Randomness) -> list[Any]:
    """See `BodiesPolicy.divided`; tells the compiler that the number of samples varies."""
    parts = model.divided(batch, random)
    for part in parts:
        for tensor in part.tensors():
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return parts


@torch.compiler.disable
def _rejoined(model: Any, losses: list[Loss], parts: list[Any], size: int) -> Loss:
    """See `BodiesPolicy.rejoined`."""
    return model.rejoined(losses, parts, size)
