"""Matrix products on a CPU by oneDNN, which torch itself uses for bfloat16 only."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

MKL_IS_FASTER = torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether torch's own choice, MKL, multiplies faster than oneDNN. With AVX2 MKL reaches 85 to 91 GFLOP/s on one core of
an EPYC, oneDNN 65 to 82; with AVX-512 on two cores MKL 215, oneDNN 440 to 480."""

# With fewer multiplications the dispatch of oneDNN's operator (10 microseconds) costs more than the product saves.
_LEAST_FOR_ONEDNN = 2**20


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, K) @ (N, K)^T + (N,), by the faster library; b is contiguous or the transpose of a contiguous matrix.

    Single precision on a CPU goes to oneDNN unless `MKL_IS_FASTER`, as bfloat16 does in torch itself. oneDNN is about
    1000x slower when b is a strided slice, hence the contiguity check.
    """
    is_plain = b.is_contiguous() or b.t().is_contiguous()
    if uses_onednn(a) and is_plain and a.shape[0] * b.numel() >= _LEAST_FOR_ONEDNN:
        return _ONEDNN_LINEAR(a, b, bias, "none", [], "")
    return F.linear(a, b, bias)


def uses_onednn(x: Tensor) -> bool:
    """Whether `product` may go to oneDNN for this input; torch.compile accepts the operator with constants only."""
    is_eager = not torch.compiler.is_compiling()
    is_single = x.dtype is torch.float32 and x.device.type == "cpu"
    return is_single and not MKL_IS_FASTER and _ONEDNN_LINEAR is not None and is_eager


class _LinearProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (
            product(grad, weight.t()) if ctx.needs_input_grad[0] else None,
            product(grad.t(), x.t()) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, through `product` where faster: enough work, float32, no autocast, on a CPU."""
    is_cast = torch.is_autocast_enabled(x.device.type)
    if not uses_onednn(x) or is_cast or weight.dtype is not torch.float32:
        return F.linear(x, weight, bias)
    if x.numel() * weight.shape[0] < _LEAST_FOR_ONEDNN:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    return _LinearProduct.apply(rows, weight, bias).view(*x.shape[:-1], weight.shape[0])
