"""DiffusionProcess: the training loss and the sampling of one diffusion model, whatever the network and the task.

Values are in normalised units. The noise, the loss and everything between network and sampler is float32, whatever
precision the network computes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import model_validator
from torch import Tensor, nn

from dp_prior.config import Config
from dp_prior.diffusion.guidance import ClipConfig, FixedClip
from dp_prior.diffusion.objective import Eps, ObjectiveConfig
from dp_prior.diffusion.sampler import Denoise, SamplerConfig
from dp_prior.diffusion.schedule import Cosine, NoiseScheduleConfig
from dp_prior.diffusion.timesteps import TimestepsConfig, UniformTimesteps
from dp_prior.diffusion.weighting import Uniform, WeightingConfig
from dp_prior.randomness import Randomness

Network = Callable[[Tensor, Tensor], Tensor]


class DiffusionConfig(Config):
    """How noise is added in training and what the network learns about it."""

    schedule: NoiseScheduleConfig = Cosine()
    """Signal and noise level of every timestep."""

    objective: ObjectiveConfig = Eps()
    """What the network predicts."""

    weighting: WeightingConfig = Uniform()
    """How much an error at each timestep counts."""

    timesteps: TimestepsConfig = UniformTimesteps()
    """Which timesteps are trained."""

    clip: ClipConfig | None = FixedClip()
    """What keeps the estimates of x_0 in range while sampling; null leaves them."""

    @model_validator(mode="after")
    def _invertible(self) -> DiffusionConfig:
        self.objective.check(self.schedule.table())
        return self

    def create(self) -> DiffusionProcess:
        """The process; it has no trained parameters."""
        return DiffusionProcess(**self.arguments())


class Loss(NamedTuple):
    """The training loss of B samples.

    Attributes:
        total: () weighted squared error over the valid elements, divided by the denominator: what is differentiated.
        per_sample: (B,) mean weighted error over each sample's valid elements; 0 for a sample without any.
        t: (B,) int64 timesteps.
        terms: further (B,) losses by name.
        valid: (B,) number of valid positions of each sample.
    """

    total: Tensor
    per_sample: Tensor
    t: Tensor
    terms: dict[str, Tensor]
    valid: Tensor


class DiffusionProcess(nn.Module):
    """Adds noise, measures the prediction, and samples."""

    def __init__(
        self,
        *,
        schedule: NoiseScheduleConfig,
        objective: ObjectiveConfig,
        weighting: WeightingConfig,
        timesteps: TimestepsConfig,
        clip: ClipConfig | None,
    ):
        super().__init__()
        self.table = schedule.table()
        self.objective = objective
        self.timesteps = timesteps.create(len(self.table))
        self.clip = clip
        alpha, sigma = self.table.alpha, self.table.sigma
        weight = weighting.weight(self.table.snr, objective.error_scale(alpha, sigma))
        self._exact = torch.stack([alpha, sigma, weight])
        self.register_buffer("levels", self._exact.float(), persistent=False)
        self.register_buffer("indices", torch.arange(len(self.table)), persistent=False)
        self._inversions = [objective.inversion(*level) for level in self.table.levels[:-1]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DiffusionProcess:
        """Follow the module to another device, but keep the levels float32 when it is cast."""
        super()._apply(fn, recurse)
        self.levels = self._exact.to(self.levels.device, torch.float32)
        return self

    @property
    def steps(self) -> int:
        """Number T of timesteps."""
        return len(self.table)

    def loss(
        self,
        network: Network,
        x_0: Tensor,
        mask: Tensor | None,
        random: Randomness,
        denominator: Tensor | None = None,
    ) -> Loss:
        """The denoising loss.

        Args:
            network: (x_t (B, *x_shape), t (B,) int64) -> output (B, *x_shape).
            x_0: (B, *x_shape) float32, normalised.
            mask: (B, *x_shape[:-1]) bool, True where x_0 is real; None if everywhere.
            random: B rows; the timestep and the noise of a sample depend on its row alone.
            denominator: () valid positions that the sum is divided by; None counts those of this batch.
        """
        batch, width = x_0.shape[0], x_0.shape[-1]
        t = self.timesteps.draw(random.stream("timestep"))
        eps = random.stream("noise").normal(*x_0.shape[1:])
        alpha, sigma, weight = self.levels[:, t]
        alpha, sigma = (level.view(batch, *[1] * (x_0.dim() - 1)) for level in (alpha, sigma))
        output = network(alpha * x_0 + sigma * eps, t).float()
        error = (output - self.objective.target(x_0, eps, alpha, sigma)) ** 2
        if mask is None:
            valid = t.new_full((batch,), math.prod(x_0.shape[1:-1]))
        else:
            valid = mask.flatten(1).sum(1)
            error = error * mask[..., None]
        row = error.flatten(1).sum(1) * weight
        denominator = valid.sum() if denominator is None else denominator
        return Loss(
            total=row.sum() / (denominator.clamp(min=1e-6) * width),
            per_sample=row / (valid.clamp(min=1) * width),
            t=t,
            terms={},
            valid=valid,
        )

    def denoiser(self, network: Network, batch: int) -> Denoise:
        """The network as samplers see it: (x_t (batch, *x_shape), t) -> estimate of x_0, clipped as configured."""
        indices = self.indices[:, None].expand(-1, batch)

        def denoise(x_t: Tensor, t: int) -> Tensor:
            a, b = self._inversions[t]
            output = network(x_t, indices[t]).float()
            x_0 = torch.mul(output, b).add_(x_t, alpha=a)
            return x_0 if self.clip is None else self.clip.apply(x_0)

        return denoise

    def sample(self, network: Network, x_shape: tuple[int, ...], random: Randomness, sampler: SamplerConfig) -> Tensor:
        """Draw one sample for each row of `random`.

        Returns:
            (B, *x_shape) float32, normalised. A row does not depend on its neighbours.
        """
        noise = random.stream("start").normal(*x_shape)
        return sampler(self.denoiser(network, len(random)), noise, self.table, random)
