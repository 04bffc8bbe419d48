"""Episodes that are stored apart are read as one data set."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.convert import convert
from dp_prior.data.formats.recognition import kind_of, record_of
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from tests.data.formats.episodes_apart import (
    CAMERA,
    LENGTHS,
    joined,
    write_groups,
    write_hdf5_files,
    write_npz_files,
)
from tests.data.frames.recordings import ends_of
from tests.data.frames.sources import gathered

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")

LAYOUTS = {
    "arrays": (lambda place: write_hdf5_files(place / "d"), 0),
    "padded rows": (lambda place: write_hdf5_files(place / "d", "rows"), 0),
    "texts": (lambda place: write_hdf5_files(place / "d", "texts"), 0),
    "npz": (lambda place: write_npz_files(place / "d"), 0),
    "groups": (lambda place: write_groups(place / "d.h5"), 1),
}


@pytest.fixture(params=LAYOUTS)
def layout(request, tmp_path):
    """The store, found by its files alone, and how many observations more than actions it has."""
    write, more = LAYOUTS[request.param]
    path = write(tmp_path)
    return record_of(kind_of(path), path).create(), more


def test_rows_are_those_of_the_episodes_one_after_another(layout):
    store, more = layout
    assert store.episode_ends.tolist() == ends_of(LENGTHS).tolist()
    assert store.keys() == {"action": (3,), "observations/qpos": (2,), "observations/arms": (2, 2), CAMERA: (24, 32, 3)}
    for key in ("action", "observations/qpos", "observations/arms"):
        np.testing.assert_array_equal(store.read(key), joined(key, more))
    numbers, ends = np.array([1, 4, 10]), store.episode_ends
    rows = np.concatenate([np.arange(ends[n] - LENGTHS[n], ends[n]) for n in numbers])
    np.testing.assert_array_equal(
        store.episodes("observations/qpos", ends, numbers), joined("observations/qpos", more)[rows]
    )


def test_frames_are_those_of_the_rows_and_may_be_skipped(layout):
    store, more = layout
    assert list(store.cameras()) == [CAMERA]
    source = store.frames(CAMERA, store.episode_ends)
    np.testing.assert_array_equal(gathered(source), joined(CAMERA, more))
    kept = np.concatenate([np.arange(LENGTHS[n]) >= 1 for n in range(len(LENGTHS))])
    np.testing.assert_array_equal(gathered(source, skip=1)[kept], joined(CAMERA, more)[kept])


def test_it_is_converted_and_what_is_not_is_named(layout, tmp_path):
    pytest.importorskip("zarr")
    store, more = layout
    line = convert(store.path, tmp_path / "out.zarr", "zarr")
    found = ZarrStoreConfig(path=tmp_path / "out.zarr").create()
    for key in ("action", "observations/arms"):
        np.testing.assert_array_equal(found.read(key), joined(key, more))
    np.testing.assert_array_equal(gathered(found.frames(CAMERA, found.episode_ends)), joined(CAMERA, more))
    for name in store.unread():
        assert f"{name}: not converted; float64 of shape (2, 50) in the first episode, which has 3 steps" in line


def test_episodes_that_differ_are_named(tmp_path):
    path = write_hdf5_files(tmp_path / "d")
    with h5py.File(path / "episode_2.hdf5", "a") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((2, 5), np.float32)
    with h5py.File(path / "episode_7.hdf5", "a") as file:
        del file["observations/qpos"]
    store = record_of("episode_files", path).create()
    with pytest.raises(DataError) as caught:
        store.read("observations/qpos")
    first, second = caught.value.problems
    assert first.endswith(
        "episode_2.hdf5[observations/qpos] holds float32 of shape (2, 5); expected float32 of shape (2, 2)"
    )
    assert second.endswith(f"has no 'observations/qpos', but {path / 'episode_0.hdf5'} has one")
    with h5py.File(path / "episode_3.hdf5", "a") as file:
        del file["action"]
    with pytest.raises(DataError, match="episode_3.hdf5 has no array 'action'"):
        record_of("episode_files", path).create()
