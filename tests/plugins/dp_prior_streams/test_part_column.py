import torch

from dp_prior_streams.part_column import PartColumn
from dp_prior_streams.parts import PartArray
from tests.extras import needs
from tests.plugins.dp_prior_streams.recorded_sets import WIDTH, streamed

needs("pyarrow", "lerobot")


def test_a_column_of_parts_has_views_and_stays_on_disk(small_set, tmp_path):
    data = streamed(small_set, tmp_path / "cache")
    column = PartColumn(PartArray(data._parts, "state", (WIDTH,)))
    assert column.on_disk and column.n_bytes == 0 and column.shape == (WIDTH,) and column.to("cpu") is column
    ids = torch.tensor([5, 400, 5, 0])
    rows = column.rows(ids)
    assert rows.dtype == torch.float32 and rows.shape == (4, WIDTH) and torch.equal(rows[0], rows[2])
    taken = column.taking(torch.tensor([400, 5]))
    assert torch.equal(taken.rows(torch.tensor([1, 0])), rows[:2])
    runs = column.runs(3)
    assert torch.equal(runs.rows(torch.tensor([5]))[0], column.rows(torch.tensor([5, 6, 7])))
    assert len(column) == len(runs) + 2
