"""Columns of several data sets as one, padded: equal to a table of zeros that is filled by hand."""

import torch

from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior_bodies.padded_column import PaddedColumn

COUNTS = [5, 4, 6]


class OnDisk(DiskColumn):
    """Stands for a column of files."""

    def __init__(self, values: torch.Tensor):
        self._values, self.dtype, self.shape = values, values.dtype, tuple(values.shape[1:])

    def __len__(self) -> int:
        return len(self._values)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._values[ids]


def columns(kind=MemoryColumn):
    """Three parts, the second without a column, and the table that they make."""
    narrow, wide = torch.rand(5, 2), torch.rand(6, 3)
    table = torch.zeros(15, 3)
    table[:5, :2], table[9:] = narrow, wide
    return PaddedColumn([kind(narrow), None, MemoryColumn(wide)], COUNTS, (3,), torch.float32), table


def test_rows_are_those_of_a_table_filled_by_hand():
    for kind in (MemoryColumn, OnDisk):
        column, table = columns(kind)
        ids = torch.tensor([14, 0, 7, 4, 9, 0, 5, 8])
        assert len(column) == 15 and column.on_disk == (kind is OnDisk)
        for copy in (column, column.cached(2, 2), column.to("cpu")):
            assert torch.equal(copy.rows(ids), table[ids])
        assert torch.equal(column.taking(ids).rows(torch.arange(len(ids))), table[ids])


def test_runs_within_a_part_are_those_of_the_table():
    for kind in (MemoryColumn, OnDisk):
        column, table = columns(kind)
        runs = column.runs(3)
        ids = torch.tensor([0, 2, 5, 6, 9, 12])
        assert runs.shape == (3, 3)
        assert torch.equal(runs.rows(ids), torch.stack([table[first : first + 3] for first in ids.tolist()]))


def test_memory_is_that_of_the_parts_and_none_on_disk():
    assert columns()[0].n_bytes == 4 * (5 * 2 + 6 * 3)
    assert columns(OnDisk)[0].n_bytes == 0


def test_a_key_that_no_part_has_is_zero():
    column = PaddedColumn([None, None], [2, 3], (2, 2), torch.uint8)
    assert torch.equal(column.rows(torch.tensor([4, 1])), torch.zeros(2, 2, 2, dtype=torch.uint8))
    assert column.to("cpu").n_bytes == 0
