"""Windows as rows of columns.

In a column the steps of all episodes follow one another with each episode's edges repeated, so that every window is one
contiguous run (see `windows.py`) and a batch is one gather of runs per column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded.windows import Windows
from dp_prior.data.samples.row_selection import RowSelection
from dp_prior.tensors.batch import X


class WindowRows(RowSelection):
    """Each sample is a run of padded rows: `horizon` of the action, the first `n_obs_steps` of each observation.

    Attributes:
        valid_counts: (n,) int64 on the CPU, number of True in each window's mask.
    """

    def __init__(self, is_valid: Tensor, begins: Tensor, valid_counts: Tensor, horizon: int, n_obs_steps: int):
        """Args:
        is_valid: (m,) bool, what the mask says of each padded row; batches are made on its device.
        begins: (n,) int64 padded row where each window begins.
        """
        self.begins, self.valid_counts = begins, valid_counts
        self.device = is_valid.device  # not the device asked for: "cuda" is not equal to "cuda:0"
        self._is_valid, self._horizon, self._n_obs_steps = is_valid, horizon, n_obs_steps
        self._mask = MemoryColumn(is_valid).runs(horizon)

    @classmethod
    def of(cls, windows: Windows, n_obs_steps: int, mask_padding: bool = True) -> WindowRows:
        """The given windows; the mask is True everywhere unless padding is to be masked."""
        is_valid, counts = windows.is_real, windows.valid_counts
        if not mask_padding:
            is_valid, counts = np.ones_like(is_valid), np.full_like(counts, windows.horizon)
        tensors = [torch.from_numpy(array) for array in (is_valid, windows.first, counts)]
        return cls(*tensors, windows.horizon, n_obs_steps)

    @classmethod
    def joined(cls, parts: Sequence[WindowRows]) -> WindowRows:
        """The windows of several data sets, one set after another; all of them on the CPU."""
        rows = np.cumsum([0, *(each.n_rows for each in parts)])
        return cls(
            is_valid=torch.cat([each._is_valid for each in parts]),
            begins=torch.cat([each.begins + int(begin) for each, begin in zip(parts, rows, strict=False)]),
            valid_counts=torch.cat([each.valid_counts for each in parts]),
            horizon=parts[0]._horizon,
            n_obs_steps=parts[0]._n_obs_steps,
        )

    def masked(self, is_learned: np.ndarray) -> WindowRows:
        """The same windows, on the CPU, with a mask that is False also where `is_learned` (m,) is."""
        is_valid = self._is_valid & torch.from_numpy(is_learned)
        before = torch.nn.functional.pad(is_valid.cumsum(0), (1, 0))
        counts = before[self.begins + self._horizon] - before[self.begins]
        return WindowRows(is_valid, self.begins, counts, self._horizon, self._n_obs_steps)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def n_rows(self) -> int:
        """m, padded rows."""
        return len(self._is_valid)

    def view(self, key: str, column: Column) -> Column:
        return column.runs(self._horizon if key == X else self._n_obs_steps)

    def mask(self, begins: Tensor) -> Tensor:
        """See `RowSelection`; (B, horizon)."""
        return self._mask.rows(begins)

    def count_valid(self, ids: Tensor) -> int:
        return int(self.valid_counts[ids].sum())

    def to(self, device: torch.device | str) -> WindowRows:
        is_valid = self._is_valid.to(device)
        return WindowRows(is_valid, self.begins, self.valid_counts, self._horizon, self._n_obs_steps)
