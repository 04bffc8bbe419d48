"""One-dimensional convolutions of sequences (B, H, C) that choose how to compute: as products, or by the library.

A layer computes what its torch counterpart computes, and shows its parameters in the counterpart's form in the state
dict. Timings named here: one or two cores of an AMD Zen 5, torch 2.13.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dp_prior.networks.layers import Linear, as_image, as_sequence, compute_dtype, product, uses_onednn


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
    if uses_onednn(grad):
        grad = grad.contiguous()  # else oneDNN would transpose it for every tap
    n, batch = x.shape[1:3]
    for tap, into in zip(convolution.taps, grad_weight.permute(convolution.tap_first), strict=True):
        targets, sources = _overlap(n, tap.offset)
        a = grad[tap.target, :, targets.start * batch : targets.stop * batch]
        b = _rows(x[tap.source, sources])
        if len(b) == 0:
            into.zero_()
        elif uses_onednn(a):
            into.copy_(product(a, b.t()))
        else:
            torch.mm(a, b, out=into)
    return grad_weight


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b^T; see `product`."""
    if len(a) == 0:
        return  # a tap that reaches past the whole sequence
    if uses_onednn(a):
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
        return as_sequence(F.conv2d(as_image(x), kernel, bias, padding=(0, self.reach)))


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
        return as_sequence(F.conv2d(as_image(x), kernel, bias, stride=(1, 2), padding=(0, 1)))


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
        return as_sequence(F.conv_transpose2d(as_image(x), kernel, bias, stride=(1, 2), padding=(0, 1)))


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
