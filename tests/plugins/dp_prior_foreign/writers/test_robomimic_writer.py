"""Demonstrations as h5py reads them in robomimic's layout; the readers and converters have further laws."""

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.data.errors import DataError
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior_foreign.convert import convert
from tests.data.formats.conftest import LENGTHS, N, arrays
from tests.data.frames.recordings import pictures
from tests.messages import naming, told


def test_robomimic_is_read_by_h5py_in_the_layout_of_robomimic_and_damage_is_noticed(source, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "d.hdf5"
    convert(source, path, "robomimic", renames={"state": "obs/state", "front": "obs/front/rgb"})
    with h5py.File(path) as file:
        assert file["data"].attrs["total"] == N and list(file["data"]) == ["demo_0", "demo_1", "demo_2"]
        begin = 0
        for number, length in enumerate(LENGTHS):
            demonstration = file[f"data/demo_{number}"]
            assert demonstration.attrs["num_samples"] == length
            for key, values in {**arrays(), "front": pictures(N)}.items():
                found = demonstration[{"state": "obs/state", "front": "obs/front/rgb"}.get(key, key)][()]
                assert found.dtype == values.dtype and np.array_equal(found, values[begin : begin + length])
            begin += length
        chunk = file["data/demo_2/obs/state"].id.get_chunk_info(0)
    copies = [tmp_path / "a.hdf5", tmp_path / "b.h5"]
    for copy in copies:
        convert(path, copy, "robomimic")
    assert copies[0].read_bytes() == copies[1].read_bytes()
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=naming("d.hdf5", "demo_2[obs/state]")):
        RobomimicStoreConfig(path=path).create().read("obs/state")


@pytest.mark.parametrize(
    ("renames", "problem"),
    [
        (["actions=action"], ("'actions'", "layout", "--rename action=actions")),
        (["front=actions", "actions=a"], ("no key 'actions'", "layout")),
        (["state=zeros/a"], ("'zeros'", "HDF5", "group", "--rename")),
        (["state=/state"], ("'/state'", "HDF5", "group")),
        (["state=obs/./state"], ("'obs/./state'", "HDF5", "group")),
    ],
)
def test_names_that_hdf5_does_not_have_are_refused_before_anything_is_written(source, tmp_path, renames, problem):
    pytest.importorskip("h5py")
    options = [part for each in renames for part in ("--rename", each)]
    done = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / "out.hdf5"), "--to", "robomimic", *options])
    assert done.exit_code == 65 and told(done.output, *problem)
    assert sorted(tmp_path.iterdir()) == [source]
