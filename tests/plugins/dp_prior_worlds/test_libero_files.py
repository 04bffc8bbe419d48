"""LIBERO's files: an observation with the action that follows, upright pictures, and the instruction of each task."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.data.errors import DataError
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_foreign.recognition import kind_of, record_at
from dp_prior_studio.inspection.beside_episodes import rows_begin_at_the_bottom
from dp_prior_worlds.libero_files import LiberoStoreConfig
from tests.data.frames.sources import gathered
from tests.messages import naming, told
from tests.plugins.dp_prior_worlds.libero_recording import (
    LENGTHS,
    TASKS,
    action,
    observation,
    picture,
    write_suite,
    write_task,
)

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")

NAMES = sorted(TASKS)  # in the order of the files

STEPS = [(demonstration, step) for demonstration, length in enumerate(LENGTHS) for step in range(1, length)]
"""The demonstration and the step of every row of a task that is read: nothing is observed before step 1."""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where LIBERO's Python may be
    return write_suite(tmp_path / "libero_object")


def opened(path, **fields):
    return LiberoStoreConfig(path=path, **fields).create()


def test_an_observation_has_the_action_that_follows_and_the_state_at_its_time(suite):
    store = opened(suite)
    assert np.diff(store.episode_ends, prepend=0).tolist() == [length - 1 for length in LENGTHS] * 2
    expected = np.array([observation(*place) for place in STEPS] * 2)
    np.testing.assert_array_equal(store.read("obs/ee_states"), expected)
    np.testing.assert_array_equal(store.read("robot_states"), expected[:, :4])
    np.testing.assert_array_equal(store.read("actions"), [action(*place) for place in STEPS] * 2)
    np.testing.assert_array_equal(store.read("states")[:, 0], [step for _, step in STEPS] * 2)
    np.testing.assert_array_equal(store.read("states")[:, 1:], expected)
    ends = np.zeros(len(expected), bool)
    ends[store.episode_ends - 1] = True
    np.testing.assert_array_equal(store.read("dones"), ends)


@pytest.mark.parametrize("convention", ["opengl", "opencv"])
def test_pictures_are_upright_however_they_are_stored(tmp_path, convention):
    store = opened(write_suite(tmp_path / "suite", convention=convention))
    ends, problems = store.checked_ends()
    assert not problems and store.cameras() == {"obs/agentview_rgb": (8, 8, 3), "obs/eye_in_hand_rgb": (8, 8, 3)}
    expected = np.stack([picture(*place)[::-1] for place in STEPS] * 2)
    np.testing.assert_array_equal(gathered(store.frames("obs/agentview_rgb", ends)), expected)
    np.testing.assert_array_equal(store.read("obs/eye_in_hand_rgb"), expected + 1)
    for pictures, turned in {"rotated": expected[:, :, ::-1], "opengl": expected[:, ::-1]}.items():
        store = opened(tmp_path / "suite", pictures=pictures)
        np.testing.assert_array_equal(gathered(store.frames("obs/agentview_rgb", ends)), turned)
        assert store.describe() != opened(tmp_path / "suite").describe()  # which names the cache of frames


def test_the_environment_of_a_suite_is_that_of_its_tasks(suite, tmp_path):
    expected = {"type": "libero", "suite": "libero_object", "pictures": "rotated"}
    assert opened(suite, pictures="rotated").environment() == expected
    write_task(suite / "other_demo.hdf5", NAMES[0])
    with h5py.File(suite / "other_demo.hdf5", "a") as file:
        file["data"].attrs["bddl_file_name"] = "bddl_files/libero_goal/other.bddl"
    assert opened(suite).environment() is None


def test_every_frame_has_the_instruction_and_the_name_of_its_task(suite):
    store = opened(suite)
    assert store.texts() == dict(enumerate(TASKS[name] for name in NAMES))
    assert store.read("task_index").tolist() == [0] * len(STEPS) + [1] * len(STEPS)
    assert store.read("task").tolist() == [NAMES[0]] * len(STEPS) + [NAMES[1]] * len(STEPS)
    assert store.metadata()["fps"] == 20


def test_a_task_is_a_part_by_which_data_are_chosen_and_split(suite):
    assert opened(suite).parts() == {NAMES[0]: [0, 1, 2], NAMES[1]: [3, 4, 5]}
    data = {
        "episodes": {"type": "libero", "path": str(suite)},
        "obs": {"hand": {"key": "obs/ee_states"}},
        "action": {"key": "actions"},
        "split": {"parts": {"train": [NAMES[1]], "val": [NAMES[0]]}},
    }
    split = TrajectoriesConfig(**data).create(2, 1, 1)
    assert len(split.train) == len(split.val) > 0


def test_further_recordings_of_a_task_belong_to_its_part(suite):
    write_task(suite / "recorded_later_demo.hdf5", NAMES[0])
    store = opened(suite)
    assert store.parts() == {NAMES[0]: [0, 1, 2, 6, 7, 8], NAMES[1]: [3, 4, 5]}
    still = [place for place in STEPS if place[1] == 2]
    text = "\n".join(store.remarks())
    assert told(text, f"{3 * len(still)} of {3 * len(STEPS)}", NAMES[0], NAMES[1])


def test_a_suite_and_one_of_its_files_are_recognised(suite, tmp_path):
    file = suite / f"{NAMES[0]}_demo.hdf5"
    assert kind_of(suite) == kind_of(file) == "libero"
    assert opened(file).texts() == {0: TASKS[NAMES[0]]}
    with h5py.File(tmp_path / "robomimic_demo.hdf5", "w") as other:
        other["data/demo_0/actions"] = np.zeros((3, 2))
    assert kind_of(tmp_path / "robomimic_demo.hdf5") == "robomimic"
    (tmp_path / "text_demo.hdf5").write_text("no HDF5")
    assert not LiberoStoreConfig.is_at(tmp_path) and not LiberoStoreConfig.is_at(tmp_path / "nothing")


def test_a_copy_without_attributes_tells_its_task_by_its_name_and_keeps_its_rows(tmp_path):
    """OpenVLA's script writes such files: it observes before it acts, and draws with OpenGL."""
    folder = tmp_path / "libero_90_no_noops"
    folder.mkdir()
    path = write_task(folder / f"{NAMES[0]}_demo.hdf5", NAMES[0])
    with h5py.File(path, "a") as file:
        for name in [*file["data"].attrs]:
            del file["data"].attrs[name]
    store = record_at(str(folder)).create()
    assert store.texts() == {0: TASKS[NAMES[0]]}
    assert np.diff(store.episode_ends, prepend=0).tolist() == [*LENGTHS]
    first = store.read("obs/agentview_rgb")[0]
    np.testing.assert_array_equal(first, picture(0, 1)[::-1])
    assert not any("observed after" in line for line in store.remarks())


