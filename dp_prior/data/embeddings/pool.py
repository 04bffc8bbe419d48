"""Rows by number: read where they lie, or out of the few blocks that training uses for a while."""

from __future__ import annotations

import numpy as np

from dp_prior.data.embeddings.folder import Rows
from dp_prior.data.embeddings.parts import Part

LARGEST_GAP = 64
"""Rows no further apart are read in one go."""

LONGEST_RUN = 16_384
"""Most rows that are read in one go; what bounds the memory of a read."""


def read_rows(rows: Rows, wanted: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """(n, dimension) rows of files, in the order asked for; neighbours are read together.

    Args:
        out: where they go, contiguous and in the type of `rows`; None for a new array.
    """
    out = np.empty((len(wanted), rows.dimension), rows.dtype) if out is None else out
    steps = np.diff(wanted)
    if (steps < 0).any():
        order = np.argsort(wanted, kind="stable")
        out[order] = read_rows(rows, wanted[order])
        return out
    is_break = (steps > LARGEST_GAP) | (np.diff(wanted // LONGEST_RUN) > 0)
    edges = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(wanted)]
    for begin, end in zip(edges, edges[1:], strict=False):
        run = wanted[begin:end]
        if len(run):
            np.take(rows.read(int(run[0]), int(run[-1]) + 1), run - run[0], axis=0, out=out[begin:end], mode="clip")
    return out


class Direct:
    """The rows of a part by number, each read when it is asked for; for evaluation, which asks for few or in order."""

    def __init__(self, part: Part, rows: Rows):
        self.part, self.rows = part, rows

    def gather(self, ids: np.ndarray) -> np.ndarray:
        """(n, dimension) rows for (n,) numbers in the part."""
        return read_rows(self.rows, self.part.rows(ids))


class BlockPool(Direct):
    """The rows of a part by number, kept in memory by blocks: the blocks used last, in one array of fixed size."""

    def __init__(self, part: Part, rows: Rows, *, block_rows: int, n_blocks: int):
        """Args: n_blocks: so many blocks are in memory at most."""
        super().__init__(part, rows)
        self.block_rows = block_rows
        self.n_blocks = min(n_blocks, -(-len(part) // block_rows))
        self._array = np.empty((self.n_blocks * block_rows, rows.dimension), rows.dtype)
        self._slots: dict[int, int] = {}  # block: place in the array, least recently used first

    @property
    def n_bytes(self) -> int:
        """Memory of the array."""
        return self._array.nbytes

    def gather(self, ids: np.ndarray) -> np.ndarray:
        """See `Direct`. More blocks than there is room for are read without being kept."""
        blocks = ids // self.block_rows
        needed = np.unique(blocks)
        if len(needed) > self.n_blocks:
            return super().gather(ids)
        slots = np.array([self._slot(int(block), needed) for block in needed])
        return self._array[slots[np.searchsorted(needed, blocks)] * self.block_rows + ids % self.block_rows]

    def _slot(self, block: int, needed: np.ndarray) -> int:
        slot = self._slots.pop(block, None)
        if slot is None:
            if len(self._slots) < self.n_blocks:
                slot = len(self._slots)
            else:
                slot = self._slots.pop(next(held for held in self._slots if held not in needed))
            first = block * self.block_rows
            ids = np.arange(first, min(first + self.block_rows, len(self.part)))
            place = self._array[slot * self.block_rows : slot * self.block_rows + len(ids)]
            read_rows(self.rows, self.part.rows(ids), place)
        self._slots[block] = slot
        return slot
