"""A folder is taken for one file per episode only after a file was looked into."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_files import EpisodeFilesConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.selection import ActionConfig, KeyConfig, read_selected
from dp_prior_foreign.recognition import kind_of
from tests.data.formats.episodes_apart import write_hdf5_files, write_npz_files
from tests.data.frames.recordings import pictures, write_npz, write_robomimic
from tests.messages import naming, told

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")


def test_a_folder_of_episodes_is_told_from_a_folder_of_data_sets(tmp_path):
    assert kind_of(write_hdf5_files(tmp_path / "a")) == kind_of(write_npz_files(tmp_path / "b")) == "episode_files"
    (tmp_path / "c").mkdir()
    write_robomimic(tmp_path / "c/x.hdf5", pictures(3), [3])
    with pytest.raises(DataError, match=naming("x.hdf5")):
        kind_of(tmp_path / "c")
    (tmp_path / "d").mkdir()
    write_npz(tmp_path / "d/x.npz", pictures(3), [3])
    with pytest.raises(DataError, match=naming("x.npz")):
        kind_of(tmp_path / "d")


def test_npz_files_without_actions_are_episodes_if_they_hold_vectors_over_time(tmp_path):
    for name, arrays in {
        "taught": {"pose": np.zeros((9, 6)), "gripper": np.zeros((9, 1))},
        "images": {"images": np.zeros((9, 8, 8, 3)), "labels": np.zeros(9)},
        "bytes": {"data": np.zeros((9, 48), np.uint8), "labels": np.zeros(9, int)},
    }.items():
        (tmp_path / name).mkdir()
        for number in range(3):
            np.savez(tmp_path / name / f"{number}.npz", **arrays)
    (tmp_path / "taught/0.npz").write_bytes(b"damaged")
    assert kind_of(tmp_path / "taught") == "episode_files"
    assert not any(EpisodeFilesConfig.is_at(tmp_path / name) for name in ("images", "bytes"))


def test_a_file_of_another_layout_is_answered_with_what_is_inside_and_the_way_out(tmp_path):
    path = write_hdf5_files(tmp_path / "a") / "episode_0.hdf5"
    with pytest.raises(DataError, match=naming("action (3, 3)", "episode", "folder")):
        kind_of(path)
    npz = write_npz_files(tmp_path / "b") / "episode_0.npz"
    with pytest.raises(DataError, match=naming("episode_0.npz", "'episode_ends'", "observations/arms", "folder")):
        NpzStoreConfig(path=npz).create()


def test_only_some_files_and_another_key_of_steps_may_be_named(tmp_path):
    path = write_npz_files(tmp_path / "b")
    np.savez(path / "calibration.npz", pose=np.zeros((7, 2)))
    store = EpisodeFilesConfig(path=path, files="episode_*", steps="observations/qpos").create()
    assert len(store.episode_ends) == 11
    with pytest.raises(DataError, match=naming("x*", ".hdf5", ".h5", ".npz")):
        EpisodeFilesConfig(path=path, files="x*").create()
    for pattern in (str(path / "*.npz"), "", "."):
        with pytest.raises(DataError, match=naming(path, "files", repr(pattern), "*.npz")):
            EpisodeFilesConfig(path=path, files=pattern).create()


def test_arrays_of_python_objects_and_damaged_files_are_refused_by_name(tmp_path):
    path = write_npz_files(tmp_path / "b")
    np.savez(path / "episode_0.npz", action=np.zeros((3, 3)), notes=np.array(["a", None, 1], dtype=object))
    with pytest.raises(DataError, match=naming("episode_0.npz[notes]", "Python objects")):
        EpisodeFilesConfig(path=path, files="episode_0*").create().read("notes")
    file = path / "episode_1.npz"
    file.write_bytes(file.read_bytes()[:200])
    _, problems = EpisodeFilesConfig(path=path).create().checked_ends()
    assert told(problems[0], "episode_1.npz", "readable")
    with pytest.raises(DataError, match=naming("episode_1.npz", ".npz", "files", "steps")):
        EpisodeFilesConfig(path=path, files="episode_1.*").create()


def test_arrays_in_fortran_order_are_read_as_any_others(tmp_path):
    actions = np.arange(24.0).reshape(8, 3)
    (tmp_path / "d").mkdir()
    for number, rows in enumerate((actions[:5], actions[5:])):
        np.savez(tmp_path / f"d/{number}.npz", action=np.asfortranarray(rows))
    np.testing.assert_array_equal(EpisodeFilesConfig(path=tmp_path / "d").create().read("action"), actions)


def test_files_without_a_key_of_that_name_have_the_steps_that_most_arrays_have(tmp_path):
    """As RoboTwin records: joint_action/vector, endpose/left, observation/head_camera/rgb."""
    (tmp_path / "d").mkdir()
    for number, length in enumerate((5, 3)):
        with h5py.File(tmp_path / f"d/episode{number}.hdf5", "w") as file:
            file["joint_action/vector"], file["endpose/left"] = np.zeros((length, 14)), np.ones((length, 7))
            file["calibration"] = np.eye(4)
    assert kind_of(tmp_path / "d") == "episode_files"
    store = EpisodeFilesConfig(path=tmp_path / "d").create()
    assert store.episode_ends.tolist() == [5, 8] and sorted(store.keys()) == ["endpose/left", "joint_action/vector"]
    with h5py.File(tmp_path / "d/odd.hdf5", "w"):
        pass
    _, problems = EpisodeFilesConfig(path=tmp_path / "d").create().checked_ends()
    assert told(problems[0], "odd.hdf5", "no steps")
    assert told(problems[1], "episode", "files")


def test_files_in_folders_of_the_same_name_are_in_the_order_of_the_numbers_of_these(tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"d/{number}").mkdir(parents=True)
        np.savez(tmp_path / f"d/{number}/take.npz", action=np.full((2, 1), number))
    store = EpisodeFilesConfig(path=tmp_path / "d", files="*/take.npz").create()
    assert store.read("action")[::2, 0].tolist() == [1, 9, 10]


def test_a_key_of_later_episodes_alone_has_a_line(tmp_path):
    for number in range(3):
        more = {"top": pictures(5)} if number else {}
        np.savez(tmp_path / f"{number}.npz", action=np.zeros((5, 2)), state=np.zeros((5, 3)), **more)
    store = EpisodeFilesConfig(path=tmp_path).create()
    (line,) = store.unread().values()
    assert told(line, "2 of 3", "files", "groups")
    assert set(EpisodeFilesConfig(path=tmp_path, files="[12].npz").create().keys()) == {"action", "state", "top"}


def test_files_and_folders_beside_the_episodes_have_a_line(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        for name in (f"{number}.npz", f"{number}/take.npz"):
            np.savez(tmp_path / name, action=np.zeros((5, 2)), state=np.zeros((5, 3)))
    for name in ("0.pkl", "1.pkl", "notes.txt", "0.mp4", "1.mp4"):
        (tmp_path / name).touch()
    beside = EpisodeFilesConfig(path=tmp_path).create().unread()
    assert list(beside) == ["*.mp4", "*.pkl", "*.txt", "0/", "1/"]
    assert told(beside["*.pkl"], "0.pkl, 1.pkl") and told(beside["0/"], "data.images")
    assert told(beside["*.mp4"], "0.mp4, 1.mp4", "folder", "data.images")
    others = ["*.mp4", "*.npz", "*.pkl", "*.txt"]
    assert list(EpisodeFilesConfig(path=tmp_path, files="*/take.npz").create().unread()) == others


@pytest.mark.parametrize("kind", ["U", "S"])
def test_texts_of_episodes_may_be_of_any_length(kind, tmp_path):
    texts = ["go", "press the button", "stop"]
    for number, text in enumerate(texts):
        steps = np.full(3 + number, text).astype(kind)
        np.savez(tmp_path / f"{number}.npz", action=np.zeros((len(steps), 2)), said=steps)
    found = EpisodeFilesConfig(path=tmp_path).create().read("said").astype(str).tolist()
    assert found == [text for number, text in enumerate(texts) for _ in range(3 + number)]


def test_a_value_whose_parts_lie_in_several_groups_of_hdf5_files_is_a_list_of_keys(tmp_path):
    left, right = (np.arange(12.0).reshape(6, 2) + offset for offset in (0, 100))
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            for key, values in {
                "left_arm/obs/qpos": left,
                "right_arm/qpos": right,
                "right_arm/grip": left[:, 0],
            }.items():
                file[key] = values + number
            file["left_arm/command/action"], file["right_arm/action"] = left, right
    store = EpisodeFilesConfig(path=tmp_path).create()
    state = KeyConfig(key=("left_arm/obs/qpos", "right_arm/qpos", "right_arm/grip"))
    action = ActionConfig(key=("left_arm/command/action", "right_arm/action"))
    values = read_selected(store, {"state": state, "action": action})[0]
    episode = np.concatenate([left, right, left[:, :1]], axis=1)
    np.testing.assert_array_equal(values["state"], np.concatenate([episode, episode + 1]))
    np.testing.assert_array_equal(values["action"], np.tile(np.concatenate([left, right], axis=1), (2, 1)))
