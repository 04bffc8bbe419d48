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


TimestepsConfig = family(
    "timesteps",
    *(UniformTimesteps, LogitNormal),
    {"loss_second_moment": "dp_prior.diffusion.loss_aware_timesteps:LossSecondMoment"},
    ListedTimesteps,
    needs=("create",),
    base=TimestepsRecord,
)
