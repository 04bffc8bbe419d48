"""The variance of a reverse step, and the terms of the variational bound (Nichol and Dhariwal 2021).

A reverse step draws x_s from a normal distribution around the posterior's mean. Its std lies between two bounds of
`NoiseTable.log_stds`: `least`, the std of the posterior given x_0, and `largest`, the std for standard normal data. A
learned variance is read from the second half of the network's output.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config

Level = float | Tensor


class _Variance(Config):
    """The std of a reverse step, as its logarithm."""

    @abstractmethod
    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        """Logarithm of the std, from those of the bounds.

        Args:
            raw: (B, ...) second half of the network's output; None if the variance is not learned.
        """

    def last_log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        """Logarithm of the std of the step to the clean sample, for likelihoods; samplers add no noise there."""
        return self.log_std(raw, least, largest)


class FixedSmall(_Variance):
    """The variance of the posterior given x_0; right where the data are a single point."""

    type: Literal["fixed_small"] = "fixed_small"

    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return least


class FixedLarge(_Variance):
    """The variance that is right where the data are standard normal; that of the forward step, beta, on schedules with
    alpha^2 + sigma^2 = 1."""

    type: Literal["fixed_large"] = "fixed_large"

    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return largest

    least_in_last_step: bool = False
    """Likelihoods take the variance of the posterior for the step to the clean sample, as in IDDPM. With an
    exact denoiser of Gaussian data that is 0.16 bits per dimension worse."""

    def last_log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return least if self.least_in_last_step else largest


class _Learned(_Variance):
    """A variance that the network predicts."""

    vlb_weight: float = Field(default=0.001, gt=0)
    """lambda in simple loss + lambda * bound, the bound summed over T timesteps, in bits per dimension; 0.001 in the
    paper, 1 / T for the unscaled form of its code. The bound does not move the mean."""


class Learned(_Learned):
    """The network's output is the log variance."""

    type: Literal["learned"] = "learned"

    def log_std(self, raw: Tensor, least: Level, largest: Level) -> Level:
        return raw / 2


class LearnedRange(_Learned):
    """The network's output, -1 to 1, interpolates the log variance between the bounds (equation 15)."""

    type: Literal["learned_range"] = "learned_range"

    def log_std(self, raw: Tensor, least: Level, largest: Level) -> Level:
        return least + (raw + 1) / 2 * (largest - least)


VarianceConfig = Annotated[FixedSmall | FixedLarge | Learned | LearnedRange, Field(discriminator="type")]


def normal_kl(difference: Tensor, log_std_1: Level, log_std_2: Level) -> Tensor:
    """KL(N(m + difference, std_1^2) || N(m, std_2^2)) in nats, element by element."""
    ratio = torch.as_tensor(log_std_1 - log_std_2)
    return (torch.exp(2 * ratio) + (difference / torch.as_tensor(log_std_2).exp()) ** 2 - 1) / 2 - ratio


class _LogNormalCdf(torch.autograd.Function):
    """`torch.special.log_ndtr` with a derivative of full precision.

    torch 2.13 takes the derivative from exp(-z^2 / 2 - log_ndtr(z)), whose exponent is a difference of large numbers:
    in float32 the derivative is up to 7 % off at z = -1,000, hundreds of times too large at -10,000, and infinite from
    -50,000 on.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.special.log_ndtr(z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return grad * math.sqrt(2 / math.pi) / torch.special.erfcx(-z / math.sqrt(2))


def decoder_nll(x_0: Tensor, mean: Tensor, log_std: Level, data_step: float | None) -> Tensor:
    """-log p(x_0) in nats under N(mean, std^2), element by element.

    Args:
        data_step: distance of neighbouring values of x_0; their bins are integrated, and those at -1 and 1 reach to
            infinity. None: x_0 is continuous and p a density, so the result may be negative.
    """
    std = torch.as_tensor(log_std).exp()
    if data_step is None:
        return ((x_0 - mean) / std) ** 2 / 2 + log_std + math.log(2 * math.pi) / 2
    above, below = (x_0 - mean + data_step / 2) / std, (x_0 - mean - data_step / 2) / std
    is_tail = below > 0  # mirrored into the lower tail, where logarithms of small probabilities keep their digits
    log_upper = _LogNormalCdf.apply(torch.where(is_tail, -below, above))
    log_lower = _LogNormalCdf.apply(torch.where(is_tail, -above, below))
    log_inside = log_upper + torch.log(-torch.expm1((log_lower - log_upper).clamp(max=-1e-6)))
    is_lowest, is_highest = x_0 < -1 + data_step / 4, x_0 > 1 - data_step / 4
    log_outside = _LogNormalCdf.apply(torch.where(is_lowest, above, -below))
    return -torch.where(is_lowest | is_highest, log_outside, log_inside)


def reverse_step_bits(
    variance: VarianceConfig,
    difference: Tensor,
    x_0: Tensor,
    t: Tensor,
    raw: Tensor | None,
    step: list[Tensor],
    data_step: float | None,
) -> Tensor:
    """Cost of the reverse step from t in bits, element by element.

    The means of posterior and model differ in x_0 alone.

    Args:
        difference: (B, ...) x_0 less its estimate.
        t: (B,) or () int64.
        raw: (B, ...) second half of the network's output; None if the variance is not learned.
        step: factor of x_0 in the posterior's mean, and the logarithms of the bounds of its std, see
            `NoiseTable.reverse_steps`.
        data_step: see `decoder_nll`.
    """
    c_0, least, largest = step
    kl = normal_kl(c_0 * difference, least, variance.log_std(raw, least, largest))
    is_last = t.view(-1, *[1] * (x_0.dim() - 1)) == 0
    last_log_std = variance.last_log_std(raw, least, largest)
    near = torch.where(is_last, difference, 0.0)  # at noisy t it may have no finite gradient, not even times zero
    nll = decoder_nll(x_0, x_0 - near, last_log_std, data_step)
    return torch.where(is_last, nll, kl) / math.log(2)
