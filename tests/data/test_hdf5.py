"""Opening HDF5 files."""

import sys

import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.hdf5 import import_h5py, opened_hdf5


def test_a_file_is_read_and_damage_is_told(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["x"] = [1, 2]
    with opened_hdf5(tmp_path / "a.hdf5", "x") as file:
        assert file["x"][()].tolist() == [1, 2]
    (tmp_path / "b.hdf5").write_bytes((tmp_path / "a.hdf5").read_bytes()[:50])
    with pytest.raises(DataError, match=r"b.hdf5: 1 problem\s+x cannot be read"), opened_hdf5(tmp_path / "b.hdf5", "x"):
        pass


def test_without_h5py_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "dp_prior\[hdf5\]"'):
        import_h5py()
