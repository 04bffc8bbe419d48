"""The transformer of Diffusion Policy (Chi et al. 2023, section III): one token per action, attending to observations.

An encoder reads the timestep and the observation tokens; a decoder turns the noisy actions into the output, attending
to the encoder's tokens. Function and parameters equal the published network's; see `rename_published`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.attention import Attention
from dp_prior.networks.backbones.backbone_record import BackboneRecord, NamedAxes, Sizes, heads_faults
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.encoders.published_weights import rename
from dp_prior.networks.layers import KernelLinear, Mish, SinusoidalEmbedding, compute_dtype


class TransformerConfig(BackboneRecord):
    """Encoder-decoder transformer (Chi et al. 2023); the defaults are the paper's for low-dimensional Push-T."""

    type: Literal["transformer"] = "transformer"

    embed_dim: int = Field(default=256, ge=4, multiple_of=2)
    """Features of a token."""

    n_layers: int = Field(default=8, ge=1)
    """Layers of the decoder."""

    n_heads: int = Field(default=4, ge=1)
    """Attention heads; divides embed_dim."""

    n_cond_layers: int = Field(default=0, ge=0)
    """Layers of the encoder of timestep and observations; 0 for a two-layer MLP on each token."""

    is_causal: bool = True
    """Whether an action sees only earlier actions, and observations up to the action's step."""

    embed_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature of an input token, in training."""

    dropout: float = Field(default=0.01, ge=0.0, lt=1.0)
    """Probability of dropping an attention weight or a feature inside a layer, in training."""

    def faults(self) -> Iterator[str]:
        return heads_faults(self.embed_dim, self.n_heads, features=1)

    def network(self, sizes: Sizes) -> Transformer:
        """See `BackboneRecord`; x_shape is (H, A)."""
        return Transformer(self, sizes)


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between."""

    def __init__(self, *, dim: int, dropout: float):
        super().__init__()
        self.expand = KernelLinear(dim, 4 * dim)
        self.dropout = Dropout(dropout)
        self.contract = KernelLinear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) -> (..., dim)."""
        return self.contract(self.dropout(F.gelu(self.expand(x))))


class EncoderLayer(nn.Module):
    """Attention, then feed-forward; each reads the normed stream and is added to the stream."""

    def __init__(self, *, dim: int, n_heads: int, dropout: float):
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim)
        self.self_attention = Attention(dim=dim, n_heads=n_heads, dropout=dropout)
        self.norm_2 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim=dim, dropout=dropout)
        self.dropout_1 = Dropout(dropout)
        self.dropout_2 = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, dim) -> (B, S, dim)."""
        x = x + self.dropout_1(self.self_attention(self.norm_1(x)))
        return x + self.dropout_2(self.feed_forward(self.norm_2(x)))


class DecoderLayer(nn.Module):
    """Attention among actions, attention to the encoder's tokens, feed-forward."""

    def __init__(self, *, dim: int, n_heads: int, dropout: float):
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim)
        self.self_attention = Attention(dim=dim, n_heads=n_heads, dropout=dropout)
        self.norm_2 = nn.LayerNorm(dim)
        self.cross_attention = Attention(dim=dim, n_heads=n_heads, dropout=dropout)
        self.norm_3 = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim=dim, dropout=dropout)
        self.dropout_1 = Dropout(dropout)
        self.dropout_2 = Dropout(dropout)
        self.dropout_3 = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        """(B, T, dim), (B, S, dim), masks (T, T) and (T, S), True where seen -> (B, T, dim)."""
        x = x + self.dropout_1(self.self_attention(self.norm_1(x), mask=mask))
        x = x + self.dropout_2(self.cross_attention(self.norm_2(x), memory, mask=memory_mask))
        return x + self.dropout_3(self.feed_forward(self.norm_3(x)))


