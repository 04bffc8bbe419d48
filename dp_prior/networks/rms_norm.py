"""RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467), which divides features by their root mean square."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` with the weight cast to the dtype of the input; torch has no fast kernel for mixed dtypes."""

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.to(x.dtype))


def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """`F.rms_norm` over the last dimension of (..., D), times a weight (D,).

    Where a CPU computes gradients, torch composes the norm of small operators, which read and write x a dozen times.
    """
    is_composed = x.device.type == "cpu" and x.dtype is torch.float32 and x.requires_grad and torch.is_grad_enabled()
    if not is_composed:
        return F.rms_norm(x, x.shape[-1:], weight)
    normed = _RMSNormed.apply(x)
    return normed if weight is None else normed * weight


class _RMSNormed(torch.autograd.Function):
    """y = x / sqrt(mean(x^2) + eps) in two passes, its gradient (g - y * mean(g * y)) / sqrt(mean(x^2) + eps) in three.

    eps is torch's default, the resolution of float32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(torch.finfo(x.dtype).eps).rsqrt_()
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        mean = torch.linalg.vecdot(grad, y).unsqueeze(-1).div_(y.shape[-1])
        return torch.addcmul(grad, y, mean, value=-1).mul_(scale)
