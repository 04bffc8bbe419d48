"""A column whose rows lie in memory but are read as from disk, and remember the reads."""

import torch

from dp_prior.data.columns.disk import DiskColumn


class Held(DiskColumn):
    """See `DiskColumn`. `reads` counts the calls of `rows`."""

    def __init__(self, values: torch.Tensor, may_move: bool = False):
        self.values, self.may_move, self.reads = values, may_move, 0
        self.dtype, self.shape = values.dtype, tuple(values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        self.reads += 1
        return self.values[ids]
