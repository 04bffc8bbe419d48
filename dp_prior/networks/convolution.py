"""One-dimensional convolutions of sequences (B, H, C), each with the state dict of its torch counterpart."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_prior.networks.kernels import products
from dp_prior.networks.kernels.taps import Tap, TapProducts, Taps, transposed_product, windows_product
from dp_prior.networks.layers import KernelLinear, as_image, as_sequence, compute_dtype, is_channels_first

Way = Literal["products", "one product", "library"]


class Convolution(nn.Module):
    """Base class of the convolutions: parameters, and the choice of the fastest kernel.

    The weight has the memory layout of the kernels, on a device of `CHANNELS_FIRST` that of the counterpart. The state
    dict saves and loads the weight in the layout of `nn.Conv1d` or `nn.ConvTranspose1d`, as a view of the same memory.
    """

    taps: Taps
    torch_form: tuple[int, int, int]
    """Permutation of the weight's dimensions to the counterpart's; exchanges two dimensions, so also the inverse."""

    def __init__(self, shape: tuple[int, int, int]):
        """Args: shape: of the counterpart's weight; initialised likewise, uniform in +-1 / sqrt(fan in)."""
        super().__init__()
        bound = 1 / math.sqrt(shape[1] * shape[2])
        self.weight = nn.Parameter(torch.empty([shape[dim] for dim in self.torch_form]).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(shape[0]).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, H * targets / sources, O)."""
        x = x.to(compute_dtype(self.weight))
        way = self.way(x)
        if way == "products":
            return TapProducts.apply(x, self.weight, self.bias, self.taps)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return self.one_product(x, weight, bias) if way == "one product" else self.convolve(x, weight, bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The convolution by torch."""
        raise NotImplementedError

    def one_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute the convolution as one matrix product."""
        raise NotImplementedError

    def way(self, x: Tensor) -> Way:
        """The fastest of three algorithms for an input, as measured; the results agree up to rounding.

        On a CPU: one product for up to 128 rows without gradient, which reads the weights once; one product per tap for
        wide layers, with MKL always (1.3x to 4x faster than torch's convolution), with oneDNN with at most 4 positions
        (2x faster) or in bfloat16 (up to 5x, since torch's weight gradient is slow). Otherwise torch's convolution.
        """
        positions = x.shape[1] // self.taps.sources
        is_for_cpu = x.device.type == "cpu" and not is_channels_first(x)
        if not is_for_cpu or torch.compiler.is_exporting():  # an exported graph is for every batch size
            return "library"
        if not torch.is_grad_enabled() and x.shape[0] * positions <= 128:
            return "one product"
        is_wide = x.shape[2] * self.bias.shape[0] >= (64 * 128 if products.MKL_IS_FASTER else 128 * 128)
        is_faster = products.MKL_IS_FASTER or positions <= 4 or x.dtype is torch.bfloat16
        return "products" if is_wide and is_faster else "library"

    def _apply(self, *args: Any, **options: Any) -> Convolution:
        """Move or cast the parameters, and give the weight the memory layout of the device's kernels."""
        super()._apply(*args, **options)
        weight = self.weight.data
        if is_channels_first(weight):
            self.weight.data = weight.permute(self.torch_form).contiguous().permute(self.torch_form)
        else:
            self.weight.data = weight.contiguous()
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].permute(self.torch_form)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dim() == 3:
            state_dict[prefix + "weight"] = weight.permute(self.torch_form).contiguous()
        super()._load_from_state_dict(state_dict, prefix, *args)


class Conv1d(Convolution):
    """`nn.Conv1d` of stride 1 and odd kernel, padded to keep the number of positions; weight (O, taps, C)."""

    torch_form = (0, 2, 1)
    stride = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__((out_channels, in_channels, kernel_size))
        self.reach = kernel_size // 2
        offsets = range(-self.reach, self.reach + 1)
        self.taps = Taps(tuple(Tap(0, 0, offset) for offset in offsets), sources=1, targets=1, tap_first=(1, 0, 2))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = weight.transpose(1, 2).unsqueeze(2)
        return as_sequence(F.conv2d(as_image(x), kernel, bias, stride=(1, self.stride), padding=(0, self.reach)))

    def one_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return windows_product(x, weight, bias, padding=self.reach, stride=self.stride)


class Downsample1d(Conv1d):
    """`nn.Conv1d` of kernel 3, stride 2, padding 1: halves an even number of positions."""

    stride = 2

    def __init__(self, channels: int):
        super().__init__(channels, channels, kernel_size=3)
        self.taps = Taps((Tap(1, 0, -1), Tap(0, 0, 0), Tap(1, 0, 0)), sources=2, targets=1, tap_first=(1, 0, 2))


class Upsample1d(Convolution):
    """`nn.ConvTranspose1d` of kernel 4, stride 2, padding 1: doubles the positions; weight (taps, O, C)."""

    taps = Taps((Tap(0, 1, 1), Tap(0, 0, 0), Tap(0, 1, 0), Tap(0, 0, -1)), sources=1, targets=2, tap_first=(0, 1, 2))
    torch_form = (2, 1, 0)

    def __init__(self, channels: int):
        super().__init__((channels, channels, 4))

    def way(self, x: Tensor) -> Way:
        """See `Convolution.way`. One product in code compiled for a GPU: torch 2.11 stops at the gradient of a
        transposed convolution in bfloat16, whose memory layout it predicts wrongly. Code exported for a GPU has one
        product as well, since until torch 2.12 `is_exporting` is true of all compiled code."""
        if x.device.type != "cpu" and torch.compiler.is_compiling():
            return "one product"
        return super().way(x)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel = weight.permute(2, 1, 0).unsqueeze(2)
        return as_sequence(F.conv_transpose2d(as_image(x), kernel, bias, stride=(1, 2), padding=(0, 1)))

    def one_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return transposed_product(x, weight, bias)


class PointwiseConv1d(KernelLinear):
    """`nn.Conv1d` of kernel 1."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, H, O)."""
        if not is_channels_first(x) or torch.compiler.is_compiling():  # compiled code chooses its own layouts
            return super().forward(x)
        return as_sequence(F.conv2d(as_image(x), self.weight[:, :, None, None], self.bias))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].unsqueeze(2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dim() == 3:
            state_dict[prefix + "weight"] = weight.squeeze(2)
        super()._load_from_state_dict(state_dict, prefix, *args)
