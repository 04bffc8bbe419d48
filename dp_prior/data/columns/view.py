"""Views of a column that is not in memory: rows are looked up and read when they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from dp_prior.data.columns import Column


class TakenColumn:
    """Row i is row index[i] of a column."""

    def __init__(self, column: Column, index: Tensor):
        """Args: index: (m,) int64 on the column's device."""
        self._column, self._index = column, index
        self.dtype, self.shape, self.device, self.n_bytes = column.dtype, column.shape, column.device, column.n_bytes

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`."""
        return self._column.rows(self._index.index_select(0, ids))

    def taking(self, index: Tensor) -> TakenColumn:
        """See `Column`."""
        return TakenColumn(self._column, self._index.index_select(0, index))

    def runs(self, length: int) -> RunsColumn:
        """See `Column`."""
        return RunsColumn(self, length)

    def cached(self, block_rows: int, n_blocks: int) -> TakenColumn:
        """See `Column`."""
        return TakenColumn(self._column.cached(block_rows, n_blocks), self._index)

    def to(self, device: torch.device | str) -> TakenColumn:
        """See `Column`; it stays on disk."""
        return self


class RunsColumn:
    """Row i is rows i to i + length - 1 of a column, read in one go."""

    def __init__(self, column: Column, length: int):
        self._column, self._length = column, length
        self.dtype, self.shape = column.dtype, (length, *column.shape)
        self.device, self.n_bytes = column.device, column.n_bytes
        self._steps = torch.arange(length, device=column.device)

    def __len__(self) -> int:
        return max(len(self._column) - self._length + 1, 0)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`."""
        steps = ids[:, None] + self._steps  # (B, length)
        return self._column.rows(steps.flatten()).view(len(ids), *self.shape)

    def taking(self, index: Tensor) -> TakenColumn:
        """See `Column`."""
        return TakenColumn(self, index)

    def runs(self, length: int) -> RunsColumn:
        """See `Column`."""
        return RunsColumn(self, length)

    def cached(self, block_rows: int, n_blocks: int) -> RunsColumn:
        """See `Column`."""
        return RunsColumn(self._column.cached(block_rows, n_blocks), self._length)

    def to(self, device: torch.device | str) -> RunsColumn:
        """See `Column`; it stays on disk."""
        return self
