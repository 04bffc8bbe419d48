"""Replay buffers as zarr itself reads them; the readers and converters have further laws."""

import json

import numpy as np
import pytest

from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior_foreign.convert import convert
from tests.data.formats.conftest import LENGTHS, TASKS, N, arrays
from tests.data.frames.recordings import ends_of, pictures


def test_zarr_is_read_by_the_package_itself_in_the_layout_of_diffusion_policy(source, tmp_path):
    zarr = pytest.importorskip("zarr")
    convert(source, tmp_path / "d.zarr", "zarr")
    root = zarr.open_group(tmp_path / "d.zarr", mode="r", zarr_format=2)
    assert root["meta/episode_ends"][:].tolist() == ends_of(LENGTHS).tolist()
    assert root["meta/episode_ends"].dtype == np.int64
    for key, values in arrays().items():
        assert np.array_equal(root["data"][key][:], values) and root["data"][key].dtype == values.dtype
    assert np.array_equal(root["data/front"][:], pictures(N))
    assert dict(root["meta"].attrs) == {"fps": 10, "tasks": TASKS, "names": {"actions": ["x", "y"]}}
    assert json.loads((tmp_path / "d.zarr" / ".zgroup").read_text()) == {"zarr_format": 2}


def test_arrays_without_numbers_are_read_back_from_zarr(tmp_path):
    pytest.importorskip("zarr")
    empty = np.zeros((N, 0), np.float32)
    np.savez(tmp_path / "odd.npz", actions=arrays()["actions"], force=empty, episode_ends=ends_of(LENGTHS))
    convert(tmp_path / "odd.npz", tmp_path / "out.zarr", "zarr")
    np.testing.assert_array_equal(ZarrStoreConfig(path=tmp_path / "out.zarr").create().read("force"), empty)
