"""Columns in memory, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from dp_prior.data.columns import Column


class MemoryColumn(Column):
    """See `Column`. A gather of runs is one `index_select` on an overlapping view; nothing is copied to make runs."""

    on_disk = False

    def __init__(self, values: Tensor):
        """Args: values: (N, *shape) of any dtype."""
        self.values = values
        self.dtype, self.shape, self.device = values.dtype, tuple(values.shape[1:]), values.device

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def n_bytes(self) -> int:
        return self.values.untyped_storage().nbytes()

    def rows(self, ids: Tensor) -> Tensor:
        return self.values.index_select(0, ids)

    def taking(self, index: Tensor) -> MemoryColumn:
        """See `Column`; a copy."""
        return MemoryColumn(self.values.index_select(0, index.to(self.device)))

    def runs(self, length: int) -> MemoryColumn:
        """See `Column`; a view."""
        values = self.values.contiguous()
        count, stride = max(len(self) - length + 1, 0), values.stride()
        return MemoryColumn(values.as_strided((count, length, *self.shape), (stride[0], *stride)))

    def to(self, device: torch.device | str) -> MemoryColumn:
        return MemoryColumn(self.values.to(device))
