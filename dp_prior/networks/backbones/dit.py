"""Diffusion transformer over the actions of a chunk.

Timestep and observations modulate every layer, whose gates start at zero (adaLN-zero, Peebles and Xie 2023,
arXiv:2212.09748). Action tokens attend to themselves and to the observation tokens in one attention. Positions are
rotary, on the time axis that actions and observations share. Queries and keys are normed, which keeps bfloat16 stable.
The feed-forward is gated (Shazeer 2020, arXiv:2002.05202).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.attention import RotaryPositions, attend, join_heads, split_heads
from dp_prior.networks.backbones.backbone_record import BackboneRecord, NamedAxes, Sizes, heads_faults
from dp_prior.networks.dropout import Dropout, recomputed
from dp_prior.networks.layers import KernelLinear, StepEmbedding, compute_dtype
from dp_prior.networks.rms_norm import RMSNorm, rms_norm


class DiTConfig(BackboneRecord):
    """Diffusion transformer with adaLN-zero, rotary positions and normed queries and keys."""

    type: Literal["dit"] = "dit"

    embed_dim: int = Field(default=256, ge=4)
    """Features of a token."""

    n_layers: int = Field(default=6, ge=1)
    """Transformer layers."""

    n_heads: int = Field(default=4, ge=1)
    """Attention heads; embed_dim is a multiple of twice their number."""

    expansion: int = Field(default=2, ge=1)
    """Width of the gated feed-forward as a multiple of embed_dim."""

    step_embed_dim: int = Field(default=128, ge=4, multiple_of=2)
    """Features of the embedded timestep."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping an attention weight, or a feature inside the feed-forward, in training."""

    def faults(self) -> Iterator[str]:
        return heads_faults(self.embed_dim, self.n_heads, features=2)  # a rotary position turns pairs of them

    def network(self, sizes: Sizes) -> DiT:
        """See `BackboneRecord`; x_shape is (H, A)."""
        return DiT(self, sizes)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """RMS norm of (B, T, D), then a scale around 1 and a shift, both (B, 1, D)."""
    return torch.addcmul(shift, rms_norm(x), 1 + scale)


class DiTLayer(nn.Module):
    """Attention of actions to actions and observations, then a gated feed-forward; both modulated and gated."""

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.n_heads = config.n_heads
        dim, inner_dim = config.embed_dim, config.expansion * config.embed_dim
        self.modulation = KernelLinear(dim, 6 * dim)
        self.queries_keys_values = KernelLinear(dim, 3 * dim)
        self.cond_keys_values = KernelLinear(dim, 2 * dim)
        self.norm_queries = RMSNorm(dim // config.n_heads)
        self.norm_keys = RMSNorm(dim // config.n_heads)
        self.attention_out = KernelLinear(dim, dim)
        self.expand = KernelLinear(dim, 2 * inner_dim)
        self.attention_dropout = Dropout(config.dropout)
        self.dropout = Dropout(config.dropout)
        self.contract = KernelLinear(inner_dim, dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        x: Tensor,
        tokens: Tensor,
        features: Tensor,
        query_positions: RotaryPositions,
        key_positions: RotaryPositions,
    ) -> Tensor:
        """Args:
        x: (B, H, dim) action tokens.
        tokens: (B, N, dim) observation tokens.
        features: (B, dim) timestep and observations, through the non-linearity.
        query_positions: of the H actions.
        key_positions: of the N observations, then of the H actions.
        """
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(features)[:, None].chunk(6, dim=-1)
        queries, keys, values = self.queries_keys_values(modulate(x, shift_1, scale_1)).chunk(3, dim=-1)
        cond_keys, cond_values = self.cond_keys_values(tokens).chunk(2, dim=-1)
        queries = split_heads(queries, self.n_heads)
        keys = split_heads(torch.cat([cond_keys, keys], dim=1), self.n_heads)
        values = split_heads(torch.cat([cond_values, values], dim=1), self.n_heads)
        queries = query_positions(self.norm_queries(queries))
        keys = key_positions(self.norm_keys(keys))
        attended = attend(queries, keys, values, self.attention_dropout)
        x = torch.addcmul(x, gate_1, self.attention_out(join_heads(attended)))
        gate, value = self.expand(modulate(x, shift_2, scale_2)).chunk(2, dim=-1)
        return torch.addcmul(x, gate_2, self.contract(self.dropout(F.silu(gate) * value)))


class DiT(nn.Module):
    """See `DiTConfig`."""

    shard_units = (DiTLayer,)
    named_axes: ClassVar[NamedAxes] = {
        "token_in.weight": (1, "x"),
        "cond_in.weight": (1, "token"),
        "features.weight": (1, "cond"),
        "head.*": (0, "x"),
    }

    def __init__(
        self, config: DiTConfig, sizes: Sizes, positions: Tensor | None = None, *, checkpointing: bool = False
    ):
        """Args:
        positions: (H, axes) of the tokens; None for 0, 1, ... on one axis. Condition token i is at i on every axis.
        checkpointing: see `recomputed`.
        """
        super().__init__()
        self.checkpointing = checkpointing
        embed_dim, step_embed_dim = config.embed_dim, config.step_embed_dim
        (horizon, _), (n_tokens, cond_dim) = sizes.x_shape, sizes.cond_shape
        self.token_in = KernelLinear(sizes.in_channels, embed_dim)
        self.cond_in = KernelLinear(cond_dim, embed_dim)
        self.cond_positions = nn.Embedding(n_tokens, embed_dim)
        self.step_embedding = StepEmbedding(dim=step_embed_dim)
        self.features = KernelLinear(step_embed_dim + n_tokens * cond_dim, embed_dim)
        actions = torch.arange(horizon, dtype=torch.float32)[:, None] if positions is None else positions
        # Observation step i and action i are at the same time: the chunk begins with the first observation.
        observations = torch.arange(n_tokens, dtype=torch.float32)[:, None].expand(-1, actions.shape[1])
        head_dim = embed_dim // config.n_heads
        self.query_positions = RotaryPositions(positions=actions, head_dim=head_dim)
        self.key_positions = RotaryPositions(positions=torch.cat([observations, actions]), head_dim=head_dim)
        self.layers = nn.ModuleList(DiTLayer(config) for _ in range(config.n_layers))
        self.modulation = KernelLinear(embed_dim, 2 * embed_dim)
        self.head = KernelLinear(embed_dim, sizes.out_channels)
        for module in (self.modulation, self.head):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        nn.init.normal_(self.cond_positions.weight, std=0.02)

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, in_channels), (B,), (B, N, D) -> (B, H, out_channels)."""
        dtype = compute_dtype(self.head.weight)
        cond = cond.to(dtype)
        features = torch.cat([self.step_embedding(t).to(dtype), cond.flatten(1)], dim=1)
        features = F.silu(self.features(features))
        tokens = self.cond_in(cond) + self.cond_positions.weight.to(dtype)
        x = self.token_in(x_t.to(dtype))
        for layer in self.layers:
            inputs = x, tokens, features, self.query_positions, self.key_positions
            x = recomputed(layer, *inputs) if self.checkpointing and torch.is_grad_enabled() else layer(*inputs)
        shift, scale = self.modulation(features)[:, None].chunk(2, dim=-1)
        return self.head(modulate(x, shift, scale))
