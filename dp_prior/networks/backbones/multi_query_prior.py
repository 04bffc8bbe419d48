"""The transformer of DALLE2-pytorch's priors: heads that share keys and values, and a learned key that stands for
nothing.

Tokens in order: the encodings of the text, the text embedding, the timestep, the noisy embedding, the network's own
estimate (with self-conditioning), and a learned query, whose output is the prediction. Embeddings enter as they are, so
tokens have their size. With the same weights the network computes what `DiffusionPriorNetwork` computes, in versions
0.25 to 1.1 (`cosine` false) and 1.15; docs/prior.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.attention import attend, join_heads, split_heads
from dp_prior.networks.backbones.backbone_record import PriorBackboneRecord, Sizes
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.encoders.text import EMBEDDING, ENCODINGS
from dp_prior.networks.layers import KernelLinear, SinusoidalEmbedding, compute_dtype

COSINE_FACTOR = 16.0
"""Of the cosines of queries and keys before the softmax."""

ROTARY_FEATURES = 32
"""Features of a head that rotary positions turn, at most."""

IMAGE = "image"
"""Key of the token that replaces the noisy embedding on the unconditional side of guidance."""

DISTANCE_BUCKETS, FARTHEST_DISTANCE = 32, 128
"""Distances told apart by the position bias, and the distance from which on all are one."""


class MultiQueryPriorConfig(PriorBackboneRecord):
    """Causal transformer whose heads share keys and values; the network of DALLE2-pytorch."""

    type: Literal["multi_query_prior"] = "multi_query_prior"

    n_layers: int = Field(default=6, ge=1)
    """Transformer layers."""

    n_heads: int = Field(default=8, ge=1)
    """Attention heads, each with queries of its own."""

    head_dim: int = Field(default=64, ge=2, multiple_of=2)
    """Features of a head."""

    expansion: float = Field(default=4.0, gt=0)
    """Width of the feed-forward as a multiple of the embedding's size."""

    text_tokens: int = Field(default=256, ge=1)
    """Tokens for the encodings of a text; longer texts are cut."""

    n_time_tokens: int = Field(default=1, ge=1)
    """Tokens for the timestep."""

    n_image_tokens: int = Field(default=1, ge=1)
    """Tokens for the noisy embedding."""

    n_text_tokens: int = Field(default=1, ge=1)
    """Tokens for the text embedding."""

    time_table: int | None = Field(default=None, ge=1)
    """Rows of a learned table of timesteps, at least `diffusion.schedule.steps`; null for sines and two layers."""

    cosine: bool = True
    """Attention by the cosines of queries and keys, times 16; false: by their products over the root of `head_dim`."""

    rotary: bool = True
    """Rotary positions, beside the learned bias of each distance."""

    norm_in: bool = False
    """Norm of all tokens before the first layer."""

    norm_out: bool = True
    """Norm of the query's token after the last layer."""

    final_proj: bool = True
    """Whether a linear map follows from the query's token to the prediction."""

    normformer: bool = False
    """Norm inside the feed-forward too."""

    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping an attention weight, in training."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature inside the feed-forward, in training."""

    def shape_faults(self, x_shape: tuple[int, ...]) -> Iterator[str]:
        """See `BackboneRecord`; sines and cosines of the timestep fill an even number of features."""
        (dim,) = x_shape
        if self.time_table is None and (dim % 2 or dim < 4):
            yield (
                f"embeddings have {dim} numbers, but the sines of {self.type!r} need an even number from 4 on; set "
                f"time_table to the timesteps of diffusion.schedule, or use 'prior_transformer', which takes any"
            )

    def timestep_faults(self, steps: int) -> Iterator[str]:
        """See `BackboneRecord`; the table has a row for each."""
        if self.time_table is not None and self.time_table < steps:
            yield f"time_table has {self.time_table} rows for {steps} timesteps; set it to {steps}, or to null"

    def encoder(self, cond_shapes: Mapping[str, tuple[int, ...]], dim: int) -> PriorTokens:
        """See `PriorBackboneRecord`; a text embedding is needed, and all conditions have the embedding's size."""
        sizes = {key: shape[-1] for key, shape in cond_shapes.items()}
        if EMBEDDING not in sizes or set(sizes.values()) != {dim}:
            requirement = f"{self.type!r} needs text embeddings, and encodings, of {dim} numbers"
            raise ValueError(f"{requirement}; found {sizes}. Use 'prior_transformer', which takes any")
        return PriorTokens(self, dim)

    def network(self, sizes: Sizes) -> MultiQueryPrior:
        """See `BackboneRecord`; x_shape is (D,), cond_shape what `encoder` says."""
        return MultiQueryPrior(self, sizes)


