"""Rows of many files in pieces: a read of any range is the slice of their concatenation."""

from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.data.embeddings.file_rows import FileRows

PIECES = [[2, 0, 3], [0], [1, 1], [4]]
ROWS = np.arange(sum(map(sum, PIECES)) * 2, dtype=np.float32).reshape(-1, 2)


class Held(FileRows):
    """Pieces in memory; `reads` are the (piece, first row, number of rows) asked for."""

    def __init__(self):
        files = SimpleNamespace(paths=["a", "b", "c", "d"], is_local=True)
        super().__init__(files, PIECES, 2, np.float32)
        self.reads, sizes = [], [size for file in PIECES for size in file]
        self.pieces = np.split(ROWS, np.cumsum(sizes)[:-1])

    def _read_piece(self, number, begin, out):
        self.reads.append((number, begin, len(out)))
        assert out.flags.c_contiguous
        out[:] = self.pieces[number][begin : begin + len(out)]


def test_any_range_is_the_slice_and_no_piece_is_read_twice_or_in_vain():
    for start in range(len(ROWS) + 1):
        for stop in range(start, len(ROWS) + 1):
            rows = Held()
            np.testing.assert_array_equal(rows.read(start, stop), ROWS[start:stop])
            assert all(count for _, _, count in rows.reads)
            assert len({number for number, _, _ in rows.reads}) == len(rows.reads)


@pytest.mark.parametrize(("row", "place"), [(0, "a, row 0"), (4, "a, row 4"), (5, "c, row 0"), (7, "d, row 0")])
def test_a_row_is_located_in_its_file(row, place):
    assert Held().locate(row) == place
