"""Layers of the backbones: step embedding, one-dimensional convolutions, group norm.

Sequences are (B, H, C) here, channels last, from the chunk (B, H, A) that comes in to the one that goes out. Over the 4
to 16 positions of an action chunk a convolution is a handful of small matrix products, and most of its time in a
convolution library goes into padding and poor shapes; so on a CPU it is computed as those products, see `TapProducts`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which a layer with this weight computes: autocast's where that is on, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def goes_to_onednn(x: Tensor) -> bool:
    """Whether `matrix_product` computes with oneDNN rather than by torch's own choice."""
    return x.dtype is torch.float32 and x.device.type == "cpu" and torch.backends.mkldnn.is_available()


def matrix_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, K) @ (K, N) + (N,) by the faster library; b is contiguous or transposed.

    Single precision on a CPU goes to oneDNN, as bfloat16 does in torch itself: it reaches 440 to 480 GFLOP/s on two
    cores of an AMD Zen 5 where torch's own choice, MKL, reaches 215. If b were a slice of a wider matrix, oneDNN would
    be slower a thousand times.
    """
    if goes_to_onednn(a):
        return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return a @ b if bias is None else torch.addmm(bias, a, b)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; see `matrix_product`."""
    if len(a) == 0:
        return  # a tap that reaches past the whole sequence
    if goes_to_onednn(a):
        total += matrix_product(a, b)
    else:
        total.addmm_(a, b)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matrix_product(x, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (
            matrix_product(grad, weight) if ctx.needs_input_grad[0] else None,
            matrix_product(grad.t(), x) if ctx.needs_input_grad[1] else None,
            grad.sum(0) if ctx.needs_input_grad[2] else None,
        )


class Linear(nn.Linear):
    """`nn.Linear`, its products by `matrix_product`."""

    def forward(self, x: Tensor) -> Tensor:
        if compute_dtype(self.weight) is torch.float32 and goes_to_onednn(x):
            rows = x.reshape(-1, self.in_features)
            return _Linear.apply(rows, self.weight, self.bias).view(*x.shape[:-1], self.out_features)
        return super().forward(x)


class _Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        s = torch.sigmoid(wide)
        v = 1 - s
        d = torch.addcmul(s.new_ones(()), v, v)
        return torch.addcmul(s, s, v).mul_(wide).div_(d).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        s = torch.sigmoid(wide)
        v = 1 - s
        r = torch.addcmul(s.new_ones(()), v, v).reciprocal_()
        ratio = torch.addcmul(s, s, v).mul_(r)
        slope = v.mul_(r).square_().mul_(s).mul_(wide)
        return ratio.add_(slope, alpha=4).mul_(grad).to(x.dtype)


def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)), the non-linearity of Chi et al. 2023.

    With s = sigmoid(x) and v = 1 - s it is x s (1 + v) / (1 + v^2), which takes the processor's fast sigmoid and four
    cheap passes instead of three transcendental functions: 4 times faster forward and 2.5 backward than torch's own on
    a CPU, and no less exact.
    """
    return _Mish.apply(x) if x.device.type == "cpu" else F.mish(x)


class Mish(nn.Module):
    """See `mish`."""

    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines of the timestep at geometric frequencies (Vaswani et al. 2017)."""

    def __init__(self, *, dim: int):
        super().__init__()
        half = dim // 2
        frequencies = torch.exp(torch.arange(half) * (-math.log(10_000.0) / (half - 1)))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, dim), sines first."""
        angles = t[:, None].to(torch.float32) * self.frequencies.to(torch.float32)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class StepEmbedding(nn.Sequential):
    """The timestep as features: sinusoidal embedding, then a two-layer MLP four times as wide."""

    def __init__(self, *, dim: int):
        super().__init__(SinusoidalEmbedding(dim=dim), Linear(dim, 4 * dim), Mish(), Linear(4 * dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, dim) in the dtype of the weights."""
        return self[3](self[2](self[1](self[0](t).to(self[1].weight.dtype))))


