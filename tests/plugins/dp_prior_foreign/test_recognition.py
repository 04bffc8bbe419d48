"""The format of a data set by its files."""

import json

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior_foreign.recognition import Episodes, kind_of, known_kind, record_at, record_of
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


def test_groups_and_folders_of_other_names_are_answered_with_what_to_write(tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    for number in range(3):
        with h5py.File(tmp_path / "main_data.hdf5", "a") as file:  # as Minari writes
            file[f"episode_{number}/actions"], file[f"episode_{number}/observations"] = [[0.0]] * 4, [[1.0]] * 5
        (tmp_path / f"runs/{number}").mkdir(parents=True)
        np.savez(tmp_path / f"runs/{number}/take.npz", action=np.zeros((4, 1)), state=np.ones((4, 2)))
    for place, told in (("main_data.hdf5", {"groups": "episode_*"}), ("runs", {"files": "*/take.npz"})):
        with pytest.raises(DataError, match=naming(place, *told, *told.values())) as error:
            kind_of(tmp_path / place)
        written = error.value.problems[0].partition("probably ")[2]
        store = Episodes.from_json(written).episodes.create()
        assert store.episode_ends.tolist() == [4, 8, 12] and len(store.keys()) == 2


@pytest.mark.parametrize("name", ["take_{}.npz", "day/{}/take.npz"])
def test_episodes_far_below_a_folder_are_answered_with_the_folder_to_name(name, tmp_path):
    train = tmp_path / "task/success/train"
    for number in range(2):
        file = train / name.format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, action=np.zeros((4, 1)), state=np.ones((4, 2)))
    with pytest.raises(DataError, match=naming(train, "name")):
        kind_of(tmp_path)


def test_groups_of_robomimic_without_actions_are_groups_of_any_file(tmp_path):
    """RoboTurk has the groups of robosuite, and calls what was done joint_velocities and gripper_actuations."""
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    for name, kind in (("joint_velocities", None), ("actions", "robomimic")):
        file = tmp_path / f"{name}.hdf5"
        with h5py.File(file, "w") as stored:
            for number in range(2):
                stored[f"data/demo_{number}/{name}"], stored[f"data/demo_{number}/states"] = [[0.0]] * 4, [[1.0]] * 4
        assert known_kind(file) == kind
    store = record_at(str(tmp_path / "joint_velocities.hdf5")).create()
    assert store.episode_ends.tolist() == [4, 8] and {*store.keys()} == {"joint_velocities", "states"}


def test_a_folder_of_no_format_is_answered_with_what_it_holds(tmp_path):
    for name in ("demo_0.pkl", "demo_1.pkl"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=naming("demo_0.pkl, demo_1.pkl", "docs/own_data.md#other-files")):
        kind_of(tmp_path)


@pytest.mark.parametrize("place", ["d", "d/00000.tar"])
def test_archives_are_answered_with_the_file_to_unpack(tmp_path, place):
    (tmp_path / "d").mkdir()
    for name in ("00000.tar", "00001.tar"):
        (tmp_path / "d" / name).touch()
    with pytest.raises(DataError, match=naming(place, "unpack", "00000.tar")):
        kind_of(tmp_path / place)


def test_a_folder_of_tables_without_an_action_is_answered_with_the_columns_that_hold_none(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from pyarrow import parquet

    (tmp_path / "d").mkdir()
    for number in range(2):
        columns = {"state": [[1.0], [2.0]], "action": [{"x": 1.0, "y": 2.0}] * 2}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"d/{number}.parquet")
    expected = json.dumps({"episodes": {"type": "episode_files", "path": str(tmp_path / "d")}})
    with pytest.raises(DataError, match=naming("state (2, 1)", "[action]", "struct<x: double, y: double>", expected)):
        kind_of(tmp_path / "d")


@pytest.mark.parametrize("name", ["0.CSV", "b.NPZ", "c.Hdf5"])
def test_endings_in_upper_case_are_answered_with_the_file_to_rename(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=naming("rename", name)):
        kind_of(tmp_path)


def test_a_table_of_all_episodes_is_answered_with_how_to_split_it(tmp_path):
    (tmp_path / "all.csv").write_text("episode,a0\n0,1\n1,2\n")
    with pytest.raises(DataError, match=naming("split", "all.csv", "docs/own_data.md#other-files")):
        kind_of(tmp_path / "all.csv")


def arrays_of_zarr(path, **arrays):
    zarr = pytest.importorskip("zarr", reason="NOT CHECKED: the extra zarr is not installed")
    root = zarr.open_group(path, mode="w")
    for name, values in arrays.items():
        root.create_array(name, data=np.asarray(values))


@pytest.mark.parametrize("prefix", ["", "d/"])
def test_a_zarr_whose_arrays_have_other_places_is_answered_with_the_configuration(tmp_path, prefix):
    rows = {f"{prefix}{name}": np.ones((6, 2)) for name in ("action", "state", "pose")}
    arrays_of_zarr(tmp_path / "a.zarr", **rows, **{"episode_ends": [2, 6]})
    with pytest.raises(DataError, match=naming("a.zarr", '"episode_ends": "episode_ends"')) as error:
        record_at(str(tmp_path / "a.zarr"))
    store = Episodes.from_json(error.value.problems[0].partition("probably ")[2]).episodes.create()
    assert store.episode_ends.tolist() == [2, 6] and {"action", "state", "pose"} <= {*store.keys()}


def test_a_zarr_for_each_episode_is_no_data_set_and_the_remedy_is_named(tmp_path):
    for number in range(2):
        arrays_of_zarr(tmp_path / f"d/episode_{number}.zarr", action=np.ones((4, 2)), state=np.ones((4, 3)))
    arrays_of_zarr(tmp_path / "e.zarr", **{f"episode_{number}/action": np.ones((4, 2)) for number in range(2)})
    for place in ("d", "e.zarr"):
        with pytest.raises(DataError, match=naming("action", ".npz", "docs/own_data.md#other-files")):
            record_at(str(tmp_path / place))


def test_arrays_of_episodes_and_steps_are_answered_with_how_to_join_them(tmp_path):
    arrays = {"action": np.arange(24.0).reshape(3, 4, 2), "state": np.zeros((3, 4, 5))}
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataError, match=naming("d.npz", "action (3, 4, 2)", "np.arange(1, 4) * 4")):
        record_at(str(tmp_path / "d.npz"))
    joined = {key: np.concatenate(array) for key, array in arrays.items()}
    np.savez(tmp_path / "d.npz", **joined, episode_ends=np.arange(1, 4) * 4)
    assert record_at(str(tmp_path / "d.npz")).create().episode_ends.tolist() == [4, 8, 12]


def test_lists_of_episodes_in_objects_are_named(tmp_path):
    lists = np.empty(2, object)
    lists[:] = [np.zeros((4, 2)), np.zeros((5, 2))]
    np.savez(tmp_path / "d.npz", action=lists)
    with pytest.raises(DataError, match=naming("d.npz", "action", "docs/own_data.md#other-files")):
        record_at(str(tmp_path / "d.npz"))
