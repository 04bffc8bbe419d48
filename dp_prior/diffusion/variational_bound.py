"""The terms of the variational bound on the likelihood (Nichol and Dhariwal 2021)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dp_prior.diffusion.variance import Level, VarianceConfig


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
