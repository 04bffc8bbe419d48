"""Multi-head attention over (B, T, D) by torch's fused kernels, and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_prior.networks.dropout import Dropout
from dp_prior.networks.kernels.products import linear
from dp_prior.networks.layers import KernelLinear


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, T, n_heads * d) -> (B, n_heads, T, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    dropout: Dropout,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Scaled dot-product attention with `dropout` on the attention weights.

    torch's fused kernels draw dropout from torch's generator, so with active dropout the weights are computed here.

    Args:
        queries: (B, n_heads, T, d).
        keys: (B, n_heads, S, d); values likewise.
        mask: (T, S) bool, True where a query attends to a key, or broadcastable floats added to the scores; None for
            all.
        is_causal: query i attends to the keys up to i; instead of a mask.

    Returns:
        (B, n_heads, T, d).
    """
    if not dropout.is_active:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=is_causal)
    scores = queries @ keys.transpose(-2, -1) * queries.shape[-1] ** -0.5
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)
    return dropout(scores.softmax(dim=-1)).to(values.dtype) @ values


class Attention(nn.Module):
    """`nn.MultiheadAttention`: same parameters, stacked for queries, keys and values, and the same function."""

    def __init__(self, *, dim: int, n_heads: int, dropout: float):
        super().__init__()
        self.n_heads = n_heads
        self.dropout = Dropout(dropout)
        self.in_proj = KernelLinear(dim, 3 * dim)
        self.out_proj = KernelLinear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Args:
            x: (B, T, dim) gives the queries.
            memory: (B, S, dim) gives keys and values; None uses x.
            mask: (T, S) bool, True where a query sees a key; None for no mask.

        Returns:
            (B, T, dim).
        """
        if memory is None:
            queries, keys, values = self.in_proj(x).chunk(3, dim=-1)
        else:
            dim = x.shape[-1]
            weight, bias = self.in_proj.weight, self.in_proj.bias
            queries = linear(x, weight[:dim], bias[:dim])
            keys, values = linear(memory, weight[dim:], bias[dim:]).chunk(2, dim=-1)
        queries, keys, values = (split_heads(part, self.n_heads) for part in (queries, keys, values))
        return self.out_proj(join_heads(attend(queries, keys, values, self.dropout, mask=mask)))


class RotaryPositions(nn.Module):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864): query-key products depend on the distance in time."""

    def __init__(self, *, positions: Tensor, head_dim: int):
        """Args: positions: (T,) or (T, axes) float, in control steps or patches; each axis turns an equal part."""
        super().__init__()
        positions = positions.view(len(positions), -1)
        part_dim = head_dim // positions.shape[1]
        rates = 100.0 ** (-torch.arange(0, part_dim, 2) / part_dim)  # the longest period is 600 control steps
        angles = (positions[:, :, None] * rates).flatten(1)
        self.register_buffer("cos", angles.cos(), persistent=False)  # (T, head_dim / 2)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n_heads, T, head_dim), rotated in pairs (i, i + head_dim / 2)."""
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