class FiLM(nn.Module):
    """Feature-wise modulation by the condition: a scale and bias per channel, or a bias alone (Perez et al. 2018)."""

    def __init__(self, *, cond_dim: int, channels: int, has_scale: bool):
        super().__init__()
        self.has_scale = has_scale
        self.linear = Linear(cond_dim, channels * (2 if has_scale else 1))

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, H, C) features and (B, cond_dim), already through the non-linearity -> (B, H, C)."""
        modulation = self.linear(cond)[:, None]
        if not self.has_scale:
            return x + modulation
        scale, bias = modulation.chunk(2, dim=-1)
        return torch.addcmul(bias, scale, x)


class GroupNorm(nn.GroupNorm):
    """Group norm of (B, H, C): statistics over the positions and the channels of a group."""

    def forward(self, x: Tensor) -> Tensor:
        # As an image of height 1 and width H this is torch's channels-last memory format, which has its own kernel.
        image = x.unsqueeze(1).permute(0, 3, 1, 2)
        return F.group_norm(image, self.num_groups, self.weight, self.bias, self.eps).permute(0, 2, 3, 1).squeeze(1)


class Tap(NamedTuple):
    """One matrix of a convolution: position n of phase `target` takes position n + `offset` of phase `source`.

    Positions are dealt out to phases in turn, like cards: a convolution of stride 2 reads from two phases, a transposed
    one writes to two, and within a phase every tap is a plain shift.
    """

    source: int
    target: int
    offset: int


class TapProducts(torch.autograd.Function):
    """A one-dimensional convolution as one matrix product per tap, over just the positions where the tap meets input.

    Positions lead in memory meanwhile, so that a run of them is a matrix without a copy. Unfolding the input instead
    copies it once per tap and multiplies the padding too, which is 30 % of a kernel of 5 over 4 positions.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, taps: tuple[Tap, ...], sources: int, targets: int
    ) -> Tensor:
        """(B, sources * n, C), (len(taps), O, C), (O,) -> (B, targets * n, O)."""
        x = deal(x, sources)
        ctx.save_for_backward(x, weight)
        ctx.taps, ctx.targets = taps, targets
        y: list[Tensor | None] = [None] * targets
        for tap, matrix in _centre_first(taps, weight):
            if y[tap.target] is None:
                y[tap.target] = matrix_product(_rows(x[tap.source]), matrix.t(), bias).view(*x.shape[1:3], -1)
            else:
                into, out_of = _overlap(x.shape[1], tap.offset)
                add_product(_rows(y[tap.target][into]), _rows(x[tap.source, out_of]), matrix.t())
        return gather(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_bias = grad.sum((0, 1)) if ctx.needs_input_grad[2] else None
        grad = deal(grad, ctx.targets)
        grad_x = _input_gradient(grad, x, weight, ctx.taps) if ctx.needs_input_grad[0] else None
        grad_weight = _weight_gradient(grad, x, weight, ctx.taps) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias, None, None, None


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, taps: tuple[Tap, ...]) -> Tensor:
    grad_x: list[Tensor | None] = [None] * len(x)
    for tap, matrix in _centre_first(taps, weight):
        if grad_x[tap.source] is None:
            grad_x[tap.source] = matrix_product(_rows(grad[tap.target]), matrix).view(x.shape[1:])
        else:
            out_of, into = _overlap(x.shape[1], tap.offset)
            add_product(_rows(grad_x[tap.source][into]), _rows(grad[tap.target, out_of]), matrix)
    return gather(grad_x)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, taps: tuple[Tap, ...]) -> Tensor:
    grad_weight = torch.empty_like(weight)
    is_copied = goes_to_onednn(grad)
    grad = grad.flatten(1, 2).transpose(1, 2)  # (targets, O, n * B)
    if is_copied:
        grad = grad.contiguous()  # oneDNN would transpose it for every tap
    batch = x.shape[2]
    for tap, into in zip(taps, grad_weight, strict=True):
        targets, sources = _overlap(x.shape[1], tap.offset)
        a = grad[tap.target, :, targets.start * batch : targets.stop * batch]
        b = _rows(x[tap.source, sources])
        if len(b) == 0:
            into.zero_()
        elif is_copied:
            into.copy_(matrix_product(a, b))
        else:
            torch.mm(a, b, out=into)
    return grad_weight


def _centre_first(taps: tuple[Tap, ...], weight: Tensor) -> list[tuple[Tap, Tensor]]:
    """Taps with their matrices, those first that meet every position, so that their product can start the sum."""
    return sorted(zip(taps, weight, strict=True), key=lambda pair: abs(pair[0].offset))


def _overlap(n: int, offset: int) -> tuple[slice, slice]:
    """Of n positions, those whose neighbour `offset` further on exists, and these neighbours."""
    reach = min(abs(offset), n)
    kept, shifted = slice(0, n - reach), slice(reach, n)
    return (kept, shifted) if offset >= 0 else (shifted, kept)


def _rows(x: Tensor) -> Tensor:
    """(n, B, C) -> (n * B, C), a view."""
    return x.view(-1, x.shape[-1])