class Transformer(nn.Module):
    """See `TransformerConfig`."""

    shard_units = (EncoderLayer, DecoderLayer)
    named_axes: ClassVar[NamedAxes] = {
        "token_in.weight": (1, "x"),
        "cond_in.weight": (1, "token"),
        "head.*": (0, "x"),
    }

    def __init__(self, config: TransformerConfig, sizes: Sizes):
        super().__init__()
        embed_dim, (horizon, _), (n_tokens, cond_dim) = config.embed_dim, sizes.x_shape, sizes.cond_shape
        layer = {"dim": embed_dim, "n_heads": config.n_heads, "dropout": config.dropout}
        self.token_in = KernelLinear(sizes.in_channels, embed_dim)
        self.positions = nn.Embedding(horizon, embed_dim)
        self.step_embedding = SinusoidalEmbedding(dim=embed_dim)
        self.cond_in = KernelLinear(cond_dim, embed_dim)
        self.cond_positions = nn.Embedding(1 + n_tokens, embed_dim)
        self.cond_dropout = Dropout(config.embed_dropout)
        self.token_dropout = Dropout(config.embed_dropout)
        self.encoder = nn.Sequential(
            *(EncoderLayer(**layer) for _ in range(config.n_cond_layers))
            if config.n_cond_layers
            else (KernelLinear(embed_dim, 4 * embed_dim), Mish(), KernelLinear(4 * embed_dim, embed_dim))
        )
        self.decoder = nn.ModuleList(DecoderLayer(**layer) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = KernelLinear(embed_dim, sizes.out_channels)
        action = torch.arange(horizon)[:, None]
        # Token 0 is the timestep, which every action sees; token 1 + i is observation step i.
        mask = action >= torch.arange(horizon) if config.is_causal else None
        memory_mask = action >= torch.arange(1 + n_tokens) - 1 if config.is_causal else None
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("memory_mask", memory_mask, persistent=False)
        self.apply(_initialise)

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, in_channels), (B,), (B, N, D) -> (B, H, out_channels)."""
        dtype = compute_dtype(self.head.weight)
        step = self.step_embedding(t).to(dtype)[:, None]
        memory = torch.cat([step, self.cond_in(cond.to(dtype))], dim=1) + self.cond_positions.weight.to(dtype)
        memory = self.encoder(self.cond_dropout(memory))
        x = self.token_in(x_t.to(dtype)) + self.positions.weight.to(dtype)
        x = self.token_dropout(x)
        for layer in self.decoder:
            x = layer(x, memory, self.mask, self.memory_mask)
        return self.head(self.norm(x))


def _initialise(module: nn.Module) -> None:
    """Small normal weights and zero biases, as in the published network."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


_TRANSFORMER_NAMES = (
    (r"^input_emb\.", "token_in."),
    (r"^pos_emb$", "positions.weight"),
    (r"^cond_obs_emb\.", "cond_in."),
    (r"^cond_pos_emb$", "cond_positions.weight"),
    (r"^(encoder|decoder)\.layers\.", r"\1."),
    (r"\.self_attn\.", ".self_attention."),
    (r"\.multihead_attn\.", ".cross_attention."),
    (r"\.in_proj_(weight|bias)$", r".in_proj.\1"),
    (r"\.linear1\.", ".feed_forward.expand."),
    (r"\.linear2\.", ".feed_forward.contract."),
    (r"\.norm([123])\.", r".norm_\1."),
    (r"^ln_f\.", "norm."),
    (r"^(mask|memory_mask|_dummy_variable)$", None),  # no parameters
)


def rename_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of Diffusion Policy's `TransformerForDiffusion` under our names.

    Args:
        weights: the state dict; in published checkpoints the tensors under `model.`, without this prefix.
    """
    renamed = rename(weights, _TRANSFORMER_NAMES)
    for name in {"positions.weight", "cond_positions.weight"} & renamed.keys():
        renamed[name] = renamed[name].squeeze(0)
    return renamed
