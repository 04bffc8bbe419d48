"""Writes the layers of a network in the form that onnxruntime computes fastest on a CPU for few rows.

A convolution of a chunk is one product with the whole weight, which onnxruntime packs when it loads the graph; its own
convolutions read weights at two thirds of that speed, and take 2.4 times as long for 16 rows. Norms have the form that
onnxruntime recognises, and Mish needs one exponential in place of a logarithm and a tangent (November 2026, EPYC).
Attention and rotary positions are operators of onnxruntime, which take heads side by side and move nothing in memory.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dp_prior.networks.attention import RotaryPositions, join_heads, split_heads
from dp_prior.networks.backbones.dit import DiTLayer, modulate
from dp_prior.networks.convolution import Conv1d, Downsample1d, Upsample1d
from dp_prior.networks.layers import GroupNorm


def with_cpu_layers(network: nn.Module) -> nn.Module:
    """Copy a network with the layers of this module, which share its weights and compute the same function."""
    weights = {id(value): value for value in (*network.parameters(), *network.buffers())}
    copied = copy.deepcopy(network, weights)
    for parent in [*copied.modules()]:
        for name, child in parent.named_children():
            if type(child) in LAYERS:
                setattr(parent, name, LAYERS[type(child)](child))
    return copied


class _Windows(nn.Module):
    """`Conv1d` and `Downsample1d`."""

    def __init__(self, layer: Conv1d):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, H / stride, O): each position's window is a row."""
        layer, positions = self.layer, x.shape[1]
        farthest = min(layer.reach, positions - 1)  # a tap that is farther away meets padding alone
        taps = range(layer.reach - farthest, layer.reach + farthest + 1)
        x = F.pad(x, (0, 0, farthest, farthest))
        starts = torch.arange(0, positions, layer.stride)
        index = (starts[:, None] + torch.arange(len(taps))).flatten()
        windows = x.index_select(1, index).reshape(-1, len(starts), len(taps) * x.shape[2])
        return F.linear(windows, layer.weight[:, taps.start : taps.stop].flatten(1), layer.bias)


class _TransposedWindows(nn.Module):
    """`Upsample1d`."""

    def __init__(self, layer: Upsample1d):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C) -> (B, 2 H, O): positions 2 n and 2 n + 1 are a row, from the window of n and its neighbours."""
        weight, positions = self.layer.weight, x.shape[1]
        nothing = torch.zeros_like(weight[0])
        # Even outputs sum tap 3 of the previous position and tap 1 of the same position; odd outputs sum tap 2 of the
        # same position and tap 0 of the next.
        even = torch.cat([weight[3], weight[1], nothing], dim=1)
        odd = torch.cat([nothing, weight[2], weight[0]], dim=1)
        index = (torch.arange(positions)[:, None] + torch.arange(3)).flatten()
        windows = F.pad(x, (0, 0, 1, 1)).index_select(1, index).reshape(-1, positions, 3 * x.shape[2])
        both = F.linear(windows, torch.cat([even, odd]), self.layer.bias.repeat(2))
        return both.reshape(-1, 2 * positions, len(self.layer.bias))


class _GroupNorm(nn.Module):
    """`GroupNorm` as a layer norm of rows that are a group of channels at all positions."""

    def __init__(self, layer: GroupNorm):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, C), the same."""
        layer, (positions, channels) = self.layer, x.shape[1:]
        size = channels // layer.num_groups
        groups = x.reshape(-1, positions, layer.num_groups, size).transpose(1, 2)  # (B, groups, H, size)
        normed = F.layer_norm(groups, (positions, size), eps=layer.eps)
        return normed.transpose(1, 2).reshape(-1, positions, channels) * layer.weight + layer.bias


