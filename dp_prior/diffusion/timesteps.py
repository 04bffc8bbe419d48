"""Which timesteps are trained: a probability for each of the T timesteps, drawn by inverting its cumulative sum."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Config, family
from dp_prior.tensors.randomness import Randomness

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 divided by the golden ratio, as int64: its multiples fill the circle evenly however many are taken."""

LARGEST_LOSS = 1e15
"""Larger losses are remembered as this, so that the sum of their squares stays finite."""


class TimestepsRecord(Config):
    """A distribution of timesteps. A subclass has a `type` and `create`."""

    learns: ClassVar[bool] = False
    """Whether the distribution follows the losses, one draw per sample."""

    stratified: bool = False
    """Spread the timesteps of a global batch evenly, which lowers the variance of its loss: the k-th sample of the run
    takes the k-th point of the golden-ratio sequence instead of a random point, for any number of ranks."""

    @abstractmethod
    def create(self, steps: int) -> TimestepSampler:
        """A sampler of one of `steps` timesteps."""


class UniformTimesteps(TimestepsRecord):
    """Every timestep is equally likely."""

    type: Literal["uniform"] = "uniform"

    def create(self, steps: int) -> TimestepSampler:
        return TimestepSampler(torch.full((steps,), 1 / steps, dtype=torch.float64), self.stratified)


class LogitNormal(TimestepsRecord):
    """The logit of the time is normal, so that the middle is trained most (Esser et al. 2024, arXiv:2403.03206)."""

    type: Literal["logit_normal"] = "logit_normal"

    mean: float = 0.0
    """Mean of logit((t + u) / T); above 0 the noisier timesteps are trained more."""

    std: float = Field(default=1.0, gt=0)
    """Standard deviation of the logit; towards 0 only the middle is trained."""

    def create(self, steps: int) -> TimestepSampler:
        edges = torch.arange(steps + 1, dtype=torch.float64) / steps
        cumulative = torch.special.ndtr((torch.logit(edges) - self.mean) / self.std)
        return TimestepSampler(cumulative.diff(), self.stratified)


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


class ListedTimesteps(TimestepsRecord):
    """Some timesteps are equally likely, and the others are never trained."""

    type: Literal["listed"] = "listed"

    listed: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """The timesteps; samplers must visit no others."""

    def create(self, steps: int) -> TimestepSampler:
        chosen = torch.zeros(steps, dtype=torch.float64)
        chosen[list(self.listed)] = 1 / len(set(self.listed))
        return TimestepSampler(chosen, self.stratified)


class TimestepSampler(nn.Module):
    """Draws timesteps from a fixed distribution."""

    learns = False

    def __init__(self, probability: Tensor, stratified: bool):
        """Args: probability: (T,) float64, sums to 1."""
        super().__init__()
        self.stratified = stratified
        self.register_buffer("inner_edges", probability.cumsum(0)[:-1].float(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TimestepSampler:
        """Move to another device, but never cast the numbers: rounded edges would draw other timesteps."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            self._buffers[name] = buffer.to(self._buffers[name].device)
        return self

    def draw(self, random: Randomness, positions: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Draw a timestep for each row of `random`.

        Args:
            positions: (B,) int64 of the samples in the order of the run, for stratified drawing; in evaluation they may
                be None, and it draws at random.

        Returns:
            (B,) int64 timesteps, and (B,) factors on their losses or None.

        Raises:
            ValueError: stratified training without positions.
        """
        return torch.searchsorted(self.inner_edges, self._places(random, positions), right=True), None

    def _places(self, random: Randomness, positions: Tensor | None) -> Tensor:
        """(B,) float32 in [0, 1)."""
        if not self.stratified or (positions is None and not self.training):
            return random.uniform()
        if positions is None:
            raise ValueError("stratified timesteps need the samples' places in the run; pass positions=batch.positions")
        return ((positions * GOLDEN >> 40) & ((1 << 24) - 1)).to(torch.float32) * 2.0**-24


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


TimestepsConfig = family(
    "timesteps",
    *(UniformTimesteps, LogitNormal, LossSecondMoment, ListedTimesteps),
    needs=("create",),
    base=TimestepsRecord,
)
