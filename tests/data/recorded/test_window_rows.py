"""Windows as rows: those of several sets are those of each, one set after another."""

import numpy as np
import torch

from dp_prior.data.columns.joined import join
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded.window_rows import WindowRows
from dp_prior.data.recorded.windows import make_windows
from dp_prior.data.samples.over_columns import Samples


def samples_of(lengths, seed):
    windows = make_windows(np.array(lengths), 6, 1, 3)
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(sum(lengths), 2)))[windows.source]
    return Samples({"x": MemoryColumn(values), "seen": MemoryColumn(-values)}, WindowRows.of(windows, 2))


def test_the_windows_of_two_sets_are_those_of_each_one_after_another():
    parts = [samples_of((4, 9, 2), 0), samples_of((7, 3), 1)]
    columns = {key: join([part.columns[key] for part in parts]) for key in ("x", "seen")}
    joined = Samples(columns, WindowRows.joined([part.rows for part in parts]))
    assert len(joined) == len(parts[0]) + len(parts[1])
    found = joined.fetch(torch.arange(len(joined)))
    each = [part.fetch(torch.arange(len(part))) for part in parts]
    assert torch.equal(found.x, torch.cat([one.x for one in each]))
    assert torch.equal(found.cond["seen"], -found.x[:, :2])
    assert torch.equal(found.mask, torch.cat([one.mask for one in each]))
    assert joined.count_valid(torch.arange(len(joined))) == int(found.mask.sum())


def test_the_mask_is_true_everywhere_where_padding_is_trained_on():
    windows = make_windows(np.array([4, 9]), 6, 1, 3)
    rows = WindowRows.of(windows, 2, mask_padding=False)
    ids = torch.arange(len(rows))
    assert rows.mask(rows.begins).all() and rows.count_valid(ids) == 6 * len(rows)
    assert not WindowRows.of(windows, 2).mask(rows.begins).all()
