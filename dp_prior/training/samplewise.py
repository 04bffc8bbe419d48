"""Modules of your own that know neither timesteps nor noise: they map a batch to the mean loss of each of its samples.

The trainer takes them beside diffusion models; see docs/python.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dp_prior.diffusion.process import Loss
from dp_prior.tensors.batch import Batch


class Undiffused:
    """Stands for the process of such a module: one timestep, and nothing to learn about it."""

    steps = 1
    learns_timesteps = False

    def self_conditions(self, seed: int, samples_seen: int) -> bool:
        """Never."""
        return False


UNDIFFUSED = Undiffused()


def samplewise_loss(per_sample: Tensor, batch: Batch) -> Loss:
    """The loss of a batch whose samples have the mean losses (B,) over their valid positions.

    Raises:
        ValueError: that is another shape.
    """
    if per_sample.shape != (len(batch),):
        raise ValueError(
            f"the module returned shape {tuple(per_sample.shape)} for {len(batch)} samples; a module without a "
            f"`process` returns ({len(batch)},), the mean loss of each sample"
        )
    valid = batch.mask.flatten(1).sum(1)
    total = (per_sample * valid).sum() / (valid.sum() if batch.denominator is None else batch.denominator)
    t = torch.zeros(len(batch), dtype=torch.int64, device=per_sample.device)
    return Loss(total, per_sample, t, {}, valid)
