import shutil

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError, UnwritableError
from dp_prior_streams import mapped_numbers
from dp_prior_streams.mapped_trajectories import MappedTrajectories
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.recorded_sets import config_of, created


def test_the_numbers_are_written_once_and_again_when_they_are_damaged(tmp_path, monkeypatch):
    config, calls = config_of("npz", tmp_path), []
    read = mapped_numbers.read_selected
    monkeypatch.setattr(mapped_numbers, "read_selected", lambda *args: (calls.append(args), read(*args))[1])
    first = created(config, MappedTrajectories)
    created(config, MappedTrajectories)
    assert len(calls) == 1
    file = first._numbers.directory / "state.f4"
    file.write_bytes(file.read_bytes()[:-4])
    assert created(config, MappedTrajectories).fingerprint == first.fingerprint and len(calls) == 2
    shutil.rmtree(first._numbers.directory)
    first._numbers.directory.with_name(f"{first._numbers.directory.name}.incomplete").mkdir()
    created(config, MappedTrajectories)
    created(config.model_copy(update={"stride": 2}), MappedTrajectories)
    assert len(calls) == 4
    names = [path.name for path in (tmp_path / ".dp_prior_frames").iterdir()]
    assert len([name for name in names if not name.endswith(".lock")]) == 2


def test_the_problems_of_all_groups_are_one_report(tmp_path, in_groups):
    config = config_of("zarr", tmp_path)
    state = pytest.importorskip("zarr").open_array(tmp_path / "set.zarr/data/state")
    state[40, 1] = state[590, 1] = np.nan
    with pytest.raises(DataError) as error:
        created(config, MappedTrajectories)
    assert told(str(error.value), "obs.state", "episode 1", "frame 10", "nan")
    assert told(str(error.value), "obs.state", "episode 19", "frame 20", "nan")
    assert not [path for path in (tmp_path / ".dp_prior_frames").iterdir() if path.suffix != ".lock"]


def test_a_full_disk_is_told_before_anything_is_read(tmp_path, monkeypatch):
    config = config_of("npz", tmp_path)
    monkeypatch.setattr(mapped_numbers.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 100))
    with pytest.raises(UnwritableError, match=naming("12,000 bytes", "data.frame_cache", "split.max_rows")):
        created(config, MappedTrajectories)


def test_numbers_move_to_an_accelerator_as_those_in_memory(tmp_path):
    config = config_of("npz", tmp_path)
    expected, data = created(config), created(config, MappedTrajectories)
    for key, column in data.train.columns.items():
        assert column.n_bytes == expected.train.columns[key].n_bytes and column.to("cpu") is column
        assert torch.equal(column.in_memory("cpu").values, expected.train.columns[key].values)
