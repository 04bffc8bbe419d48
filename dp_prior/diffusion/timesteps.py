"""Which timesteps are trained: a probability for each of the T timesteps, drawn by inverting its cumulative sum."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Config
from dp_prior.randomness import Randomness


class UniformTimesteps(Config):
    """Every timestep is equally likely."""

    type: Literal["uniform"] = "uniform"

    def create(self, steps: int) -> TimestepSampler:
        """The drawing of one of `steps` timesteps."""
        return TimestepSampler(torch.full((steps,), 1 / steps, dtype=torch.float64))


class TimestepSampler(nn.Module):
    """Draws timesteps from a fixed distribution."""

    def __init__(self, probability: Tensor):
        """Args: probability: (T,) float64, sums to 1."""
        super().__init__()
        self.register_buffer("inner_edges", probability.cumsum(0)[:-1].float(), persistent=False)

    def draw(self, random: Randomness) -> Tensor:
        """(B,) int64 timesteps, one for each row of `random`."""
        return torch.searchsorted(self.inner_edges, random.uniform(), right=True)


TimestepsConfig = Annotated[UniformTimesteps, Field(discriminator="type")]
