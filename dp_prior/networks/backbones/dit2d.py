"""Diffusion transformer over the patches of an image (Peebles and Xie 2023, arXiv:2212.09748).

Uses the layers of `dit`. Rotary positions have two axes: half the features of a head turn with the row of a patch, half
with the column. The label modulates every layer and is a token that patches attend to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.backbones.backbone_record import ImageBackboneRecord, Sizes, heads_faults
from dp_prior.networks.backbones.dit import DiT, DiTConfig


class DiT2DConfig(ImageBackboneRecord, DiTConfig):
    """Diffusion transformer over the patches of an image."""

    type: Literal["dit2d"] = "dit2d"

    patch: int = Field(default=2, ge=1)
    """Height and width of a patch in pixels; a patch is a token."""

    n_heads: int = Field(default=4, ge=1)
    """Attention heads; embed_dim is a multiple of four times their number."""

    checkpointing: bool = False
    """Recompute the layers in the backward pass instead of keeping intermediate values: less memory, a third more time,
    the same numbers. No effect in compiled code, where torch.compile decides."""

    def faults(self) -> Iterator[str]:
        return heads_faults(self.embed_dim, self.n_heads, features=4)  # pairs, on two axes

    @property
    def length_factor(self) -> int:
        return self.patch

    @property
    def cond_dim(self) -> int:
        return self.embed_dim

    def network(self, sizes: Sizes) -> DiT2D:
        """See `BackboneRecord`; x_shape is (H, W, C)."""
        return DiT2D(self, sizes)


class DiT2D(nn.Module):
    """See `DiT2DConfig`."""

    def __init__(self, config: DiT2DConfig, sizes: Sizes):
        super().__init__()
        self.patch = patch = config.patch
        height, width, channels = sizes.x_shape
        self.grid = rows, columns = height // patch, width // patch
        positions = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
        sizes = sizes._replace(x_shape=(len(positions), patch * patch * channels))
        self.transformer = DiT(config, sizes, positions, checkpointing=config.checkpointing)

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, W, in_channels), (B,), (B, 1 or 0, D) -> (B, H, W, out_channels)."""
        rows, columns = self.grid
        patches = x_t.unflatten(1, (rows, self.patch)).unflatten(3, (columns, self.patch))  # (B, r, p, c, p, C)
        tokens = self.transformer(patches.transpose(2, 3).flatten(3).flatten(1, 2), t, cond)
        patches = tokens.unflatten(2, (self.patch, self.patch, -1)).unflatten(1, self.grid)  # (B, r, c, p, p, C)
        return patches.transpose(2, 3).flatten(3, 4).flatten(1, 2)