class PriorTokens(nn.Module):
    """Text conditions -> condition tokens, and a last token that replaces the noisy embedding, unless it is zeros.

    Learned tokens replace dropped conditions and padding; an encoding of zeros is padding.
    """

    def __init__(self, config: MultiQueryPriorConfig, dim: int):
        super().__init__()
        self.counts = {ENCODINGS: config.text_tokens, EMBEDDING: config.n_text_tokens}
        self.project = _widening(dim, config.n_text_tokens)
        counts = {**self.counts, IMAGE: 1}
        self.null = nn.ParameterDict({key: nn.Parameter(torch.randn(count, dim)) for key, count in counts.items()})
        self.cond_shape = (sum(self.counts.values()) + 1, dim)
        """(N, D): number of tokens and their size."""

    def forward(self, cond: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None) -> Tensor:
        """(B, *shape) by key -> (B, N, D).

        Args:
            keep: (B,) by key, 1 to keep a sample's condition, 0 to drop it, and the noisy embedding where the text
                embedding is dropped; None keeps all.
        """
        embedding = self.project(cond[EMBEDDING].to(compute_dtype(self.null[EMBEDDING])))
        batch, dim = len(embedding), self.cond_shape[1]
        encodings = cond.get(ENCODINGS, embedding.new_zeros(batch, 0, dim))[:, : self.counts[ENCODINGS]]
        encodings = F.pad(encodings, (0, 0, 0, self.counts[ENCODINGS] - encodings.shape[1]))
        text_kept = _kept(keep, EMBEDDING, embedding)
        tokens_of = {
            ENCODINGS: (encodings, (encodings != 0).any(-1) & _kept(keep, ENCODINGS, embedding)),
            EMBEDDING: (embedding.view(batch, -1, dim), text_kept),
            IMAGE: (embedding.new_zeros(batch, 1, dim), text_kept),
        }
        parts = [
            torch.where(is_there[..., None], values, self.null[key].to(values))
            for key, (values, is_there) in tokens_of.items()
        ]
        return torch.cat(parts, dim=1)


def _kept(keep: Mapping[str, Tensor] | None, key: str, like: Tensor) -> Tensor:
    """(B, 1) bool: which samples keep a condition."""
    keep_key = None if keep is None else keep.get(key)
    if keep_key is None:
        return torch.ones(len(like), 1, dtype=torch.bool, device=like.device)
    return keep_key.bool()[:, None]


