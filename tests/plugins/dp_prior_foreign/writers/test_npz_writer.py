"""What is written into an .npz file is read back equal; the readers and converters have further laws."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior_foreign.recording import Recording
from tests.messages import naming


def recording(tmp_path):
    arrays = {"state": np.arange(14, dtype=np.float32).reshape(7, 2), "flag": np.arange(7) > 3}
    np.savez(tmp_path / "source.npz", episode_ends=np.array([3, 7]), **arrays)
    return Recording.of(
        NpzStoreConfig(path=tmp_path / "source.npz").create(), renames={}, left_out=[], fps=None
    ), arrays


def test_arrays_and_ends_come_back_and_nothing_is_lost(tmp_path):
    source, arrays = recording(tmp_path)
    record = NpzStoreConfig(path=tmp_path / "new.npz")
    record.write(source)
    store = record.create()
    assert store.episode_ends.tolist() == [3, 7] and record.losses(source) == []
    for key, values in arrays.items():
        np.testing.assert_array_equal(store.read(key), values)


def test_names_that_the_file_cannot_have_are_refused(tmp_path):
    source, _ = recording(tmp_path)
    with pytest.raises(DataError, match=naming("new.zip", ".npz")):
        NpzStoreConfig(path=tmp_path / "new.zip").write(source)
    with pytest.raises(DataError, match=naming("'state'", "--rename")):
        NpzStoreConfig(path=tmp_path / "new.npz", episode_ends="state").write(source)
    assert not (tmp_path / "new.npz").exists()
