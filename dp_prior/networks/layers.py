"""Layers of the backbones: products, non-linearity, step embedding, modulation, one-dimensional convolutions, norm.

Sequences are (B, H, C) here, channels last, from the chunk (B, H, A) that comes in to the one that goes out. A layer
computes what its torch counterpart computes, and shows its parameters in the counterpart's form in the state dict.
Timings named here: one or two cores of an AMD Zen 5, torch 2.13.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

# Below this many multiplications the dispatch of oneDNN's operator (10 microseconds) costs more than it saves.
_LEAST_FOR_ONEDNN = 2**20


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which a layer with this weight computes: autocast's where that is on, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, K) @ (N, K)^T + (N,), by the faster library; b is contiguous or the transpose of a contiguous matrix.

    Single precision on a CPU goes to oneDNN, as bfloat16 does in torch itself: it reaches 440 to 480 GFLOP/s on two
    cores where torch's choice, MKL, reaches 215. If b were a slice of a wider matrix, oneDNN would be slower a thousand
    times.
    """
    is_plain = b.is_contiguous() or b.t().is_contiguous()
    if _uses_onednn(a) and is_plain and a.shape[0] * b.numel() >= _LEAST_FOR_ONEDNN:
        return _ONEDNN_LINEAR(a, b, bias, "none", [], "")
    return F.linear(a, b, bias)


