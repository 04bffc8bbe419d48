"""Layers of the backbones: linear, Mish, step embedding, modulation, norm.

Sequences are (B, H, C) from the noisy chunk (B, H, A) to the output. Their memory is in the same order, but for
convolutions on the devices of `CHANNELS_FIRST`. A layer computes the same function as its torch counterpart, on a CPU
with a faster kernel from `kernels/` where available.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dp_prior.networks.kernels.products import linear

CHANNELS_FIRST = {"cuda"}
"""Devices where a sequence of convolutions and group norms has the memory order (B, C, H): their group norm has no
kernel for channels last, so it copies its input and returns channels first, and the next convolution copies back."""


def is_channels_first(x: Tensor) -> bool:
    """Whether the kernels of the tensor's device want the channels before the positions in memory."""
    return x.device.type in CHANNELS_FIRST


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The compute dtype of a layer with this weight: autocast's if enabled, else the weight's."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


class KernelLinear(nn.Linear):
    """`nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class MishBySigmoid(torch.autograd.Function):
    """Mish on a CPU: with s = sigmoid(x) and v = 1 - s, mish(x) = x s (1 + v) / (1 + v^2), without overflow and
    cancellation.

    torch's operator uses three transcendental functions. This version is 4 times faster forward, 2.5 times backward,
    and as exact.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        s = torch.sigmoid(wide)
        v = 1 - s
        denominator = torch.addcmul(s.new_ones(()), v, v)
        return torch.addcmul(s, s, v).mul_(wide).div_(denominator).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        s = torch.sigmoid(wide)
        v = 1 - s
        r = torch.addcmul(s.new_ones(()), v, v).reciprocal_()
        ratio = torch.addcmul(s, s, v).mul_(r)
        slope = v.mul_(r).square_().mul_(s).mul_(wide)  # a quarter of x times the derivative of the ratio
        return ratio.add_(slope, alpha=4).mul_(grad).to(x.dtype)


def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)), the non-linearity of Chi et al. 2023."""
    if torch.compiler.is_exporting() or x.device.type != "cpu" or x.numel() < 2048:
        return F.mish(x)
    return MishBySigmoid.apply(x)


class Mish(nn.Module):
    """See `mish`."""

    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines of the timestep at geometric frequencies (Vaswani et al. 2017).

    Always computed in float32. The frequencies are no buffer, since casting the network would round them; the resulting
    error grows with the angle, which reaches hundreds.
    """

    def __init__(self, *, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, dim) float32, sines first."""
        half = self.dim // 2
        index = torch.arange(half, device=t.device, dtype=torch.float32)
        angles = t[:, None].to(torch.float32) * torch.exp(index * (-math.log(10_000.0) / (half - 1)))
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class StepEmbedding(nn.Sequential):
    """Embeds the timestep: sinusoidal embedding, then a two-layer MLP four times as wide."""

    def __init__(self, *, dim: int):
        super().__init__(SinusoidalEmbedding(dim=dim), KernelLinear(dim, 4 * dim), Mish(), KernelLinear(4 * dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, dim) in the dtype of the weights."""
        sinusoidal, expand, mish, contract = self
        return contract(mish(expand(sinusoidal(t).to(expand.weight.dtype))))


class FiLM(nn.Module):
    """Feature-wise modulation by the condition: a scale and bias per channel, or only a bias (Perez et al. 2018)."""

    def __init__(self, *, cond_dim: int, channels: int, has_scale: bool):
        super().__init__()
        self.has_scale = has_scale
        self.linear = KernelLinear(cond_dim, channels * (2 if has_scale else 1))

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, H, C) features and (B, cond_dim) condition, after its non-linearity -> (B, H, C)."""
        modulation = self.linear(cond)[:, None]
        if not self.has_scale:
            return x + modulation
        scale, bias = modulation.chunk(2, dim=-1)
        return torch.addcmul(bias, scale, x)


class GroupNorm(nn.GroupNorm):
    """Group norm of (B, H, C): statistics over the positions and the channels of a group."""

    def forward(self, x: Tensor) -> Tensor:
        image = as_image(x)
        return as_sequence(torch.group_norm(image, self.num_groups, self.weight, self.bias, self.eps))


def arranged(x: Tensor) -> Tensor:
    """(B, H, C), the same in the memory order of the device's convolutions."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if is_channels_first(x) else x


def joined_channels(*parts: Tensor) -> Tensor:
    """Concatenate the channels of (B, H, C_i), in the memory order of the device's convolutions."""
    if not is_channels_first(parts[0]):
        return torch.cat(parts, dim=-1)
    return torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)


def as_image(x: Tensor) -> Tensor:
    """(B, H, C) -> (B, C, 1, H), a view: torch's channels-last memory format, for which torch has special kernels on a
    CPU; the contiguous format for a sequence that is `arranged` for a device of `CHANNELS_FIRST`."""
    return x.unsqueeze(1).permute(0, 3, 1, 2)


def as_sequence(image: Tensor) -> Tensor:
    """The inverse of `as_image`."""
    return image.permute(0, 2, 3, 1).squeeze(1)
