"""Samples over columns: each column is gathered once per batch, at the rows that the samples take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from dp_prior.data.columns import Column
from dp_prior.tensors.batch import Batch, X
from dp_prior.tensors.randomness import Randomness


class RowSelection(ABC):
    """The rows of the columns that each sample takes, and which of them are real.

    Attributes:
        device: where batches are made.
        begins: (n,) int64 row where each sample begins; None where sample i is row i.
    """

    device: torch.device
    begins: Tensor | None = None

    @abstractmethod
    def __len__(self) -> int:
        """n, samples."""

    @abstractmethod
    def view(self, key: str, column: Column) -> Column:
        """The view of `column` whose row i holds the values of a sample that begins at row i."""

    @abstractmethod
    def mask(self, begins: Tensor) -> Tensor:
        """(B, *shape) bool of samples that begin at these rows, (B,) int64 on `device`; True where x is real."""

    @abstractmethod
    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids, (B,) int64 on the CPU."""

    @abstractmethod
    def to(self, device: torch.device | str) -> RowSelection:
        """Make batches on another device."""


class Cut(Protocol):
    """Makes the samples of a batch out of what lies in the columns, for example windows of pictures."""

    def __call__(self, batch: Batch, random: Randomness | None = None) -> Batch:
        """The samples. Args: random: B rows, each of which decides about its sample; None for what is not random."""

    def seeing(self, keys: Collection[str]) -> Cut:
        """Keep only these conditions."""


class Samples:
    """n samples over columns, fetched by index a batch at a time.

    Where columns lie on several devices, ids are expected on the CPU, so that columns on disk are read without waiting
    for an accelerator.

    Attributes:
        columns: by key, the diffused variable as "x".
        rows: those that each sample takes.
        cut: see `Cut`; None where a sample is what lies in the columns.
        device: where ids are expected.
        reads_disk: whether `read` reads files, so that a thread may call it ahead of `fetch`.
    """

    def __init__(self, columns: dict[str, Column], rows: RowSelection, cut: Cut | None = None):
        self.columns, self.rows, self.cut = columns, rows, cut
        self._moved = {key for key, column in columns.items() if column.device == rows.device}
        self._is_together = len(self._moved) == len(columns)
        self.device = rows.device if self._is_together else torch.device("cpu")
        self._begins = None if rows.begins is None else rows.begins.to(self.device)
        self._views = {key: rows.view(key, column) for key, column in columns.items()}
        self.reads_disk = any(view.on_disk for view in self._views.values())

    def __len__(self) -> int:
        return len(self.rows)

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids (B,) int64, which lie on the CPU."""
        return self.rows.count_valid(ids)

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """Read the columns on disk of the samples at ids (B,) int64, by key, on the CPU; uses no accelerator.

        Raises:
            DataError: a row cannot be trained on.
        """
        begins = self._begin(ids)
        return {key: view.rows(begins) for key, view in self._views.items() if view.on_disk}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64 on `device`, in data units; the loader adds positions and denominator.

        Args:
            read: the result of `read` for these ids; None to read now.
        """
        begins = self._begin(ids)
        moved = begins if self._is_together else begins.to(self.rows.device, non_blocking=True)
        from_disk = self.read(ids) if read is None and self.reads_disk else read
        values = {}
        for key, view in self._views.items():
            rows = moved if key in self._moved else begins
            values[key] = from_disk[key] if view.on_disk else view.rows(rows)
        batch = Batch(x=values.pop(X), cond=values, mask=self.rows.mask(moved), ids=ids)
        batch = batch if self._is_together else batch.to(self.rows.device)
        return batch if self.cut is None else self.cut(batch)

    def seeing(self, keys: Collection[str]) -> Samples:
        """Keep only these conditions, for readers that need no others."""
        columns = {key: column for key, column in self.columns.items() if key == X or key in keys}
        return Samples(columns, self.rows, self.cut and self.cut.seeing(keys))

    def whole(self) -> Samples:
        """The samples before `cut`."""
        return Samples(self.columns, self.rows)

    def cached(self, block_rows: int, n_blocks: int) -> Samples:
        """Cache blocks of the columns on disk in memory."""
        columns = {key: column.cached(block_rows, n_blocks) for key, column in self.columns.items()}
        return Samples(columns, self.rows, self.cut)

    def to(self, device: torch.device | str, keys: Collection[str] | None = None) -> Samples:
        """Make batches on another device.

        Args:
            keys: columns that may move there, of which embeddings stay on disk all the same; None for all.
        """
        moved = self.columns.keys() if keys is None else keys
        columns = {key: column.to(device) if key in moved else column for key, column in self.columns.items()}
        return Samples(columns, self.rows.to(device), self.cut)

    def _begin(self, ids: Tensor) -> Tensor:
        """(B,) int64 row where each sample begins."""
        return ids if self._begins is None else self._begins.index_select(0, ids)
