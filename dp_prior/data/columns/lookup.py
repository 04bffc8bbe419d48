"""Columns whose rows repeat: a small table, and the number of its row for each row of the column, both in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn


class LookupColumn(Column):
    """See `Column`. Row i is table[index[i]]; runs are runs of the index."""

    on_disk = False

    def __init__(self, table: Tensor, index: MemoryColumn):
        """Args: table: (K, *shape) of any dtype; index: N rows of int64 numbers below K, on its device."""
        self._table, self._index = table, index
        self.dtype, self.shape = table.dtype, (*index.shape, *table.shape[1:])
        self.device = table.device

    @classmethod
    def joined(cls, columns: Sequence[LookupColumn]) -> LookupColumn:
        """The rows of all columns, one column after another."""
        sizes = [len(column._table) for column in columns]
        indices = [column._index.values + sum(sizes[:i]) for i, column in enumerate(columns)]
        return cls(torch.cat([column._table for column in columns]), MemoryColumn(torch.cat(indices)))

    def __len__(self) -> int:
        return len(self._index)

    @property
    def n_bytes(self) -> int:
        return self._index.n_bytes + self._table.untyped_storage().nbytes()

    def rows(self, ids: Tensor) -> Tensor:
        return self._table[self._index.rows(ids)]

    def taking(self, index: Tensor) -> LookupColumn:
        """See `Column`; a copy of the numbers."""
        return LookupColumn(self._table, self._index.taking(index))

    def runs(self, length: int) -> LookupColumn:
        """See `Column`; a view."""
        return LookupColumn(self._table, self._index.runs(length))

    def to(self, device: torch.device | str) -> LookupColumn:
        return LookupColumn(self._table.to(device), self._index.to(device))
