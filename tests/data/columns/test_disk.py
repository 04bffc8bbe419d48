"""Views on a column on disk are the indexing that they stand for, one read for each call."""

import pytest
import torch

from dp_prior.data.columns import disk
from tests.data.columns.held import Held

VALUES = torch.arange(60).view(10, 3, 2)
IDS = torch.tensor([3, 0, 3, 5])


def test_taken_rows_and_runs_are_indexing_in_one_read_and_nest():
    column, index = Held(VALUES), torch.tensor([9, 1, 1, 4, 0, 8])
    taken, runs = column.taking(index), column.runs(4)
    assert (len(taken), taken.shape) == (6, (3, 2)) and (len(runs), runs.shape) == (7, (4, 3, 2))
    assert torch.equal(taken.rows(IDS), VALUES[index][IDS]) and column.reads == 1
    expected = torch.stack([VALUES[i : i + 4] for i in IDS.tolist()])
    assert torch.equal(runs.rows(IDS), expected) and column.reads == 2
    nested = column.taking(index).runs(2).taking(torch.tensor([2, 0]))
    assert torch.equal(nested.rows(torch.tensor([1, 0])), torch.stack([VALUES[index[:2]], VALUES[index[2:4]]]))
    assert len(column.runs(11)) == 0


@pytest.mark.parametrize("at_once", [1, 3, 10, 4096])
def test_a_copy_in_memory_holds_all_rows_however_many_are_copied_at_once(at_once, monkeypatch):
    monkeypatch.setattr(disk, "ROWS_COPIED", at_once)
    column = Held(VALUES)
    assert torch.equal(column.in_memory("cpu").values, VALUES) and column.reads == -(-10 // at_once)


def test_only_a_column_that_may_move_counts_bytes_and_moves_to_an_accelerator():
    staying, moving = Held(VALUES), Held(VALUES, may_move=True)
    assert staying.n_bytes == 0 and moving.n_bytes == VALUES.nbytes == moving.taking(torch.arange(10)).n_bytes
    assert moving.to("cpu") is moving and staying.to("meta") is staying
    assert moving.to("meta").device.type == "meta" and moving.reads == 1
