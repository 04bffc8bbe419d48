"""Base of columns on disk, and lazy views: rows are looked up and read on request."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn

ROWS_COPIED = 4096  # at a time, to an accelerator


class DiskColumn(Column):
    """The parts of `Column` that are the same wherever on disk the rows are; a subclass adds `rows` and `__len__`."""

    device = torch.device("cpu")
    on_disk = True

    may_move = False
    """Whether an accelerator with room for its rows may hold a copy of them."""

    def taking(self, index: Tensor) -> Column:
        """See `Column`; a view."""
        return TakenColumn(self, index)

    def runs(self, length: int) -> Column:
        """See `Column`; a view."""
        return RunsColumn(self, length)

    @property
    def n_bytes(self) -> int:
        return len(self) * math.prod(self.shape) * self.dtype.itemsize if self.may_move else 0

    def to(self, device: torch.device | str) -> Column:
        """See `Column`; on an accelerator all rows, where they may move there."""
        is_moved = self.may_move and torch.device(device).type != "cpu"
        return self.in_memory(device) if is_moved else self

    def in_memory(self, device: torch.device | str) -> MemoryColumn:
        """All rows, copied to the memory of a device."""
        values = torch.empty(len(self), *self.shape, dtype=self.dtype, device=device)
        for begin in range(0, len(self), ROWS_COPIED):
            ids = torch.arange(begin, min(begin + ROWS_COPIED, len(self)))
            values[begin : begin + len(ids)] = self.rows(ids).to(device)
        return MemoryColumn(values)


class TakenColumn(DiskColumn):
    """Row i is row index[i] of a column on disk."""

    def __init__(self, column: DiskColumn, index: Tensor):
        """Args: index: (m,) int64."""
        self._column, self._index = column, index
        self.dtype, self.shape, self.may_move = column.dtype, column.shape, column.may_move

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, ids: Tensor) -> Tensor:
        return self._column.rows(self._index.index_select(0, ids))

    def cached(self, block_rows: int, n_blocks: int) -> TakenColumn:
        return TakenColumn(self._column.cached(block_rows, n_blocks), self._index)


class RunsColumn(DiskColumn):
    """Row i is rows i to i + length - 1 of a column on disk, read in one call."""

    def __init__(self, column: Column, length: int):
        self._column, self._steps = column, torch.arange(length)
        self.dtype, self.shape = column.dtype, (length, *column.shape)

    def __len__(self) -> int:
        return max(len(self._column) - len(self._steps) + 1, 0)

    def rows(self, ids: Tensor) -> Tensor:
        steps = ids[:, None] + self._steps  # (B, length)
        return self._column.rows(steps.flatten()).view(len(ids), *self.shape)

    def cached(self, block_rows: int, n_blocks: int) -> RunsColumn:
        return RunsColumn(self._column.cached(block_rows, n_blocks), len(self._steps))
