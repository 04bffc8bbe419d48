"""A looked-up column is the column of its looked-up rows."""

import torch

from dp_prior.data.columns.joined import join
from dp_prior.data.columns.lookup import LookupColumn
from dp_prior.data.columns.memory import MemoryColumn


def test_it_is_the_same_as_all_its_rows_in_memory():
    torch.manual_seed(0)
    table, index = torch.randn(3, 4), torch.randint(3, (20,))
    found, expected = LookupColumn(table, MemoryColumn(index)), MemoryColumn(table[index])
    ids, chosen = torch.tensor([0, 7, 7, 15]), torch.tensor([3, 1, 1, 19, 4, 5, 6])
    for change in (
        lambda column: column,
        lambda column: column.taking(chosen),
        lambda column: column.runs(3),
        lambda column: column.taking(torch.arange(19, -1, -1)).runs(5),
        lambda column: column.cached(4, 2).to("cpu").runs(1),
    ):
        one, other = change(found), change(expected)
        assert len(one) == len(other) and one.shape == other.shape
        assert (one.dtype, one.device, one.on_disk) == (other.dtype, other.device, False)
        here = ids.clamp(max=len(other) - 1)
        assert torch.equal(one.rows(here), other.rows(here))


def test_several_are_joined_as_their_rows_in_memory_are():
    torch.manual_seed(0)
    parts = [(torch.randn(k, 4), torch.randint(k, (n,))) for k, n in ((3, 7), (1, 2), (5, 11))]
    found = join([LookupColumn(table, MemoryColumn(index)) for table, index in parts])
    assert isinstance(found, LookupColumn) and len(found) == 20
    assert torch.equal(found.rows(torch.arange(20)), torch.cat([table[index] for table, index in parts]))


def test_its_memory_is_that_of_table_and_numbers():
    column = LookupColumn(torch.zeros(3, 512), MemoryColumn(torch.zeros(1000, dtype=torch.int64)))
    assert column.n_bytes == 3 * 512 * 4 + 1000 * 8
