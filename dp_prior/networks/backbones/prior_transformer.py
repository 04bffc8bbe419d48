"""The transformer of a diffusion prior (Ramesh et al. 2022, arXiv:2204.06125, section 2.2): decoder-only and causal.

Tokens in order: text, time, the network's own estimate (with self-conditioning), the noisy embedding, and a learned
query, whose output is the prediction. With `rotary`, `norm_in` and `normformer` false it computes what the unCLIP prior
in diffusers computes, as a test shows; docs/prior.md lists the differences from DALLE2-pytorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.attention import RotaryPositions, attend, join_heads, split_heads
from dp_prior.networks.backbones.record import BackboneRecord
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.layers import Linear, SinusoidalEmbedding, compute_dtype


class PriorTransformerConfig(BackboneRecord):
    """Causal transformer over text, time, noisy embedding and a learned query."""

    type: Literal["prior_transformer"] = "prior_transformer"

    embed_dim: int = Field(default=512, ge=4)
    """Features of a token."""

    n_layers: int = Field(default=6, ge=1)
    """Transformer layers."""

    n_heads: int = Field(default=8, ge=1)
    """Attention heads; embed_dim is a multiple of twice their number."""

    expansion: int = Field(default=4, ge=1)
    """Width of the feed-forward as a multiple of embed_dim."""

    n_time_tokens: int = Field(default=1, ge=1)
    """Tokens for the timestep."""

    n_image_tokens: int = Field(default=1, ge=1)
    """Tokens for the noisy embedding, and as many for the network's own estimate."""

    n_text_tokens: int = Field(default=1, ge=1)
    """Tokens for the text embedding."""

    rotary: bool = True
    """Rotary positions; false: a learned vector is added to each place."""

    norm_in: bool = False
    """Norm of all tokens before the first layer."""

    norm_out: bool = True
    """Norm of the query's token after the last layer."""

    final_proj: bool = True
    """A linear map from the query's token to the prediction; without it embed_dim must be that of the embeddings."""

    normformer: bool = False
    """Norms after attention and inside the feed-forward too (Shleifer et al. 2021, arXiv:2110.09456, no head scale)."""

    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping an attention weight, in training."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature inside the feed-forward, in training."""

    def faults(self) -> Iterator[str]:
        if self.embed_dim % (2 * self.n_heads):
            nearest = 2 * self.n_heads * max(1, round(self.embed_dim / (2 * self.n_heads)))
            yield (
                f"embed_dim is {self.embed_dim}, but {self.n_heads} heads need a multiple of {2 * self.n_heads}. "
                f"Take embed_dim {nearest}, or other n_heads"
            )

    def create(
        self,
        x_shape: tuple[int, ...],
        cond_shape: tuple[int, int],
        output_channels_factor: int = 1,
        input_channels_factor: int = 1,
    ) -> PriorTransformer:
        """See `BackboneRecord.create`; x_shape is (D,), cond_shape (N, embed_dim)."""
        return PriorTransformer(
            **{name: value for name, value in self.arguments().items() if name != "n_text_tokens"},
            dim=x_shape[0],
            n_cond_tokens=cond_shape[0],
            output_channels_factor=output_channels_factor,
            n_inputs=input_channels_factor,
        )


class Layer(nn.Module):
    """Causal attention, then a feed-forward; each on the normed stream and added to it."""

    def __init__(
        self, *, dim: int, n_heads: int, inner_dim: int, normformer: bool, attention_dropout: float, dropout: float
    ):
        super().__init__()
        self.n_heads = n_heads
        self.attention_dropout = Dropout(attention_dropout)
        self.norm_1 = nn.LayerNorm(dim)
        self.queries_keys_values = Linear(dim, 3 * dim)
        self.attention_out = Linear(dim, dim)
        self.norm_attended = nn.LayerNorm(dim) if normformer else nn.Identity()
        self.norm_2 = nn.LayerNorm(dim)
        self.expand = Linear(dim, inner_dim)
        self.norm_inner = nn.LayerNorm(inner_dim) if normformer else nn.Identity()
        self.dropout = Dropout(dropout)
        self.contract = Linear(inner_dim, dim)

    def forward(self, x: Tensor, positions: RotaryPositions | None) -> Tensor:
        """(B, T, dim) -> (B, T, dim)."""
        parts = self.queries_keys_values(self.norm_1(x)).chunk(3, dim=-1)
        queries, keys, values = (split_heads(part, self.n_heads) for part in parts)
        if positions is not None:
            queries, keys = positions(queries), positions(keys)
        attended = attend(queries, keys, values, self.attention_dropout, is_causal=True)
        x = x + self.norm_attended(self.attention_out(join_heads(attended)))
        return x + self.contract(self.dropout(self.norm_inner(F.gelu(self.expand(self.norm_2(x))))))


