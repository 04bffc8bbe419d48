"""The transformer of a diffusion prior (Ramesh et al. 2022, arXiv:2204.06125, section 2.2): decoder-only and causal.

Tokens in order: text, time, the network's own estimate (with self-conditioning), the noisy embedding, and a learned
query, whose output is the prediction. With `rotary`, `norm_in` and `normformer` false the network equals diffusers'
unCLIP prior, as a test shows; docs/prior.md lists the differences from DALLE2-pytorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.attention import RotaryPositions, attend, join_heads, split_heads
from dp_prior.networks.backbones.backbone_record import PriorBackboneRecord, Sizes, heads_faults
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.encoders.text import TextTokens
from dp_prior.networks.layers import KernelLinear, SinusoidalEmbedding, compute_dtype


class PriorTransformerConfig(PriorBackboneRecord):
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
    """Whether a linear map follows from the query's token to the prediction; if false, embed_dim must be the
    embeddings' size."""

    normformer: bool = False
    """Norms after attention and inside the feed-forward too (Shleifer et al. 2021, arXiv:2110.09456, no head scale)."""

    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping an attention weight, in training."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature inside the feed-forward, in training."""

    def faults(self) -> Iterator[str]:
        return heads_faults(self.embed_dim, self.n_heads, features=2)

    def encoder(self, cond_shapes: Mapping[str, tuple[int, ...]], dim: int) -> TextTokens:
        """See `PriorBackboneRecord`; embeddings and encodings of any size become tokens of `embed_dim`."""
        return TextTokens(cond_shapes, dim=self.embed_dim, n_text_tokens=self.n_text_tokens)

    def network(self, sizes: Sizes) -> PriorTransformer:
        """See `BackboneRecord`; x_shape is (D,), cond_shape (N, embed_dim)."""
        return PriorTransformer(self, sizes)


class PriorLayer(nn.Module):
    """Causal attention, then a feed-forward; each reads the normed stream and is added to the stream."""

    def __init__(self, config: PriorTransformerConfig):
        super().__init__()
        self.n_heads = config.n_heads
        dim, inner_dim = config.embed_dim, config.expansion * config.embed_dim
        self.attention_dropout = Dropout(config.attention_dropout)
        self.norm_1 = nn.LayerNorm(dim)
        self.queries_keys_values = KernelLinear(dim, 3 * dim)
        self.attention_out = KernelLinear(dim, dim)
        self.norm_attended = nn.LayerNorm(dim) if config.normformer else nn.Identity()
        self.norm_2 = nn.LayerNorm(dim)
        self.expand = KernelLinear(dim, inner_dim)
        self.norm_inner = nn.LayerNorm(inner_dim) if config.normformer else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.contract = KernelLinear(inner_dim, dim)

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
    """See `PriorTransformerConfig`."""

    shard_units = (PriorLayer,)

    def __init__(self, config: PriorTransformerConfig, sizes: Sizes):
        super().__init__()
        embed_dim, n_time_tokens, n_image_tokens = config.embed_dim, config.n_time_tokens, config.n_image_tokens
        if not config.final_proj and embed_dim != sizes.out_channels:
            raise ValueError(
                f"task.backbone.final_proj is false, but embed_dim is {embed_dim} and the prediction has "
                f"{sizes.out_channels} numbers; set one to the other, or final_proj to true"
            )
        self.dim = sizes.x_shape[0]
        self.step_embedding = SinusoidalEmbedding(dim=embed_dim)
        self.time = nn.Sequential(
            KernelLinear(embed_dim, embed_dim), nn.SiLU(), KernelLinear(embed_dim, embed_dim * n_time_tokens)
        )
        self.inputs = nn.ModuleList(
            KernelLinear(self.dim, embed_dim * n_image_tokens) for _ in range(sizes.input_factor)
        )
        self.query = nn.Parameter(0.02 * torch.randn(embed_dim))
        n_tokens = sizes.cond_shape[0] + n_time_tokens + sizes.input_factor * n_image_tokens + 1
        places, head_dim = torch.arange(n_tokens, dtype=torch.float32), embed_dim // config.n_heads
        self.rotary = RotaryPositions(positions=places, head_dim=head_dim) if config.rotary else None
        self.positions = None if config.rotary else nn.Parameter(0.02 * torch.randn(n_tokens, embed_dim))
        self.norm_in = nn.LayerNorm(embed_dim) if config.norm_in else nn.Identity()
        self.layers = nn.ModuleList(PriorLayer(config) for _ in range(config.n_layers))
        self.norm_out = nn.LayerNorm(embed_dim) if config.norm_out else nn.Identity()
        self.head = KernelLinear(embed_dim, sizes.out_channels) if config.final_proj else nn.Identity()

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
