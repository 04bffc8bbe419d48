"""Rows by number: read where they lie, or out of the few blocks that training uses for a while."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dp_prior.data.embeddings.folder import Rows
from dp_prior.data.embeddings.parts import Part

LARGEST_GAP = 64
"""Rows no further apart are read in one go."""

READERS = 8
"""So many blocks are read at a time."""

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
        for block in needed.tolist():
            if block in self._slots:
                self._slots[block] = self._slots.pop(block)  # used last
        missing = [block for block in needed.tolist() if block not in self._slots]
        if missing:
            self._read(missing)
        slots = np.array([self._slots[block] for block in needed.tolist()])
        return self._array[slots[np.searchsorted(needed, blocks)] * self.block_rows + ids % self.block_rows]

    def _read(self, blocks: list[int]) -> None:
        """Read blocks side by side, over those used longest ago: what takes long on a remote store is the waiting."""
        free = [slot for slot in range(self.n_blocks) if slot not in self._slots.values()]
        while len(free) < len(blocks):
            free.append(self._slots.pop(next(iter(self._slots))))
        jobs = []
        for block, slot in zip(blocks, free, strict=False):
            ids = np.arange(block * self.block_rows, min((block + 1) * self.block_rows, len(self.part)))
            place = self._array[slot * self.block_rows : slot * self.block_rows + len(ids)]
            jobs.append((self.part.rows(ids), place))
        with ThreadPoolExecutor(min(READERS, len(jobs))) as readers:
            list(readers.map(lambda job: read_rows(self.rows, *job), jobs))
        self._slots |= dict(zip(blocks, free, strict=False))  # only now: an error leaves no block that was not read
