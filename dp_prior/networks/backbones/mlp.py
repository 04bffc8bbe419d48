"""Residual MLP over the flattened chunk: a small backbone for short chunks and quick trials."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.backbones.backbone_record import BackboneRecord, NamedAxes, Sizes
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.layers import FiLM, KernelLinear, StepEmbedding, compute_dtype, mish


class MLPConfig(BackboneRecord):
    """Residual MLP over the flattened chunk, modulated by timestep and condition."""

    type: Literal["mlp"] = "mlp"

    hidden_dim: int = Field(default=512, ge=1)
    """Width of the residual stream."""

    n_blocks: int = Field(default=4, ge=1)
    """Residual blocks."""

    expansion: int = Field(default=2, ge=1)
    """Width inside a block, as a multiple of hidden_dim."""

    step_embed_dim: int = Field(default=128, ge=4, multiple_of=2)
    """Features of the embedded timestep."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature inside a block, in training."""

    def network(self, sizes: Sizes) -> MLP:
        return MLP(self, sizes)


class MLPBlock(nn.Module):
    """Norm, modulation by the condition, two linear layers, residual."""

    def __init__(self, *, dim: int, inner_dim: int, cond_dim: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.film = FiLM(cond_dim=cond_dim, channels=dim, has_scale=True)
        self.expand = KernelLinear(dim, inner_dim)
        self.dropout = Dropout(dropout)
        self.contract = KernelLinear(inner_dim, dim)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, dim), (B, cond_dim) -> (B, dim)."""
        hidden = self.film(self.norm(x)[:, None], cond)[:, 0]
        return x + self.contract(self.dropout(mish(self.expand(hidden))))


class MLP(nn.Module):
    """See `MLPConfig`."""

    shard_units = (MLPBlock,)
    named_axes: ClassVar[NamedAxes] = {
        "input.weight": (1, "chunk"),
        "blocks.*.film.linear.weight": (1, "cond"),
        "output.*": (0, "chunk"),
    }

    def __init__(self, config: MLPConfig, sizes: Sizes):
        super().__init__()
        hidden_dim, cond_dim = config.hidden_dim, config.step_embed_dim + math.prod(sizes.cond_shape)
        self.output_shape = (*sizes.x_shape[:-1], sizes.out_channels)
        self.step_embedding = StepEmbedding(dim=config.step_embed_dim)
        self.input = KernelLinear(math.prod(sizes.x_shape) * sizes.input_factor, hidden_dim)
        self.blocks = nn.ModuleList(
            MLPBlock(dim=hidden_dim, inner_dim=hidden_dim * config.expansion, cond_dim=cond_dim, dropout=config.dropout)
            for _ in range(config.n_blocks)
        )
        self.norm = nn.LayerNorm(hidden_dim)
        self.output = KernelLinear(hidden_dim, math.prod(self.output_shape))

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, *x_shape), (B,), (B, N, D) -> (B, *x_shape), its last dimension times output_factor."""
        dtype = compute_dtype(self.input.weight)
        features = mish(torch.cat([self.step_embedding(t).to(dtype), cond.flatten(1).to(dtype)], dim=1))
        x = self.input(x_t.flatten(1).to(dtype))
        for block in self.blocks:
            x = block(x, features)
        return self.output(self.norm(x)).unflatten(1, self.output_shape)
