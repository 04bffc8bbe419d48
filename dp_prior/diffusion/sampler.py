"""Samplers: from noise to x_0, given a denoiser `denoise(x_t, t) -> x_0` and the noise table it was trained on.

No sampler asks what the network predicts. Most take linear steps x_s = c_x x_t + c_0 x_0 + std n between two levels of
the table; `NoiseTable.transition` has the coefficients for all, as plain numbers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config
from dp_prior.diffusion.schedule import NoiseTable
from dp_prior.randomness import Randomness

Denoise = Callable[[Tensor, int], Tensor]
Spacing = Literal["trailing", "linspace", "leading"]


def spaced_timesteps(trained: int, steps: int, spacing: Spacing) -> list[int]:
    """Timesteps to visit, noisiest first, beginning with the noisiest one trained.

    `leading` is published to begin below it, where the network is told less noise than there is: its first step is
    moved up.
    """
    if steps > trained:
        raise ValueError(f"the sampler has {steps} steps, but only {trained} timesteps are trained; lower its steps")
    if spacing == "trailing":
        return [round(trained - i * trained / steps) - 1 for i in range(steps)]
    if spacing == "linspace":
        return [round((trained - 1) * (1 - i / max(steps - 1, 1))) for i in range(steps)]
    return [trained - 1, *(i * (trained // steps) for i in range(steps - 2, -1, -1))]


def step_noise(random: Randomness, shape: tuple[int, ...], count: int) -> Iterator[Tensor]:
    """`count` draws (B, *shape) of standard normal noise; those of short rows are made several steps at a time."""
    together = max(1, 4096 // math.prod(shape))
    for start in range(0, count, together):
        block = random.stream("step", start).normal(min(together, count - start), *shape)
        yield from block.unbind(1)


class _Sampler(Config):
    """A sampler; a subclass says how it steps."""

    steps: int | None = Field(default=None, ge=1)
    """Number of sampling steps; null visits every timestep trained."""

    spacing: Spacing = "trailing"
    """Which timesteps are visited: `trailing` counts down from the last in equal strides, `linspace` goes from the last
    to the first, `leading` counts up from the first."""

    def timesteps(self, trained: int) -> list[int]:
        """The timesteps to visit of those `trained`, noisiest first.

        Raises:
            ValueError: there are more steps than timesteps.
        """
        return spaced_timesteps(trained, self.steps or trained, self.spacing)

    def __call__(
        self,
        denoise: Denoise,
        noise: Tensor,
        table: NoiseTable,
        random: Randomness,
        timesteps: list[int] | None = None,
    ) -> Tensor:
        """Draw x_0.

        Args:
            denoise: (x_t (B, ...), t) -> estimate of x_0 (B, ...).
            noise: (B, ...) x at the first timestep; standard normal where that is the noisiest.
            table: levels of all timesteps trained.
            random: B rows, for samplers that add noise on the way.
            timesteps: those to visit instead of the sampler's own, noisiest first.

        Returns:
            (B, ...) sample.
        """
        x_t = noise
        for x_t, _ in self.progressive(denoise, noise, table, random, timesteps):  # noqa: B007
            pass
        return x_t

    @abstractmethod
    def progressive(
        self,
        denoise: Denoise,
        noise: Tensor,
        table: NoiseTable,
        random: Randomness,
        timesteps: list[int] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Like calling the sampler, but yields (x after the step, estimate of x_0) at every step."""


class DDIM(_Sampler):
    """Denoising diffusion implicit models (Song et al. 2021); the noise estimate follows the clipped x_0."""

    type: Literal["ddim"] = "ddim"

    steps: int | None = Field(default=16, ge=1)
    """Number of sampling steps; null visits every timestep trained."""

    eta: float = Field(default=0.0, ge=0, le=1)
    """Share of fresh noise: 0 is deterministic given the starting noise, 1 is DDPM on the visited timesteps."""

    def progressive(
        self,
        denoise: Denoise,
        noise: Tensor,
        table: NoiseTable,
        random: Randomness,
        timesteps: list[int] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See `_Sampler.progressive`."""
        timesteps = timesteps or self.timesteps(len(table))
        fresh = step_noise(random, noise.shape[1:], len(timesteps))
        x_t = noise
        for t, s in pairwise([*timesteps, -1]):
            c_x, c_0, std = table.transition(t, s, self.eta)
            x_0 = denoise(x_t, t)
            x_t = torch.mul(x_t, c_x).add_(x_0, alpha=c_0)
            if std:
                x_t.add_(next(fresh), alpha=std)
            yield x_t, x_0


class DDPM(_Sampler):
    """Ancestral sampling of the posterior (Ho et al. 2020); on fewer steps, of the shortened chain."""

    type: Literal["ddpm"] = "ddpm"

    def progressive(
        self,
        denoise: Denoise,
        noise: Tensor,
        table: NoiseTable,
        random: Randomness,
        timesteps: list[int] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See `_Sampler.progressive`."""
        ancestral = DDIM(steps=self.steps, spacing=self.spacing, eta=1.0)
        return ancestral.progressive(denoise, noise, table, random, timesteps)


SamplerConfig = Annotated[DDPM | DDIM, Field(discriminator="type")]
