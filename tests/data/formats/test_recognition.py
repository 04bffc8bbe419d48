"""The format of a data set by its files."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.recognition import kind_of, known_kind, record_of
from tests.messages import naming

FILES = {
    "d.npz": "npz", "d.hdf5": "robomimic", "d.h5": "robomimic", "d.zip": "zarr", "d/.zgroup": "zarr",
    "e/zarr.json": "zarr", "f/meta/info.json": "lerobot", "d.csv": None, "g/data.bin": None,
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_known_by_its_files(name, tmp_path):
    path, kind = tmp_path / name, FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({}))
    place = tmp_path / name.split("/")[0]
    assert known_kind(place) == kind
    if kind is None:
        with pytest.raises(DataError, match=naming("LeRobot", "zarr", ".npz", ".hdf5", "docs/data.md#layouts")):
            kind_of(place)
    else:
        assert kind_of(place) == kind and record_of(kind, place).type == kind
        with pytest.raises(DataError, match=naming(place)):
            kind_of(tmp_path)


def test_a_path_without_anything_and_an_unknown_type_or_setting_are_named(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path / "none")):
        kind_of(tmp_path / "none")
    assert known_kind(tmp_path / "none") is None
    with pytest.raises(
        ConfigError, match=naming("episodes.type", "'zar'", "'zarr'", "'npz'", "'lerobot'", "'robomimic'")
    ):
        record_of("zar", tmp_path)
    with pytest.raises(ConfigError, match=naming("episodes.dat", "'data'")):
        record_of("zarr", tmp_path, ["dat=x"])
