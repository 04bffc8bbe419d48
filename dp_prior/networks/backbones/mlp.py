"""Residual MLP over the flattened chunk: a small backbone for short chunks and quick trials."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.backbones.record import BackboneRecord
from dp_prior.networks.dropout import Dropout
from dp_prior.networks.layers import FiLM, Linear, StepEmbedding, compute_dtype, mish


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

    def create(
        self,
        x_shape: tuple[int, ...],
        cond_shape: tuple[int, int],
        output_channels_factor: int = 1,
        input_channels_factor: int = 1,
    ) -> MLP:
        """See `BackboneRecord.create`."""
        return MLP(
            **self.arguments(),
            x_shape=x_shape,
            cond_dim=cond_shape[0] * cond_shape[1],
            output_channels_factor=output_channels_factor,
            input_channels_factor=input_channels_factor,
        )


class Block(nn.Module):
    """Norm, modulation by the condition, two linear layers, residual."""

    def __init__(self, *, dim: int, inner_dim: int, cond_dim: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.film = FiLM(cond_dim=cond_dim, channels=dim, has_scale=True)
        self.expand = Linear(dim, inner_dim)
        self.dropout = Dropout(dropout)
        self.contract = Linear(inner_dim, dim)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, dim), (B, cond_dim) -> (B, dim)."""
        hidden = self.film(self.norm(x)[:, None], cond)[:, 0]
        return x + self.contract(self.dropout(mish(self.expand(hidden))))


class MLP(nn.Module):
    """See `MLPConfig` for the arguments."""

    def __init__(
        self,
        *,
        hidden_dim: int,
        n_blocks: int,
        expansion: int,
        step_embed_dim: int,
        dropout: float,
        x_shape: tuple[int, ...],
        cond_dim: int,
        output_channels_factor: int,
        input_channels_factor: int,
    ):
        super().__init__()
        self.output_shape = (*x_shape[:-1], x_shape[-1] * output_channels_factor)
        self.step_embedding = StepEmbedding(dim=step_embed_dim)
        self.input = Linear(math.prod(x_shape) * input_channels_factor, hidden_dim)
        self.blocks = nn.ModuleList(
            Block(dim=hidden_dim, inner_dim=hidden_dim * expansion, cond_dim=step_embed_dim + cond_dim, dropout=dropout)
            for _ in range(n_blocks)
        )
        self.norm = nn.LayerNorm(hidden_dim)
        self.output = Linear(hidden_dim, math.prod(self.output_shape))

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, *x_shape), (B,), (B, N, D) -> (B, *x_shape), its last dimension times output_channels_factor."""
        dtype = compute_dtype(self.input.weight)
        features = mish(torch.cat([self.step_embedding(t).to(dtype), cond.flatten(1).to(dtype)], dim=1))
        x = self.input(x_t.flatten(1).to(dtype))
        for block in self.blocks:
            x = block(x, features)
        return self.output(self.norm(x)).unflatten(1, self.output_shape)
