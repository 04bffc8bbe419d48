"""The order of data on disk: a shuffle in blocks of neighbours."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dp_prior.data.samples.order import sorted_by_hash


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
        self._window = lru_cache(2)(self._make_window)
        self._block_order = lru_cache(1)(self._make_block_order)

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        size = self.block_rows * self.shuffle_blocks
        parts = []
        for window in range(begin // size, -(-end // size)):
            first = window * size
            parts.append(self._window(epoch, window)[max(begin - first, 0) : end - first])
        return np.concatenate(parts)

    def _make_window(self, epoch: int, window: int) -> np.ndarray:
        """The ids of a window in order."""
        blocks = self._block_order(epoch)[window * self.shuffle_blocks : (window + 1) * self.shuffle_blocks]
        rows = blocks[:, None] * self.block_rows + np.arange(self.block_rows)  # (blocks, rows)
        if len(blocks) == self.shuffle_blocks:
            return sorted_by_hash(rows, self.seed, f"rows/{epoch}").T.reshape(-1)
        tail = np.arange(self.n // self.block_rows * self.block_rows, self.n)
        return sorted_by_hash(np.concatenate([rows.reshape(-1), tail]), self.seed, f"rows/{epoch}")

    def _make_block_order(self, epoch: int) -> np.ndarray:
        """All whole blocks in the order of an epoch."""
        return sorted_by_hash(np.arange(self.n // self.block_rows), self.seed, f"blocks/{epoch}")