class PriorTransformer(nn.Module):
    """See `PriorTransformerConfig` for the arguments."""

    def __init__(
        self,
        *,
        embed_dim: int,
        n_layers: int,
        n_heads: int,
        expansion: int,
        n_time_tokens: int,
        n_image_tokens: int,
        rotary: bool,
        norm_in: bool,
        norm_out: bool,
        final_proj: bool,
        normformer: bool,
        attention_dropout: float,
        dropout: float,
        dim: int,
        n_cond_tokens: int,
        output_channels_factor: int,
        n_inputs: int,
    ):
        super().__init__()
        if not final_proj and embed_dim != dim * output_channels_factor:
            raise ValueError(
                f"task.backbone.final_proj is false, but embed_dim is {embed_dim} and the prediction has "
                f"{dim * output_channels_factor} numbers; set one to the other, or final_proj to true"
            )
        self.dim = dim
        self.step_embedding = SinusoidalEmbedding(dim=embed_dim)
        self.time = nn.Sequential(Linear(embed_dim, embed_dim), nn.SiLU(), Linear(embed_dim, embed_dim * n_time_tokens))
        self.inputs = nn.ModuleList(Linear(dim, embed_dim * n_image_tokens) for _ in range(n_inputs))
        self.query = nn.Parameter(0.02 * torch.randn(embed_dim))
        n_tokens = n_cond_tokens + n_time_tokens + n_inputs * n_image_tokens + 1
        self.rotary = None
        self.positions = None
        if rotary:
            places = torch.arange(n_tokens, dtype=torch.float32)
            self.rotary = RotaryPositions(positions=places, head_dim=embed_dim // n_heads)
        else:
            self.positions = nn.Parameter(0.02 * torch.randn(n_tokens, embed_dim))
        self.norm_in = nn.LayerNorm(embed_dim) if norm_in else nn.Identity()
        self.layers = nn.ModuleList(
            Layer(
                dim=embed_dim,
                n_heads=n_heads,
                inner_dim=expansion * embed_dim,
                normformer=normformer,
                attention_dropout=attention_dropout,
                dropout=dropout,
            )
            for _ in range(n_layers)
        )
        self.norm_out = nn.LayerNorm(embed_dim) if norm_out else nn.Identity()
        self.head = Linear(embed_dim, dim * output_channels_factor) if final_proj else nn.Identity()

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Args:
            x_t: (B, D) noisy embeddings, or (B, 2 D) followed by the network's own estimate.
            t: (B,) timesteps.
            cond: (B, N, embed_dim) text tokens.

        Returns:
            (B, D) prediction, times output_channels_factor.
        """
        dtype = compute_dtype(self.query)
        batch, width = len(x_t), self.query.shape[0]
        noisy, *estimate = x_t.to(dtype).split(self.dim, dim=1)
        images = [layer(part) for layer, part in zip(self.inputs, [noisy, *estimate], strict=True)]
        single = [
            self.time(self.step_embedding(t).to(dtype)),
            *reversed(images),
            self.query.to(dtype).expand(batch, -1),
        ]
        x = torch.cat([cond.to(dtype), *(tokens.view(batch, -1, width) for tokens in single)], dim=1)
        if self.positions is not None:
            x = x + self.positions.to(dtype)
        x = self.norm_in(x)
        for layer in self.layers:
            x = layer(x, self.rotary)
        return self.head(self.norm_out(x[:, -1]))
