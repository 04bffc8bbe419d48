"""The windows of some episodes as training samples, made a batch at a time.

In a column the steps of all episodes follow one another with each episode's edges repeated, so that every window is one
contiguous run (see `windows.py`) and a batch is one gather of runs per column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dp_prior.batch import Batch
from dp_prior.data.columns import Column
from dp_prior.data.columns.joined import join
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.selection import ACTION
from dp_prior.data.windows import Windows


class WindowSet:
    """The windows of some episodes over columns: n samples, fetched by index a batch at a time.

    Each column is gathered once per batch, on its own device. Where columns lie on several devices, ids are expected
    on the CPU, so that columns on disk are read without waiting for an accelerator.
    """

    def __init__(
        self,
        columns: dict[str, Column],
        is_valid: Tensor,
        first: Tensor,
        counts: Tensor,
        horizon: int,
        n_obs_steps: int,
    ):
        """Args:
        columns: m padded rows by key, the action as "x".
        is_valid: (m,) bool, what the mask says of each padded row; batches are made on its device.
        first: (n,) int64 padded row where each window begins.
        counts: (n,) int64 on the CPU, number of True in each window's mask.
        """
        self.columns = columns
        self.valid_counts = counts
        self._target = is_valid.device  # not the device asked for: "cuda" is not equal to "cuda:0"
        self._is_together = {column.device for column in columns.values()} == {self._target}
        self.device = self._target if self._is_together else torch.device("cpu")
        self._is_valid, self._first = is_valid, first.to(self.device)
        self._horizon, self._n_obs_steps = horizon, n_obs_steps
        self._x = columns[ACTION].runs(horizon)
        self._mask = MemoryColumn(is_valid).runs(horizon)
        self._cond = {key: column.runs(n_obs_steps) for key, column in columns.items() if key != ACTION}
        self.reads_disk = any(column.on_disk for column in (self._x, *self._cond.values()))

    @classmethod
    def of(cls, columns: dict[str, Column], windows: Windows, n_obs_steps: int, mask_padding: bool = True) -> WindowSet:
        """The given windows over their padded rows; the mask is True everywhere unless padding is to be masked."""
        is_valid, counts = windows.is_real, windows.valid_counts
        if not mask_padding:
            is_valid, counts = np.ones_like(is_valid), np.full_like(counts, windows.horizon)
        tensors = [torch.from_numpy(array) for array in (is_valid, windows.first, counts)]
        return cls(columns, *tensors, windows.horizon, n_obs_steps)

    @classmethod
    def joined(cls, sets: Sequence[WindowSet]) -> WindowSet:
        """The windows of several sets, one set after another, as one set; all of them on the CPU."""
        rows = np.cumsum([0, *(each.n_rows for each in sets)])
        return cls(
            columns={key: join([each.columns[key] for each in sets]) for key in sets[0].columns},
            is_valid=torch.cat([each._is_valid for each in sets]),
            first=torch.cat([each._first + int(begin) for each, begin in zip(sets, rows, strict=False)]),
            counts=torch.cat([each.valid_counts for each in sets]),
            horizon=sets[0]._horizon,
            n_obs_steps=sets[0]._n_obs_steps,
        )

    def __len__(self) -> int:
        return len(self._first)

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids (B,) int64, which lie on the CPU."""
        return int(self.valid_counts[ids].sum())

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Dataset`: the rows of the columns on disk, the action as "x"."""
        first = self._first.index_select(0, ids)
        columns = {ACTION: self._x, **self._cond}
        return {key: column.rows(first) for key, column in columns.items() if column.on_disk}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64 on `device`, in data units; the loader adds positions and denominator.

        Args:
            read: what `read` found for them; None to read it now.
        """
        first = self._first.index_select(0, ids)
        if self._is_together and not self.reads_disk:
            cond = {key: column.rows(first) for key, column in self._cond.items()}
            return Batch(x=self._x.rows(first), cond=cond, mask=self._mask.rows(first), ids=ids)
        found = self.read(ids) if read is None else read
        there = {self.device: first, self._target: first.to(self._target, non_blocking=True)}

        def rows(key: str, column: Column) -> Tensor:
            return found[key] if column.on_disk else column.rows(there[column.device])

        batch = Batch(
            x=rows(ACTION, self._x),
            cond={key: rows(key, column) for key, column in self._cond.items()},
            mask=self._mask.rows(there[self._target]),
            ids=ids,
        )
        return batch.to(self._target)

    def seeing(self, keys: Collection[str]) -> WindowSet:
        """The same samples with these observations only, for readers that need no others."""
        columns = {key: column for key, column in self.columns.items() if key == ACTION or key in keys}
        return self.over(columns)

    def cached(self, block_rows: int, n_blocks: int) -> WindowSet:
        """The same samples, with blocks of the columns on disk cached in memory."""
        columns = {key: column.cached(block_rows, n_blocks) for key, column in self.columns.items()}
        return self.over(columns)

    def to(self, device: torch.device | str, keys: Collection[str] | None = None) -> WindowSet:
        """The same samples, batches of which are wanted on another device.

        Args:
            keys: columns that may move there, of which embeddings stay on disk all the same; None for all.
        """
        moved = self.columns.keys() if keys is None else keys
        columns = {key: column.to(device) if key in moved else column for key, column in self.columns.items()}
        return self.over(columns, self._is_valid.to(device))

    @property
    def n_rows(self) -> int:
        """m, padded rows."""
        return len(self._is_valid)

    def over(self, columns: dict[str, Column], is_valid: Tensor | None = None) -> WindowSet:
        """The same windows over other columns of the same rows, with batches on the device of `is_valid`."""
        is_valid = self._is_valid if is_valid is None else is_valid
        return WindowSet(columns, is_valid, self._first, self.valid_counts, self._horizon, self._n_obs_steps)
