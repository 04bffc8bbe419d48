"""Rows of files in any order, read in bounded runs, and through a cache of blocks of a stated size."""

import numpy as np
import pytest
import torch

from dp_prior.data.embeddings.embedding_column import BlockColumn, EmbeddingColumn, read_rows
from dp_prior.data.embeddings.folder import EmbeddingFolder
from dp_prior.data.embeddings.parts import SplitPart
from dp_prior.data.samples.block_order import BlockOrder
from tests.data.embeddings.folders import embeddings


class Counted:
    """Rows in memory that count how many are read, and how many at once."""

    def __init__(self, rows):
        self.data = rows
        self.dimension, self.dtype = rows.shape[1], rows.dtype
        self.counts = np.array([len(rows)])
        self.n_read, self.largest = 0, 0

    def read(self, start, stop):
        self.n_read += stop - start
        self.largest = max(self.largest, stop - start)
        return self.data[start:stop]


def cached(rows: Counted, block_rows: int, n_blocks: int) -> BlockColumn:
    """All rows, in blocks."""
    folder = EmbeddingFolder("memory", rows, None, None)
    return BlockColumn(folder, SplitPart.whole(len(rows.data)), block_rows=block_rows, n_blocks=n_blocks)


def gather(column: EmbeddingColumn, ids: np.ndarray) -> np.ndarray:
    return column.rows(torch.from_numpy(ids)).numpy()


def test_an_epoch_reads_every_row_once_and_a_seek_no_more_than_a_window():
    rows = Counted(embeddings(4096, 2))
    pool = cached(rows, 64, 8)
    order = BlockOrder(0, 4096, block_rows=64, shuffle_blocks=4)
    for start in range(0, 4096, 32):
        ids = order.ids(0, start, start + 32)
        assert np.array_equal(gather(pool, ids), rows.data[ids])
    assert rows.n_read == 4096
    pool = cached(rows, 64, 8)
    gather(pool, order.ids(0, 2048, 2080))
    assert rows.n_read == 4096 + 4 * 64


def test_memory_is_what_is_stated_and_does_not_grow():
    rows = Counted(embeddings(4096, 2))
    pool = cached(rows, 64, 8)
    assert pool._array.nbytes == 8 * 64 * 2 * 4
    generator = np.random.default_rng(0)
    for _ in range(50):
        ids = generator.integers(0, 4096, 5)
        assert np.array_equal(gather(pool, ids), rows.data[ids])
        assert len(pool._slots) <= 8 and len(set(pool._slots.values())) == len(pool._slots)
    ids = generator.integers(0, 4096, 500)  # more blocks than there is room for
    assert np.array_equal(gather(pool, ids), rows.data[ids])
    small = cached(Counted(embeddings(10, 2)), 64, 8)
    assert small._array.nbytes == 64 * 2 * 4


def test_a_read_that_fails_leaves_no_block_behind():
    rows = Counted(embeddings(640, 2))
    pool = cached(rows, 64, 3)
    gather(pool, np.array([0, 70]))
    read, rows.read = rows.read, None
    for _ in range(3):
        with pytest.raises(TypeError):
            gather(pool, np.array([130, 200]))
    rows.read = read
    for ids in (np.array([0, 70, 130]), np.array([200, 300, 639]), np.array([130, 0])):
        assert np.array_equal(gather(pool, ids), rows.data[ids])


def test_rows_from_anywhere_in_any_order_are_read_in_bounded_runs(monkeypatch):
    monkeypatch.setattr("dp_prior.data.embeddings.embedding_column.LONGEST_RUN", 100)
    rows = Counted(embeddings(5000, 2))
    generator = np.random.default_rng(0)
    for count in (0, 1, 7, 900):
        wanted = generator.integers(0, 5000, count)
        assert np.array_equal(read_rows(rows, wanted), rows.data[wanted])
    assert rows.largest <= 100
    assert np.array_equal(
        gather(EmbeddingColumn(EmbeddingFolder("memory", rows, None, None)), np.arange(4990, 5000)), rows.data[4990:]
    )
