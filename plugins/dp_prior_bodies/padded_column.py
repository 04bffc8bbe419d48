"""The columns of several data sets as one column, where some sets have narrower rows or none at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn


class PaddedColumn(Column):
    """See `Column`. The rows of the second part follow those of the first, in place; zeros stand behind the numbers of
    narrower rows, and for the rows of a part without a column."""

    def __init__(
        self,
        parts: Sequence[Column | None],
        counts: Sequence[int],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ):
        """
        Args:
            parts: of each data set, all on `device`; None for a set without such a key.
            counts: rows of each part.
            shape: of one row of this column, at least that of every part.
        """
        self._parts, self._counts, self.shape, self.dtype = parts, counts, shape, dtype
        self._ends = torch.from_numpy(np.cumsum(counts)).to(device)
        self.device = self._ends.device
        self.on_disk = any(part.on_disk for part in parts if part is not None)

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def n_bytes(self) -> int:
        return 0 if self.on_disk else sum(part.n_bytes for part in self._parts if part is not None)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`; each part reads its rows in one call."""
        rows = torch.zeros(len(ids), *self.shape, dtype=self.dtype, device=self.device)
        owners = torch.bucketize(ids, self._ends, right=True)  # ends are exclusive
        for number in owners.unique().tolist():
            part = self._parts[number]
            if part is not None:
                (places,) = torch.where(owners == number)
                values = part.rows(ids[places] - (self._ends[number] - self._counts[number]))
                room = rows.new_zeros(len(places), *self.shape)
                room[(slice(None), *map(slice, values.shape[1:]))] = values
                rows[places] = room
        return rows

    def taking(self, index: Tensor) -> Column:
        """See `Column`; a copy."""
        return MemoryColumn(self.rows(index.to(self.device)))

    def runs(self, length: int) -> PaddedColumn:
        """See `Column`. A run does not go beyond its part, as no window does."""
        parts = [None if part is None else part.runs(length) for part in self._parts]
        return PaddedColumn(parts, self._counts, (length, *self.shape), self.dtype, self.device)

    def cached(self, block_rows: int, n_blocks: int) -> PaddedColumn:
        """See `Column`; each part has a cache of this size."""
        parts = [None if part is None else part.cached(block_rows, n_blocks) for part in self._parts]
        return PaddedColumn(parts, self._counts, self.shape, self.dtype, self.device)

    def to(self, device: torch.device | str) -> PaddedColumn:
        """See `Column`; the whole column stays where one of its parts has to."""
        parts = [None if part is None else part.to(device) for part in self._parts]
        devices = {part.device for part in parts if part is not None} or {device}
        if len(devices) > 1:
            return self
        return PaddedColumn(parts, self._counts, self.shape, self.dtype, devices.pop())
