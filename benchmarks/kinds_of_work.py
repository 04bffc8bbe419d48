"""Divides the time of some work among kinds of operators: products, layout changes, normalisation, activation, traffic.

Operators are timed one by one below autograd, so that time between them (Python, autograd) belongs to none: "dispatch"
is what remains of the whole. With Inductor or on a GPU these times would mean nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = ("products", "layout changes", "normalisation", "activation", "optimizer", "averages", "traffic", "dispatch")

_OPERATORS = {
    "products": "mm addmm addmm_ bmm baddbmm matmul linear _linear_pointwise convolution convolution_backward "
    "mkldnn_convolution mkldnn_linear scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "layout changes": "copy_ clone contiguous cat stack _to_copy constant_pad_nd index_select gather "
    "slice_backward select_backward unfold_backward _reshape_copy",
    "normalisation": "native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward "
    "_fused_rms_norm _fused_rms_norm_backward rms_norm native_batch_norm native_batch_norm_backward",
    "activation": "mish mish_backward sigmoid sigmoid_backward addcmul addcmul_ reciprocal_ square_ div_ mul_ rsub "
    "gelu gelu_backward silu silu_backward relu relu_ threshold_backward tanh exp _softmax _softmax_backward_data "
    "max_pool2d_with_indices max_pool2d_with_indices_backward",
}
"""Operators by kind; all others are traffic. `mul_`, `div_` and `addcmul` are those of `MishBySigmoid` above all."""

KIND_OF = {operator: kind for kind, operators in _OPERATORS.items() for operator in operators.split()}


class _Timed(TorchDispatchMode):
    """Sums the seconds of each kind of operator while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        begun = time.perf_counter()
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[-1]
        self.seconds[KIND_OF.get(name, "traffic")] += time.perf_counter() - begun
        return result


def shares(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The share of each kind in some work, which sum to 1.

    Args:
        parts: pieces of the work in order; a piece with the name of a kind belongs to it as a whole.
        repeats: how often the work is done, after once for nothing.
    """
    seconds: Counter[str] = Counter()
    for turn in range(repeats + 1):
        for name, piece in parts.items():
            with _Timed() as timed:
                begun = time.perf_counter()
                piece()
                whole = time.perf_counter() - begun
            if turn == 0:
                continue
            if name in KINDS:
                seconds[name] += whole
            else:
                seconds.update(timed.seconds)
                seconds["dispatch"] += whole - timed.seconds.total()
    return {kind: seconds[kind] / seconds.total() for kind in KINDS if seconds[kind]}


def traffic(n_bytes: int) -> Callable[[], None]:
    """As much reading and writing of memory, in sums of vectors that no cache holds."""
    count = max(1, min(n_bytes // 12, 2**26))
    total, added = torch.zeros(count), torch.ones(count)

    @torch.no_grad()
    def work() -> None:
        for _ in range(max(1, round(n_bytes / (12 * count)))):
            total.add_(added)

    return work
