"""Guidance of samples toward given values while sampling, on any trained model: the guidance by a pseudoinverse of Song
et al. 2023 (ΠGDM), with the weights and the clip of real-time chunking (Black et al. 2025, arXiv:2506.07339).

In the currency of x_0, with J the Jacobian of the estimate x_0 by x_t, Y the values and W their weights:

    x_0' = x_0 + sigma min(max_weight, (alpha^2 + sigma^2) / (alpha sigma)) J^T W (Y - x_0)

Divided by alpha + sigma, every noise table is a flow table, on which this is equation 2 of the paper. Unclipped, with
W = 1 and standard normal data, x_0' is Y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MOST_STEEP = 2.0**12
"""Of sigma / alpha: a gradient scaled down further would vanish in half precision, where the clean sample is predicted.
"""


class Target(NamedTuple):
    """Values that samples are guided toward."""

    values: Tensor
    """(B, *x_shape) normalised; read where the weight is above 0."""

    weights: Tensor
    """Broadcasts against `values`: 1 is held, 0 is free."""

    max_weight: float
    """Largest weight of the guidance in the velocity of a flow, beta in the paper."""

    def strength(self, alpha: float, sigma: float) -> float:
        """The factor of J^T W (Y - x_0) at a noise level."""
        exact = (alpha**2 + sigma**2) / (alpha * sigma) if alpha else self.max_weight
        return sigma * min(self.max_weight, exact)

    def guided(
        self, estimate: Callable[[Tensor], tuple[Tensor, Tensor | None]], x_t: Tensor, level: tuple[float, float]
    ) -> tuple[Tensor, Tensor | None]:
        """The guided estimate of x_0 at a noise level (alpha, sigma); costs a backward pass of the network.

        Args:
            estimate: x_t (B, *x_shape) -> estimate of x_0 (B, *x_shape), and the raw variance or None.
        """
        with torch.enable_grad():
            x_t = x_t.detach().requires_grad_()
            x_0, raw = estimate(x_t)
            clean = x_0.detach()
            error = torch.where(self.weights > 0, self.weights * (self.values - clean), 0.0)
            scale = _near_one(error, *level)
            (gradient,) = torch.autograd.grad(x_0, x_t, error * scale)
        guided = clean.add(gradient / scale, alpha=self.strength(*level))
        return guided, None if raw is None else raw.detach()


def _near_one(error: Tensor, alpha: float, sigma: float) -> Tensor:
    """(B, 1, ...) powers of two that bring the gradient inside the network near 1. The gradient grows with the error,
    and with sigma / alpha where noise is predicted; half precision ends at 65,504."""
    steepness = min(sigma / alpha, MOST_STEEP) if alpha else MOST_STEEP
    largest = error.abs().flatten(1).amax(1).clamp(min=1e-30).log2().ceil() + math.ceil(max(0.0, math.log2(steepness)))
    return torch.exp2(-largest).view(-1, *[1] * (error.dim() - 1))