def test_what_differs_from_the_files_is_told(suite):
    lines = opened(suite).remarks()
    text = "\n".join(lines)
    assert told(text, "2", "libero", "data.choice", "split.parts")
    assert told(text, "OpenGL", '"upright"', "2 of 2")
    still = [place for place in STEPS if place[1] == 2]
    assert told(text, f"{2 * len(still)} of {2 * len(STEPS)}", f"{len(still) / len(STEPS):.1%}", NAMES[0], NAMES[1])


def test_a_still_step_that_turns_the_gripper_is_no_pause(suite):
    with h5py.File(suite / f"{NAMES[0]}_demo.hdf5", "a") as file:
        for number in range(3):
            file[f"data/demo_{number}/actions"][2, 6] = 1.0
    still = [place for place in STEPS if place[1] == 2]
    text = "\n".join(opened(suite).remarks())
    assert told(text, f"{len(still)} of {2 * len(STEPS)}", NAMES[1]) and not told(text, NAMES[0])


def test_inspect_tells_it_and_proposes_cameras(suite, tmp_path):
    done = CliRunner().invoke(main, ["inspect", str(suite), "--write-config", str(tmp_path / "first.json")])
    assert done.exit_code == 0, done.output
    assert told(done.output, "OpenGL", '"upright"')
    data = json.loads((tmp_path / "first.json").read_text())["data"]
    assert data["episodes"] == {"type": "libero", "path": str(suite)}


def test_frames_are_turned_once_by_the_format_or_by_the_camera(suite, tmp_path):
    file = suite / f"{NAMES[0]}_demo.hdf5"
    done = CliRunner().invoke(main, ["inspect", str(file), "--write-config", str(tmp_path / "first.json")])
    assert done.exit_code == 0, done.output
    images = json.loads((tmp_path / "first.json").read_text())["data"]["images"]
    assert images and not any("turn" in camera for camera in images.values())
    assert rows_begin_at_the_bottom(RobomimicStoreConfig(path=file).create())  # which reads frames as they are
    assert not rows_begin_at_the_bottom(opened(file))


def test_an_instruction_may_stand_in_quotes_or_in_parts(suite):
    path = suite / f"{NAMES[1]}_demo.hdf5"
    for stored in (f'"{TASKS[NAMES[1]]}"', [*TASKS[NAMES[1]]]):
        with h5py.File(path, "a") as file:
            file["data"].attrs["problem_info"] = json.dumps({"language_instruction": stored})
        assert opened(path).texts() == {0: TASKS[NAMES[1]]}


@pytest.mark.parametrize("problem", ["no JSON", "[]", json.dumps({"domain_name": "robosuite"})])
def test_a_task_that_cannot_be_read_is_named(suite, problem):
    with h5py.File(suite / f"{NAMES[1]}_demo.hdf5", "a") as file:
        file["data"].attrs["problem_info"] = problem
    with pytest.raises(DataError, match=naming(f"{NAMES[1]}_demo.hdf5", "'problem_info'", "language_instruction")):
        opened(suite)


def test_a_folder_without_demonstrations_is_named(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path, "*_demo.hdf5", "libero_spatial")):
        opened(tmp_path)
    with pytest.raises(DataError, match=naming("nowhere", "data.episodes.path")):
        opened(tmp_path / "nowhere")


def test_a_damaged_demonstration_is_one_fault(suite):
    with h5py.File(suite / f"{NAMES[0]}_demo.hdf5", "a") as file:
        del file["data/demo_1/actions"]
    _, problems = opened(suite).checked_ends()
    assert any("demo_1" in problem for problem in problems)


def test_it_is_converted_with_its_instructions(suite, tmp_path):
    path = tmp_path / "converted.hdf5"
    done = CliRunner().invoke(main, ["convert", str(suite), str(path), "--to", "robomimic"])
    assert done.exit_code == 0, done.output
    converted, store = record_at(str(path)).create(), opened(suite)
    assert converted.metadata()["tasks"] == [TASKS[name] for name in NAMES]
    for key in ("actions", "obs/ee_states", "obs/agentview_rgb", "task_index"):
        np.testing.assert_array_equal(converted.read(key), store.read(key))