class MultiQueryLayer(nn.Module):
    """Causal attention with one set of keys and values for all heads, then a gated feed-forward."""

    def __init__(self, config: MultiQueryPriorConfig, dim: int):
        super().__init__()
        self.n_heads, self.head_dim, self.is_cosine = config.n_heads, config.head_dim, config.cosine
        inner_dim = int(config.expansion * dim)
        self.attention_dropout = Dropout(config.attention_dropout)
        self.norm_1 = nn.LayerNorm(dim, bias=False)
        self.null = nn.Parameter(torch.randn(2, config.head_dim))
        self.queries = KernelLinear(dim, config.n_heads * config.head_dim, bias=False)
        self.keys_values = KernelLinear(dim, 2 * config.head_dim, bias=False)
        self.attention_out = KernelLinear(config.n_heads * config.head_dim, dim, bias=False)
        self.norm_attended = nn.LayerNorm(dim, bias=False)
        self.norm_2 = nn.LayerNorm(dim, bias=False)
        self.expand = KernelLinear(dim, 2 * inner_dim, bias=False)
        self.norm_inner = nn.LayerNorm(inner_dim, bias=False) if config.normformer else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.contract = KernelLinear(inner_dim, dim, bias=False)

    def forward(self, x: Tensor, bias: Tensor, angles: Tensor | None) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            bias: (n_heads, T, T + 1) added to the scores of the null key and of all tokens.
            angles: (T, features / 2) of rotary positions; None for none.
        """
        normed = self.norm_1(x)
        queries = split_heads(self.queries(normed), self.n_heads)
        keys, values = (part[:, None] for part in self.keys_values(normed).chunk(2, dim=-1))
        if angles is not None:
            queries, keys = rotated(queries, angles), rotated(keys, angles)
        null = self.null.to(keys).view(2, 1, 1, 1, -1).expand(-1, len(x), -1, -1, -1)
        keys, values = torch.cat([null[0], keys], dim=2), torch.cat([null[1], values], dim=2)
        if self.is_cosine:  # `attend` divides by the root of the size of a head
            queries = F.normalize(queries, dim=-1) * (COSINE_FACTOR * math.sqrt(self.head_dim))
            keys = F.normalize(keys, dim=-1)
        keys, values = (part.expand(-1, self.n_heads, -1, -1) for part in (keys, values))
        attended = attend(queries, keys, values, self.attention_dropout, mask=bias.to(queries))
        x = x + self.norm_attended(self.attention_out(join_heads(attended)))
        features, gates = self.expand(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.contract(self.dropout(self.norm_inner(features * F.silu(gates))))


class MultiQueryPrior(nn.Module):
    """See `MultiQueryPriorConfig`."""

    shard_units = (MultiQueryLayer,)

    def __init__(self, config: MultiQueryPriorConfig, sizes: Sizes):
        super().__init__()
        dim = sizes.x_shape[0]
        if sizes.out_channels != dim:
            raise ValueError(f"backbone {config.type!r} predicts no variance; set diffusion.variance to a fixed one")
        self.dim = dim
        time_dim = config.n_time_tokens * dim
        self.time = nn.Embedding(config.time_table, time_dim) if config.time_table else TimeLayers(dim, time_dim)
        self.image = _widening(dim, config.n_image_tokens)
        self.query = nn.Parameter(torch.randn(dim))
        self.distances = nn.Embedding(DISTANCE_BUCKETS, config.n_heads)
        count = sizes.cond_shape[0] - 1 + config.n_time_tokens + config.n_image_tokens + sizes.input_factor
        self.register_buffer("buckets", distance_buckets(count), persistent=False)
        features = min(ROTARY_FEATURES, config.head_dim)
        angles = torch.arange(count)[:, None] * 10_000.0 ** (-torch.arange(0, features, 2) / features)
        self.register_buffer("angles", angles if config.rotary else None, persistent=False)
        self.norm_in = nn.LayerNorm(dim, bias=False) if config.norm_in else nn.Identity()
        self.layers = nn.ModuleList(MultiQueryLayer(config, dim) for _ in range(config.n_layers))
        self.norm_out = nn.LayerNorm(dim, bias=False) if config.norm_out else None
        self.head = KernelLinear(dim, dim, bias=False) if config.final_proj else nn.Identity()

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Args:
            x_t: (B, D) noisy embeddings, or (B, 2 D) followed by the network's own estimate.
            t: (B,) timesteps.
            cond: (B, N, D) tokens of `PriorTokens`.

        Returns:
            (B, D) prediction.
        """
        dtype, batch = compute_dtype(self.query), len(x_t)
        text, stand_in = cond[:, :-1].to(dtype), cond[:, -1:].to(dtype)
        noisy, *estimate = x_t.to(dtype).split(self.dim, dim=1)
        image = self.image(noisy).view(batch, -1, self.dim)
        image = torch.where((stand_in != 0).any(-1, keepdim=True), stand_in, image)
        time = self.time(t).to(dtype).view(batch, -1, self.dim)
        query = self.query.to(dtype).expand(batch, 1, -1)
        x = self.norm_in(torch.cat([text, time, image, *(part[:, None] for part in estimate), query], dim=1))
        later = torch.ones_like(self.buckets, dtype=torch.bool).triu(2)  # (T, T + 1); the null key comes first
        bias = self.distances(self.buckets).movedim(-1, 0).masked_fill(later, -math.inf)  # (n_heads, T, T + 1)
        for layer in self.layers:
            x = layer(x, bias, self.angles)
        prediction = x[:, -1]
        if self.norm_out is not None:  # their norm divides by the largest feature first, which counts beside its eps
            prediction = self.norm_out(prediction / prediction.amax(-1, keepdim=True).detach())
        return self.head(prediction)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """(B, heads, T, head_dim), whose first features are turned in pairs of neighbours by angles (T, pairs)."""
    width = 2 * angles.shape[-1]
    first, second = x[..., :width].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)


def distance_buckets(count: int) -> Tensor:
    """(T, T + 1) numbers of buckets of the distances from a query back to a key, as T5 has them: small ones apart,
    larger ones by their logarithm. The null key counts as one place before the first token."""
    distance = (torch.arange(count)[:, None] - torch.arange(count + 1)).clamp(min=0)
    exact = DISTANCE_BUCKETS // 2
    share = (distance.float() / exact).clamp(min=1).log() / math.log(FARTHEST_DISTANCE / exact)
    far = (exact + (share * (DISTANCE_BUCKETS - exact)).long()).clamp(max=DISTANCE_BUCKETS - 1)
    return torch.where(distance < exact, distance, far)


class TimeLayers(nn.Sequential):
    """The timestep's features, through three linear layers."""

    def __init__(self, dim: int, out_dim: int):
        wide = 2 * out_dim
        layers = KernelLinear(dim, wide), nn.SiLU(), KernelLinear(wide, wide), nn.SiLU(), KernelLinear(wide, out_dim)
        super().__init__(SinusoidalEmbedding(dim=dim), *layers)

    def forward(self, t: Tensor) -> Tensor:
        """(B,) timesteps -> (B, out_dim) in the dtype of the weights."""
        sinusoidal, *layers = self
        features = sinusoidal(t).to(layers[0].weight.dtype)
        for layer in layers:
            features = layer(features)
        return features


def _widening(dim: int, count: int) -> nn.Module:
    """A linear map to `count` tokens; none to one."""
    return KernelLinear(dim, count * dim) if count > 1 else nn.Identity()