def _uses_onednn(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.device.type == "cpu" and _ONEDNN_LINEAR is not None


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
    """`F.linear`, its products by `product` where that pays."""
    is_small = x.numel() * weight.shape[0] < _LEAST_FOR_ONEDNN
    if is_small or not _uses_onednn(x) or compute_dtype(weight) is not torch.float32:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    return _LinearProduct.apply(rows, weight, bias).view(*x.shape[:-1], weight.shape[0])


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _MishBySigmoid(torch.autograd.Function):
    """With s = sigmoid(x) and v = 1 - s, mish(x) = x s (1 + v) / (1 + v^2): no overflow and no cancellation."""

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
    """x tanh(log(1 + e^x)), the non-linearity of Chi et al. 2023.

    On a CPU torch's own takes three transcendental functions; through one sigmoid it is 4 times faster forward, 2.5
    times backward, and as exact.
    """
    return _MishBySigmoid.apply(x) if x.device.type == "cpu" and x.numel() >= 2048 else F.mish(x)


class Mish(nn.Module):
    """See `mish`."""

    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines of the timestep at geometric frequencies (Vaswani et al. 2017).

    Computed in float32 whatever the network's dtype: no buffer that a cast of the network would round, since an angle
    reaches hundreds and the error would too.
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
    """The timestep as features: sinusoidal embedding, then a two-layer MLP four times as wide."""

    def __init__(self, *, dim: int):
        super().__init__(SinusoidalEmbedding(dim=dim), Linear(dim, 4 * dim), Mish(), Linear(4 * dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, dim) in the dtype of the weights."""
        sinusoidal, expand, mish, contract = self
        return contract(mish(expand(sinusoidal(t).to(expand.weight.dtype))))


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
        image = _as_image(x)
        return _as_sequence(torch.group_norm(image, self.num_groups, self.weight, self.bias, self.eps))


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` in the dtype of its input; torch has no fast kernel where the weight's differs."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def _as_image(x: Tensor) -> Tensor:
    """(B, H, C) -> (B, C, 1, H), a view: torch's channels-last memory format, for which it has its own kernels."""
    return x.unsqueeze(1).permute(0, 3, 1, 2)


def _as_sequence(image: Tensor) -> Tensor:
    """The inverse of `_as_image`."""
    return image.permute(0, 2, 3, 1).squeeze(1)


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
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, convolution: Convolution) -> Tensor:
        """(B, sources * n, C) -> (B, targets * n, O), both in the dtype to compute in.

        Weight and bias come as the convolution has them and are cast here, the weight put in order too.
        """
        matrices = weight.permute(convolution.tap_first).to(x.dtype).contiguous()
        bias = bias.to(x.dtype)
        x = _deal(x, convolution.sources)
        ctx.save_for_backward(x, matrices)
        ctx.convolution, ctx.dtype = convolution, weight.dtype
        y: list[Tensor | None] = [None] * convolution.targets
        for tap, matrix in _centre_first(convolution.taps, matrices):
            if y[tap.target] is None:
                y[tap.target] = product(_rows(x[tap.source]), matrix, bias).view(*x.shape[1:3], -1)
            else:
                into, out_of = _overlap(x.shape[1], tap.offset)
                _add_product(_rows(y[tap.target][into]), _rows(x[tap.source, out_of]), matrix)
        return _gather(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, matrices = ctx.saved_tensors
        grad_bias = grad.sum((0, 1)).to(ctx.dtype) if ctx.needs_input_grad[2] else None
        grad = _deal(grad, ctx.convolution.targets)
        grad_x = _input_gradient(grad, x, matrices, ctx.convolution) if ctx.needs_input_grad[0] else None
        grad_weight = _weight_gradient(grad, x, ctx.convolution).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_bias, None


def _input_gradient(grad: Tensor, x: Tensor, matrices: Tensor, convolution: Convolution) -> Tensor:
    grad_x: list[Tensor | None] = [None] * len(x)
    for tap, matrix in _centre_first(convolution.taps, matrices):
        if grad_x[tap.source] is None:
            grad_x[tap.source] = product(_rows(grad[tap.target]), matrix.t()).view(x.shape[1:])
        else:
            out_of, into = _overlap(x.shape[1], tap.offset)
            _add_product(_rows(grad_x[tap.source][into]), _rows(grad[tap.target, out_of]), matrix.t())
    return _gather(grad_x)


def _weight_gradient(grad: Tensor, x: Tensor, convolution: Convolution) -> Tensor:
    """The gradient of the weight, in the weight's own order of dimensions."""
    grad_weight = x.new_empty(convolution.weight.shape)
    grad = grad.flatten(1, 2).transpose(1, 2)  # (targets, O, n * B)
    if _uses_onednn(grad):
        grad = grad.contiguous()  # else oneDNN would transpose it for every tap
    n, batch = x.shape[1:3]
    for tap, into in zip(convolution.taps, grad_weight.permute(convolution.tap_first), strict=True):
        targets, sources = _overlap(n, tap.offset)
        a = grad[tap.target, :, targets.start * batch : targets.stop * batch]
        b = _rows(x[tap.source, sources])
        if len(b) == 0:
            into.zero_()
        elif _uses_onednn(a):
            into.copy_(product(a, b.t()))
        else:
            torch.mm(a, b, out=into)
    return grad_weight


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b^T; see `product`."""
    if len(a) == 0:
        return  # a tap that reaches past the whole sequence
    if _uses_onednn(a):
        total += product(a, b)
    else:
        total.addmm_(a, b.t())


def _centre_first(taps: tuple[Tap, ...], matrices: Tensor) -> list[tuple[Tap, Tensor]]:
    """Taps with their matrices, those first that meet every position, so that their product can start the sum."""
    return sorted(zip(taps, matrices, strict=True), key=lambda pair: abs(pair[0].offset))


def _overlap(n: int, offset: int) -> tuple[slice, slice]:
    """Of n positions, those whose neighbour `offset` further on exists, and these neighbours."""
    reach = min(abs(offset), n)
    kept, shifted = slice(0, n - reach), slice(reach, n)
    return (kept, shifted) if offset >= 0 else (shifted, kept)


def _rows(x: Tensor) -> Tensor:
    """(n, B, C) -> (n * B, C), a view."""
    return x.view(-1, x.shape[-1])


def _deal(x: Tensor, phases: int) -> Tensor:
    """(B, n * phases, C) -> (phases, n, B, C), contiguous; position p goes to phase p % phases."""
    batch, length, channels = x.shape
    return x.reshape(batch, length // phases, phases, channels).permute(2, 1, 0, 3).contiguous()


def _gather(parts: list[Tensor]) -> Tensor:
    """The inverse of `_deal`: phases of (n, B, C) -> (B, n * phases, C), contiguous."""
    n, batch, channels = parts[0].shape
    x = parts[0].new_empty(batch, n, len(parts), channels)
    for phase, part in enumerate(parts):
        x[:, :, phase] = part.transpose(0, 1)
    return x.view(batch, n * len(parts), channels)


class Convolution(nn.Module):
    """A one-dimensional convolution of (B, H, C) that chooses how to compute.

    The weight is kept in the order its products want. The state dict shows it in the layout of `nn.Conv1d` or
    `nn.ConvTranspose1d`, as a view of the same memory, and takes it back in that layout.
    """

    taps: tuple[Tap, ...]
    sources = 1
    targets = 1
    tap_first: tuple[int, int, int]
    """Permutation of the weight's dimensions to (taps, O, C)."""
    torch_form: tuple[int, int, int]
    """Permutation of the weight's dimensions to the counterpart's."""

    def __init__(self, shape: tuple[int, int, int]):
        """Args: shape: of the counterpart's weight; parameters begin as its do, uniform in +-1 / sqrt(fan in)."""
        super().__init__()
        bound = 1 / math.sqrt(shape[1] * shape[2])
        inverse = [self.torch_form.index(dim) for dim in range(3)]
        self.weight = nn.Parameter(torch.empty([shape[dim] for dim in inverse]).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(shape[0]).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, H * targets / sources, O)."""
        x = x.to(compute_dtype(self.weight))
        way = self.way(x)
        if way == "products":
            return TapProducts.apply(x, self.weight, self.bias, self)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return self.fused(x, weight, bias) if way == "fused" else self.library(x, weight, bias)

    def way(self, x: Tensor) -> Literal["products", "fused", "library"]:
        """The fastest way for this input, by measurement; all three give the same result up to rounding.

        On the CPU, with the widths of the paper and of laptops: a few rows are one product, so that large weights are
        read once and nothing is rearranged; wide layers are products tap by tap over at most 4 positions (twice as
        fast as the library), in bfloat16 over any number (up to 5 times: the library's weight gradient is slow); the
        rest goes to the library.
        """
        positions = x.shape[1] // self.sources
        if x.device.type != "cpu":
            return "library"
        if not torch.is_grad_enabled() and x.shape[0] * positions <= 128:
            return "fused"
        is_wide = x.shape[2] * self.bias.shape[0] >= 128 * 128
        return "products" if is_wide and (positions <= 4 or x.dtype is torch.bfloat16) else "library"

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """One product for all taps. For inference: it makes no arrangements for its backward pass."""
        raise NotImplementedError

    def library(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The convolution by torch, channels last."""
        raise NotImplementedError

    def _from_torch_form(self, weight: Tensor) -> Tensor:
        inverse = [self.torch_form.index(dim) for dim in range(3)]
        return weight.permute(inverse).contiguous()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].permute(self.torch_form)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dim() == 3:
            state_dict[prefix + "weight"] = self._from_torch_form(weight)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Conv1d(Convolution):
    """`nn.Conv1d` of stride 1 and odd kernel with as many positions going out as coming in; weight (O, taps, C)."""

    tap_first = (1, 0, 2)
    torch_form = (0, 2, 1)

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__((out_channels, in_channels, kernel_size))
        self.reach = kernel_size // 2
        self.taps = tuple(Tap(0, 0, offset) for offset in range(-self.reach, self.reach + 1))

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _unfolded_product(x, weight, bias, before=self.reach, after=self.reach, stride=1)

    def library(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = weight.transpose(1, 2).unsqueeze(2)
        return _as_sequence(F.conv2d(_as_image(x), kernel, bias, padding=(0, self.reach)))


class Downsample1d(Convolution):
    """`nn.Conv1d` of kernel 3, stride 2, padding 1: halves an even number of positions; weight (O, taps, C)."""

    taps = (Tap(1, 0, -1), Tap(0, 0, 0), Tap(1, 0, 0))
    sources = 2
    tap_first = (1, 0, 2)
    torch_form = (0, 2, 1)

    def __init__(self, channels: int):
        super().__init__((channels, channels, 3))

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _unfolded_product(x, weight, bias, before=1, after=0, stride=2)

    def library(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = weight.transpose(1, 2).unsqueeze(2)
        return _as_sequence(F.conv2d(_as_image(x), kernel, bias, stride=(1, 2), padding=(0, 1)))


class Upsample1d(Convolution):
    """`nn.ConvTranspose1d` of kernel 4, stride 2, padding 1: doubles the positions; weight (taps, O, C)."""

    taps = (Tap(0, 1, 1), Tap(0, 0, 0), Tap(0, 1, 0), Tap(0, 0, -1))
    targets = 2
    tap_first = (0, 1, 2)
    torch_form = (2, 1, 0)

    def __init__(self, channels: int):
        super().__init__((channels, channels, 4))

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, n, channels = x.shape
        parts = product(x.reshape(batch * n, channels), weight.flatten(0, 1)).view(batch, n, 4 * channels)
        parts = F.pad(parts, (0, 0, 1, 1)).view(batch, n + 2, 4, channels)
        # The phase of even positions sums tap 3 of the position before and tap 1 of the same, that of odd ones tap 2 of
        # the same and tap 0 of the next: in memory, both times, 2 taps on and one position.
        terms = parts.as_strided(
            (batch, n, 2, 2, channels),
            ((n + 2) * 4 * channels, 4 * channels, 3 * channels, 2 * channels, 1),
            parts.storage_offset() + 3 * channels,
        )
        return (terms.sum(3) + bias).view(batch, 2 * n, channels)

    def library(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = weight.permute(2, 1, 0).unsqueeze(2)
        return _as_sequence(F.conv_transpose2d(_as_image(x), kernel, bias, stride=(1, 2), padding=(0, 1)))


def _unfolded_product(x: Tensor, weight: Tensor, bias: Tensor, *, before: int, after: int, stride: int) -> Tensor:
    """Windows of the padded input, each a row, times the whole weight (O, taps, C)."""
    x = F.pad(x, (0, 0, before, after)) if before or after else x.contiguous()
    batch, length, channels = x.shape
    n = (length - weight.shape[1]) // stride + 1
    size = weight.shape[1] * channels
    windows = x.as_strided((batch, n, size), (length * channels, stride * channels, 1))
    return product(windows.reshape(batch * n, size), weight.flatten(1), bias).view(batch, n, -1)


class PointwiseConv1d(Linear):
    """`nn.Conv1d` of kernel 1."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].unsqueeze(2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dim() == 3:
            state_dict[prefix + "weight"] = weight.squeeze(2)
        super()._load_from_state_dict(state_dict, prefix, *args)