def deal(x: Tensor, phases: int) -> Tensor:
    """(B, n * phases, C) -> (phases, n, B, C), contiguous; position p goes to phase p % phases."""
    batch, length, channels = x.shape
    return x.reshape(batch, length // phases, phases, channels).permute(2, 1, 0, 3).contiguous()


def gather(parts: list[Tensor]) -> Tensor:
    """The inverse of `deal`: phases of (n, B, C) -> (B, n * phases, C), contiguous."""
    n, batch, channels = parts[0].shape
    x = parts[0].new_empty(batch, n, len(parts), channels)
    for phase, part in enumerate(parts):
        x[:, :, phase] = part.transpose(0, 1)
    return x.view(batch, n * len(parts), channels)


# Above this length a single-precision convolution is left to the library: padding is then too small a part of the work
# to save. Measured over the widths of the paper on two Zen 5 cores: 4 positions 2.2 times faster as products, 8
# positions 1.2 times, 16 positions equal; bfloat16 is faster as products at every length tried.
LONGEST_FOR_PRODUCTS = 8


class Convolution(nn.Module):
    """A one-dimensional convolution of (B, H, C) with the parameters of its torch counterpart.

    The weight is kept as one (O, C) matrix per tap, ready to be multiplied. The state dict shows it in the layout of
    `nn.Conv1d` or `nn.ConvTranspose1d`, as a view of the same memory, and takes it back in that layout.
    """

    taps: tuple[Tap, ...]
    sources = 1
    targets = 1
    to_torch = (1, 2, 0)
    """Permutation of (taps, O, C) to torch's (O, C, taps)."""

    def __init__(self, counterpart: nn.Conv1d | nn.ConvTranspose1d):
        super().__init__()
        self.weight = nn.Parameter(self._to_matrices(counterpart.weight.detach()))
        self.bias = nn.Parameter(counterpart.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, H * targets / sources, O)."""
        dtype = compute_dtype(self.weight)
        x, weight, bias = x.to(dtype), self.weight.to(dtype), self.bias.to(dtype)
        is_short = dtype is not torch.float32 or x.shape[1] // self.sources <= LONGEST_FOR_PRODUCTS
        if x.device.type == "cpu" and is_short:
            return TapProducts.apply(x, weight, bias, self.taps, self.sources, self.targets)
        image = x.unsqueeze(1).permute(0, 3, 1, 2)  # (B, C, 1, H) in channels-last memory
        return self.library(image, weight.permute(self.to_torch).unsqueeze(2), bias).permute(0, 2, 3, 1).squeeze(1)

    def library(self, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The same convolution by torch: (B, C, 1, H), weight in torch's layout of two dimensions -> (B, O, 1, H')."""
        raise NotImplementedError

    def _to_matrices(self, weight: Tensor) -> Tensor:
        inverse = [self.to_torch.index(dim) for dim in range(3)]
        return weight.permute(inverse).contiguous()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].permute(self.to_torch)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dim() == 3:
            state_dict[prefix + "weight"] = self._to_matrices(weight)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Conv1d(Convolution):
    """`nn.Conv1d` of stride 1 and odd kernel with as many positions going out as coming in."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__(nn.Conv1d(in_channels, out_channels, kernel_size))
        self.taps = tuple(Tap(0, 0, tap - kernel_size // 2) for tap in range(kernel_size))

    def library(self, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(image, weight, bias, padding=(0, len(self.taps) // 2))


class Downsample1d(Convolution):
    """`nn.Conv1d` of kernel 3, stride 2, padding 1: halves an even number of positions."""

    taps = (Tap(1, 0, -1), Tap(0, 0, 0), Tap(1, 0, 0))
    sources = 2

    def __init__(self, channels: int):
        super().__init__(nn.Conv1d(channels, channels, 3))

    def library(self, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(image, weight, bias, stride=(1, 2), padding=(0, 1))


class Upsample1d(Convolution):
    """`nn.ConvTranspose1d` of kernel 4, stride 2, padding 1: doubles the positions."""

    taps = (Tap(0, 1, 1), Tap(0, 0, 0), Tap(0, 1, 0), Tap(0, 0, -1))
    targets = 2
    to_torch = (2, 1, 0)
    """Permutation of (taps, O, C) to torch's (C, O, taps)."""

    def __init__(self, channels: int):
        super().__init__(nn.ConvTranspose1d(channels, channels, 4))

    def library(self, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv_transpose2d(image, weight, bias, stride=(1, 2), padding=(0, 1))
