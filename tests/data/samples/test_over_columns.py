"""Samples over columns: one gather per column and batch, wherever the columns lie."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.recorded.windows import WindowRows, make_windows
from dp_prior.data.samples.loader import Loader
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.samples.row_selection import EachRow
from tests.data.columns.test_columns import ArrayOnDisk


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_pictures_on_disk_stand_under_windows_beside_states(device):
    """uint8 all the way; the pictures stay on disk where the states move to the device."""
    random, lengths, horizon, n_obs_steps = np.random.default_rng(0), np.array([9, 3, 14]), 6, 2
    pictures = random.integers(0, 256, (26, 8, 7, 3)).astype(np.uint8)
    states = random.normal(size=(26, 4)).astype(np.float32)
    windows = make_windows(lengths, horizon, n_obs_steps - 1, 2)
    source = torch.from_numpy(windows.source)
    camera = ArrayOnDisk(pictures)
    columns = {
        "state": MemoryColumn(torch.from_numpy(states)).taking(source),
        "camera": camera.taking(source),
        "x": MemoryColumn(torch.from_numpy(states[:, :2])).taking(source),
    }
    reads = []
    rows = camera.rows
    camera.rows = lambda ids: reads.append(len(ids)) or rows(ids)
    samples = Samples(columns, WindowRows.of(windows, n_obs_steps)).to(device)
    loader = Loader(samples, batch_size=5, accumulation=1, seed=0, rank=0, world_size=1, device=device)
    (batch,) = loader.global_batch(0)
    assert reads == [5 * n_obs_steps]  # one gather per batch
    assert {part.device.type for part in (batch.x, batch.mask, batch.ids, *batch.cond.values())} == {device}
    assert batch.cond["camera"].dtype == torch.uint8 and batch.cond["camera"].shape == (5, n_obs_steps, 8, 7, 3)
    assert samples.device.type == "cpu"
    if device == "cpu":
        for row, window in enumerate(batch.ids.tolist()):
            start = windows.first[window]
            steps = windows.source[start : start + horizon]
            assert np.array_equal(batch.cond["camera"][row], pictures[steps[:n_obs_steps]])
            assert np.array_equal(batch.cond["state"][row], states[steps[:n_obs_steps]])
            assert np.array_equal(batch.x[row], states[steps, :2])


class CountedColumn(MemoryColumn):
    """Counts gathers."""

    gathers = 0

    def rows(self, ids):
        self.gathers += 1
        return super().rows(ids)


def test_a_batch_gathers_every_column_once_and_reads_nothing_that_lies_in_memory():
    columns = {key: CountedColumn(torch.arange(12).view(6, 2)) for key in ("x", "seen")}
    samples = Samples(columns, EachRow(6, (2,)))
    assert not samples.reads_disk and samples.read(torch.arange(6)) == {}
    for count in (1, 2):
        batch = samples.fetch(torch.tensor([5, 0, 5]))
        assert [column.gathers for column in columns.values()] == [count, count]
    assert torch.equal(batch.x, batch.cond["seen"]) and batch.x.tolist() == [[10, 11], [0, 1], [10, 11]]


def test_a_cut_sees_each_batch_unless_whole_samples_are_wanted():
    class Doubled:
        def __call__(self, batch, random=None):
            return replace(batch, x=2 * batch.x)

        def seeing(self, keys):
            return self

    samples = Samples({"x": MemoryColumn(torch.arange(4.0)[:, None])}, EachRow(4), Doubled())
    assert samples.fetch(torch.tensor([3])).x.item() == samples.seeing([]).fetch(torch.tensor([3])).x.item() == 6
    assert samples.to("cpu").cached(2, 2).fetch(torch.tensor([3])).x.item() == 6
    assert samples.whole().fetch(torch.tensor([3])).x.item() == 3


def test_a_cut_of_some_conditions_sees_those_alone():
    class Named:
        def __init__(self, keys):
            self.keys = keys

        def __call__(self, batch, random=None):
            assert batch.cond.keys() == self.keys
            return batch

        def seeing(self, keys):
            return Named(self.keys & set(keys))

    columns = {key: MemoryColumn(torch.arange(4.0)[:, None]) for key in ("x", "near", "far")}
    samples, row = Samples(columns, EachRow(4), Named({"near", "far"})), torch.tensor([3])
    assert [*samples.fetch(row).cond] == ["near", "far"] and [*samples.seeing(["far"]).fetch(row).cond] == ["far"]
    assert samples.seeing(["far"]).cut.keys == {"far"} and Samples(columns, EachRow(4)).seeing(["far"]).cut is None
