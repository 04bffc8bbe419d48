"""Columns: where the values of one key live, one kind of storage per module.

A data set is columns plus windows over them. Each column keeps its stored dtype and is placed by itself, for example
states on a GPU beside pictures on disk.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Column(Protocol):
    """N rows of one key."""

    dtype: torch.dtype
    """Type of the values that `rows` returns."""

    shape: tuple[int, ...]
    """Shape of one row."""

    device: torch.device
    """Where `rows` expects ids and returns values."""

    on_disk: bool
    """Whether `rows` reads files, so that a thread may call it ahead of its use."""

    n_bytes: int
    """Memory that `to` would take on another device; 0 for a column that stays on disk."""

    def __len__(self) -> int:
        """N."""

    def rows(self, ids: Tensor) -> Tensor:
        """(B, *shape) rows at ids, (B,) int64 from 0 to N - 1, any order, repeats allowed."""

    def taking(self, index: Tensor) -> Column:
        """The column of m rows whose row i is row index[i] of this one; index is (m,) int64 on the CPU."""

    def runs(self, length: int) -> Column:
        """The column of N - length + 1 rows whose row i is rows i to i + length - 1 of this one: (length, *shape)."""

    def cached(self, block_rows: int, n_blocks: int) -> Column:
        """The same rows, with up to n_blocks blocks of block_rows rows kept in memory where they come from disk; the
        default keeps none, as of rows that are in memory already."""
        return self

    def to(self, device: torch.device | str) -> Column:
        """The same rows on another device; a column on disk may stay where it is."""
