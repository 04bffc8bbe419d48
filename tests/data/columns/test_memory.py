"""A column in memory is a tensor: its views are indexing, and runs copy nothing."""

import torch

from dp_prior.data.columns.memory import MemoryColumn
from tests.cases import every

VALUES = torch.arange(40).view(10, 2, 2)


@every(length=[1, 3, 5, 20], values=[VALUES, VALUES.transpose(1, 2), VALUES[::2], torch.arange(7)])
def test_runs_are_the_stacked_slices(values, length):
    runs = MemoryColumn(values).runs(length)
    expected = [values[i : i + length] for i in range(len(values) - length + 1)]
    assert len(runs) == len(expected) and runs.shape == (length, *values.shape[1:])
    if expected:
        assert torch.equal(runs.rows(torch.arange(len(runs))), torch.stack(expected))


def test_runs_are_a_view_and_taken_rows_a_copy():
    column, index = MemoryColumn(VALUES), torch.tensor([4, 4, 0])
    assert column.runs(5).values.data_ptr() == VALUES.data_ptr() and column.runs(5).n_bytes == column.n_bytes
    taken = column.taking(index)
    assert torch.equal(taken.values, VALUES[index]) and taken.values.data_ptr() != VALUES.data_ptr()
    assert column.cached(2, 3) is column and not column.on_disk
    assert torch.equal(column.to("cpu").rows(index), VALUES[index])
