"""Orders of training: the sample at each position of an epoch, a pure function of (seed, epoch, position)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from dp_prior.randomness import Randomness


class Order(Protocol):
    """A permutation of n samples for every epoch. Several threads may ask it at a time."""

    def __len__(self) -> int: ...

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """(end - begin,) int64 sample ids at these positions of an epoch."""
        ...


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """(n,) int64 permutation of 0 .. n - 1.

    Sample ids are sorted by a hash of (seed, epoch, id). The hash is a bijection of 64 bits: there are no ties, and the
    order is independent of any library's generator and sorting algorithm.
    """
    return _sorted_by_hash(np.arange(n), seed, f"order/{epoch}")


class FullOrder:
    """A full shuffle, for data in memory."""

    def __init__(self, seed: int, n: int):
        self.seed = seed
        self.n = n
        self._epochs: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.n

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        found = self._epochs.get(epoch)
        if found is None:
            found = epoch_order(self.seed, epoch, self.n)
            self._epochs = {known: kept for known, kept in self._epochs.items() if known == epoch - 1} | {epoch: found}
        return found[begin:end]


class BlockOrder:
    """A shuffle in blocks of neighbours, for data on disk of which only some blocks are in memory.

    Blocks of `block_rows` samples are put in random order and taken `shuffle_blocks` at a time, a *window*. Positions
    in a window alternate between its blocks, each in its own random order. Any position is computed without others, and
    where the number of ranks divides `shuffle_blocks`, each rank reads its own blocks. The last window of an epoch,
    which may have fewer blocks, is fully shuffled.
    """

    def __init__(self, seed: int, n: int, *, block_rows: int, shuffle_blocks: int):
        self.seed = seed
        self.n = n
        self.block_rows = block_rows
        self.shuffle_blocks = shuffle_blocks
        self._blocks: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        self._windows: dict[tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        return self.n

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        size = self.block_rows * self.shuffle_blocks
        parts = []
        for window in range(begin // size, -(-end // size)):
            first = window * size
            parts.append(self._window(epoch, window)[max(begin - first, 0) : end - first])
        return np.concatenate(parts)

    def _window(self, epoch: int, window: int) -> np.ndarray:
        """The ids of a window in order; the two newest are kept."""
        key = (epoch, window)
        found = self._windows.get(key)
        if found is None:
            found = self._make_window(epoch, window)
            self._windows = dict(list(self._windows.items())[-1:]) | {key: found}
        return found

    def _make_window(self, epoch: int, window: int) -> np.ndarray:
        blocks = self._block_order(epoch)[window * self.shuffle_blocks : (window + 1) * self.shuffle_blocks]
        rows = blocks[:, None] * self.block_rows + np.arange(self.block_rows)  # (blocks, rows)
        if len(blocks) == self.shuffle_blocks:
            return _sorted_by_hash(rows, self.seed, f"rows/{epoch}").T.reshape(-1)
        tail = np.arange(self.n // self.block_rows * self.block_rows, self.n)
        return _sorted_by_hash(np.concatenate([rows.reshape(-1), tail]), self.seed, f"rows/{epoch}")

    def _block_order(self, epoch: int) -> np.ndarray:
        """All whole blocks in the order of an epoch."""
        known, blocks = self._blocks
        if known != epoch:
            blocks = _sorted_by_hash(np.arange(self.n // self.block_rows), self.seed, f"blocks/{epoch}")
            self._blocks = (epoch, blocks)
        return blocks


def _sorted_by_hash(ids: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """The ids (..., n) in order of their hashes along the last axis."""
    keys = Randomness.from_counts(seed, purpose, torch.from_numpy(ids)).keys
    return np.take_along_axis(ids, np.argsort(keys.numpy(), axis=-1), axis=-1)
