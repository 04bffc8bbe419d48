"""The selection of every row of the columns as a sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.samples.over_columns import RowSelection


class EachRow(RowSelection):
    """Every row is a sample, all of it real."""

    def __init__(self, count: int, mask_shape: tuple[int, ...] = (), device: torch.device | str = "cpu"):
        """Args: mask_shape: of one sample's mask, which is that of x without its last axis."""
        self._count, self.mask_shape = count, mask_shape
        self.device = torch.empty(0, device=device).device  # "cuda" is not equal to "cuda:0"

    def __len__(self) -> int:
        return self._count

    def view(self, key: str, column: Column) -> Column:
        return column

    def mask(self, begins: Tensor) -> Tensor:
        return torch.ones(len(begins), *self.mask_shape, dtype=torch.bool, device=self.device)

    def count_valid(self, ids: Tensor) -> int:
        return len(ids) * math.prod(self.mask_shape)

    def to(self, device: torch.device | str) -> EachRow:
        return EachRow(self._count, self.mask_shape, device)
