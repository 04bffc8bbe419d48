"""Joined columns are the concatenation of their rows, each part read once."""

import pytest
import torch

from dp_prior.data.columns.joined import JoinedColumn, join
from dp_prior.data.columns.memory import MemoryColumn
from tests.data.columns.held import Held

PARTS = [torch.arange(8).view(4, 2), torch.arange(100, 106).view(3, 2), torch.empty(0, 2, dtype=torch.int64)]
ALL = torch.cat(PARTS)


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [2, 0, 1], [0, 2, 1]])
def test_any_rows_in_any_order_are_those_of_the_concatenation(order):
    columns = [Held(PARTS[number]) for number in order]
    whole, joined = torch.cat([PARTS[number] for number in order]), join(columns)
    ids = torch.randint(len(whole), (50,), generator=torch.Generator().manual_seed(0))
    assert isinstance(joined, JoinedColumn) and len(joined) == len(whole)
    assert torch.equal(joined.rows(ids), whole[ids])
    assert [column.reads for column in columns] == [int(len(column) > 0) for column in columns]
    assert torch.equal(joined.runs(3).rows(torch.tensor([2])), whole[2:5][None])
    assert torch.equal(joined.cached(2, 1).rows(ids), whole[ids])


def test_columns_in_memory_become_one_in_memory_and_one_on_disk_keeps_all_on_disk():
    joined = join([MemoryColumn(part) for part in PARTS])
    assert isinstance(joined, MemoryColumn) and torch.equal(joined.values, ALL)
    assert join([Held(PARTS[0]), Held(PARTS[1], may_move=True)]).n_bytes == 0, "all or none of it may move"