class _Rotary(nn.Module):
    """`RotaryPositions`, with a second form for heads that lie side by side in one axis."""

    def __init__(self, layer: RotaryPositions):
        super().__init__()
        self.register_buffer("cos", layer.cos)
        self.register_buffer("sin", layer.sin)
        self.register_buffer("first", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """(B, n_heads, T, head_dim), rotated in pairs (i, i + head_dim / 2)."""
        a, b = x.chunk(2, dim=-1)
        return x * torch.cat([self.cos, self.cos], dim=-1) + torch.cat([b, a], dim=-1) * torch.cat(
            [-self.sin, self.sin], dim=-1
        )

    def side_by_side(self, x: Tensor, n_heads: int) -> Tensor:
        """(B, T, n_heads * head_dim), the same."""
        if not _has_operators():
            return join_heads(self(split_heads(x, n_heads)))
        return _operator("RotaryEmbedding", (x, self.first, self.cos, self.sin), {}, x)


class _DiTLayer(nn.Module):
    """`DiTLayer` with heads side by side."""

    def __init__(self, layer: DiTLayer):
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Tensor, tokens: Tensor, features: Tensor, query_positions: _Rotary, key_positions: _Rotary
    ) -> Tensor:
        """See `DiTLayer.forward`."""
        layer, n_heads = self.layer, self.layer.n_heads
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = layer.modulation(features)[:, None].chunk(6, dim=-1)
        queries, keys, values = layer.queries_keys_values(modulate(x, shift_1, scale_1)).chunk(3, dim=-1)
        cond_keys, cond_values = layer.cond_keys_values(tokens).chunk(2, dim=-1)
        keys, values = torch.cat([cond_keys, keys], dim=1), torch.cat([cond_values, values], dim=1)
        queries = layer.norm_queries(queries.unflatten(-1, (n_heads, -1))).flatten(2)
        keys = layer.norm_keys(keys.unflatten(-1, (n_heads, -1))).flatten(2)
        queries = query_positions.side_by_side(queries, n_heads)
        keys = key_positions.side_by_side(keys, n_heads)
        x = torch.addcmul(x, gate_1, layer.attention_out(_attention(queries, keys, values, n_heads)))
        gate, value = layer.expand(modulate(x, shift_2, scale_2)).chunk(2, dim=-1)
        return torch.addcmul(x, gate_2, layer.contract(F.silu(gate) * value))


def _attention(queries: Tensor, keys: Tensor, values: Tensor, n_heads: int) -> Tensor:
    """Attention of (B, T, n_heads * d) to (B, S, n_heads * d)."""
    if not _has_operators():
        heads = (split_heads(part, n_heads) for part in (queries, keys, values))
        return join_heads(F.scaled_dot_product_attention(*heads))
    return _operator("MultiHeadAttention", (queries, keys, values), {"num_heads": n_heads}, queries)


def _has_operators() -> bool:
    """Whether a graph is written, by a torch that can write operators of onnxruntime (from 2.8 on)."""
    return torch.compiler.is_exporting() and hasattr(torch.onnx, "ops")


def _operator(name: str, inputs: tuple[Tensor, ...], attributes: dict[str, Any], like: Tensor) -> Tensor:
    """The output of an operator of onnxruntime, of the shape of a tensor, in the graph that is written."""
    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, attributes, dtype=like.dtype, shape=like.shape, version=1
    )


def _mish(x: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(log(1 + e^x)) = x n / (n + 2), where n = e^x (e^x + 2); beyond 20 the fraction is 1."""
    exp = x.clamp(max=20.0).exp()
    n = exp * (exp + 2)
    return x * (n / (n + 2))


def _rms_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """`F.rms_norm` as onnxruntime recognises it, with a weight."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    normed = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return normed * (torch.ones(shape) if weight is None else weight)


LAYERS = {
    Conv1d: _Windows,
    Downsample1d: _Windows,
    Upsample1d: _TransposedWindows,
    GroupNorm: _GroupNorm,
    DiTLayer: _DiTLayer,
    RotaryPositions: _Rotary,
}
FUNCTIONS = {F.mish: _mish, F.rms_norm: _rms_norm}


class CpuFunctions(TorchFunctionMode):
    """Computes the functions of `FUNCTIONS` in the form of this module while it is entered."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FUNCTIONS.get(function, function)(*args, **(kwargs or {}))
