"""The denoiser: a network as samplers see it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dp_prior.diffusion.variance import FixedSmall, VarianceConfig

Network = Callable[[Tensor, Tensor], Tensor]
Denoise = Callable[[Tensor, int], Tensor]


class Denoiser:
    """Maps (x_t (B, ...), t) to an estimate of x_0 (B, ...), with what the network says of the variance at hand.

    Any function of x_t and t is a denoiser to a sampler; this one also knows about variances.
    """

    def __init__(self, estimate: Callable[[Tensor, int], tuple[Tensor, Tensor | None]], variance: VarianceConfig):
        """Args: estimate: (x_t, t) -> estimate of x_0 and the raw variance, None if it is not learned."""
        self.estimate = estimate
        self.variance = variance

    @classmethod
    def of(cls, denoise: Denoise) -> Denoiser:
        """A denoiser from a plain function, with the variance of the posterior."""
        return denoise if isinstance(denoise, Denoiser) else cls(lambda x_t, t: (denoise(x_t, t), None), FixedSmall())

    def __call__(self, x_t: Tensor, t: int) -> Tensor:
        return self.estimate(x_t, t)[0]


class SelfCondition:
    """The last estimate of x_0, as further channels of the network's input."""

    def __init__(self, estimate: Tensor, channel_dim: int):
        """Args: estimate: (B, *x_shape) the first; zeros say that there is none."""
        self.estimate = estimate
        self.channel_dim = channel_dim

    def store(self, x_0: Tensor) -> Tensor:
        """Remember an estimate."""
        self.estimate = x_0
        return x_0

    def widen(self, network: Network) -> Network:
        """The network that takes x_t alone."""
        return lambda x_t, t: network(torch.cat([x_t, self.estimate], self.channel_dim), t)


def seeing(network: Network, values: Tensor, is_known: Tensor) -> Network:
    """The network that is given known elements without noise, whatever x_t holds there.

    Args:
        values: (B, *x_shape) normalised, read where known.
        is_known: bool, broadcasts against `values`.
    """
    return lambda x_t, t: network(torch.where(is_known, values, x_t), t)
