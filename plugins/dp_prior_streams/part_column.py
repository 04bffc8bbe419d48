"""Columns whose rows lie in parts that arrive."""

from __future__ import annotations

import torch
from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn
from dp_prior_streams.parts import PartArray


class PartColumn(DiskColumn):
    """See `Column`. Row i is row i of the chosen episodes."""

    dtype = torch.float32

    def __init__(self, array: PartArray):
        self._array, self.shape = array, tuple(array.shape[1:])

    def __len__(self) -> int:
        return len(self._array)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`; waits for parts that are not on this machine."""
        return torch.from_numpy(self._array[ids.numpy()])
