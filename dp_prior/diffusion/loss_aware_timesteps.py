"""Timesteps drawn by their recent losses (Nichol and Dhariwal 2021, equation 18)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.diffusion.timesteps import TimestepSampler, TimestepsRecord
from dp_prior.tensors.randomness import Randomness

LARGEST_LOSS = 1e15
"""Larger losses are remembered as this, so that the sum of their squares stays finite."""


class LossSecondMoment(TimestepsRecord):
    """Timesteps are drawn in proportion to the root mean square of their recent losses, and weighted to stay unbiased.

    Until every timestep has a full history, and in evaluation, they are uniform.

    Source: Nichol and Dhariwal 2021, equation 18.
    """

    type: Literal["loss_second_moment"] = "loss_second_moment"

    learns: ClassVar = True

    history: int = Field(default=10, ge=1, le=10_000)
    """Recent losses remembered of each timestep."""

    uniform: float = Field(default=0.001, gt=0, le=1)
    """Share of the draws that stays uniform, so that no timestep is forgotten."""

    def create(self, steps: int) -> LossAwareSampler:
        return LossAwareSampler(steps, self.history, self.uniform, self.stratified)


class LossAwareSampler(TimestepSampler):
    """Draws timesteps by their recent losses, which are saved with the model; in evaluation, uniformly."""

    learns = True

    def __init__(self, steps: int, history: int, uniform: float, stratified: bool):
        """See `LossSecondMoment`."""
        super().__init__(torch.full((steps,), 1 / steps, dtype=torch.float64), stratified)
        self.uniform = uniform
        self.register_buffer("losses", torch.zeros(steps, history))
        self.register_buffer("counts", torch.zeros(steps, dtype=torch.int64))

    def probability(self) -> Tensor:
        """(T,) float32 probability of each timestep."""
        steps, history = self.losses.shape
        weights = self.losses.square().mean(1).sqrt() + 1e-30
        weights = (1 - self.uniform) * weights / weights.sum() + self.uniform / steps
        return torch.where((self.counts >= history).all(), weights, 1 / steps)

    def draw(self, random: Randomness, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """See `TimestepSampler.draw`; the factors are 1 / (T probability)."""
        if not self.training:
            return super().draw(random, positions)
        probability = self.probability()
        edges = probability.cumsum(0)
        t = torch.searchsorted(edges[:-1] / edges[-1], self._places(random, positions), right=True)
        return t, 1 / (len(probability) * probability[t])

    @torch.no_grad()
    def update(self, t: Tensor, per_sample: Tensor, valid: Tensor) -> None:
        """Remember losses; every rank must call this with the same samples of all ranks, in the same order.

        Args:
            t: (N,) int64 timesteps.
            per_sample: (N,) their losses, without factors. Losses that are not finite are ignored.
            valid: (N,) number of positions that each loss is the mean of; losses of 0 positions are ignored.
        """
        steps, history = self.losses.shape
        t = torch.where((valid > 0) & torch.isfinite(per_sample), t, steps)  # ignored: a row below the table
        t, order = torch.sort(t, stable=True)
        size = torch.zeros(steps + 1, dtype=torch.int64, device=t.device).index_add_(0, t, torch.ones_like(t))
        rank = torch.arange(len(t), device=t.device) - (size.cumsum(0) - size)[t]  # among those of the same timestep
        place = t * history + (self.counts[t.clamp(max=steps - 1)] + rank) % history
        is_kept = (t < steps) & (rank >= size[t] - history)
        slots = torch.cat([self.losses.flatten(), self.losses.new_zeros(1)])
        ordered = per_sample[order].clamp(-LARGEST_LOSS, LARGEST_LOSS)
        slots[torch.where(is_kept, place, steps * history)] = ordered.to(slots.dtype)
        self.losses.copy_(slots[:-1].view(steps, history))
        self.counts.add_(size[:-1])
