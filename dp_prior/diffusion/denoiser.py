"""Denoisers: the network as samplers call it, (x_t, t) -> estimate of x_0."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dp_prior.diffusion.variance import FixedSmall, VarianceConfig

Network = Callable[[Tensor, Tensor], Tensor]
Denoise = Callable[[Tensor, int], Tensor]


class Estimate(NamedTuple):
    """The estimate of a clean sample by one network evaluation.

    Attributes:
        x_0: (B, ...) estimate of x_0, clipped where the process clips.
        raw_variance: (B, ...) second half of the network's output; None if the variance is not learned.
        unclipped: (B, ...) the estimate before the clip.
    """

    x_0: Tensor
    raw_variance: Tensor | None
    unclipped: Tensor


class Denoiser:
    """Maps (x_t (B, ...), t) to an estimate of x_0 (B, ...), and knows the variance of the model.

    A sampler also accepts a plain function of x_t and t, see `of`.
    """

    def __init__(self, estimate: Callable[[Tensor, int], Estimate], variance: VarianceConfig):
        self.estimate = estimate
        self.variance = variance

    @classmethod
    def of(cls, denoise: Denoise) -> Denoiser:
        """Wrap a plain function; the variance is that of the posterior."""
        if isinstance(denoise, Denoiser):
            return denoise

        def estimate(x_t: Tensor, t: int) -> Estimate:
            x_0 = denoise(x_t, t)
            return Estimate(x_0, None, x_0)

        return cls(estimate, FixedSmall())

    def __call__(self, x_t: Tensor, t: int) -> Tensor:
        return self.estimate(x_t, t).x_0


class SelfCondition:
    """Feeds the last estimate of x_0 back as additional input channels, zeros before the first."""

    def __init__(self) -> None:
        self.estimate: Tensor | None = None

    def store(self, x_0: Tensor) -> Tensor:
        """Remember an estimate."""
        self.estimate = x_0
        return x_0

    def widen(self, network: Network) -> Network:
        """A network of x_t alone, to which the estimate is appended."""

        def call(x_t: Tensor, t: Tensor) -> Tensor:
            estimate = torch.zeros_like(x_t) if self.estimate is None else self.estimate
            return network(torch.cat([x_t, estimate], -1), t)

        return call


def seeing(network: Network, values: Tensor, is_known: Tensor) -> Network:
    """A network that sees known elements without noise, whatever x_t holds there.

    Args:
        values: (B, *x_shape) normalised, read where known.
        is_known: bool, broadcasts against `values`.
    """
    return lambda x_t, t: network(torch.where(is_known, values, x_t), t)
