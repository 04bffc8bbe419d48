"""Every key of a data set has a line, or is read."""

import json

import numpy as np
import pytest

from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior_studio.inspection.inspect import inspect, write_config
from dp_prior_studio.inspection.proposal import propose
from dp_prior_studio.inspection.survey import survey
from dp_prior_studio.inspection.unused import action_hint, unused_keys
from dp_prior_studio.pages.data_page import summary
from tests.data.formats.conftest import N as ROWS
from tests.data.frames.recordings import ends_of
from tests.messages import naming, told
from tests.tiny import tiny

N = 30


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "state": random.normal(size=(N, 2, 3)),
        "previous_pose": random.normal(size=(N, 3)),
        "reward": np.zeros(N),
        "env_states": random.normal(size=(N, 9)),
        "captions": np.array(["a"] * N),
        "objects": np.array([None] * N, dtype=object),
        "depth": np.ones((N, 16, 16), np.uint16),
        "object_mask": np.ones((N, 16, 16), np.uint8),
        "cloud": random.normal(size=(N, 512, 6)).astype(np.float32),
        "picture": random.integers(0, 256, (N, 16, 16, 3), dtype=np.uint8),
        "pose_command": random.normal(size=(N, 3)),
        "grip_command": random.normal(size=N) > 0,
    }


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays(), episode_ends=ends_of([12, 18]))
    return tmp_path / "d.npz"


def test_every_key_is_read_or_has_a_line(path):
    (found,) = inspect(str(path))
    lines = summary([found])
    for key in arrays():
        assert any(key in line for line in lines if not line.startswith("note")), key
    said = {line.split()[2].rstrip(":"): line for line in lines if line.startswith("not used")}
    for key, words in {
        "previous_pose": ("float64 (3,)", "another action"), "reward": ("about success",), "env_states": ("simulator",),
        "captions": ("texts", "data.language"), "objects": ("never decoded",),
        "object_mask": ("data.images",), "pose_command": ("another action", "data.action"),
    }.items():  # fmt: skip
        assert told(said[key], *words), said[key]


def test_without_an_action_the_lines_to_write_are_given(path, tmp_path):
    found = inspect(str(path))
    line = """--set 'data.action.key=["pose_command", "grip_command"]'"""
    assert any(line in text for text in summary(found))
    with pytest.raises(ValueError, match=naming("d.npz", "data.action", "docs/data.md")) as caught:
        write_config(found, tmp_path / "c.json")
    assert line in str(caught.value)
    assert action_hint({"state": (3,)}, ["state"]).endswith("""--set 'data.action={"key": "state", "ahead": 1}'""")
    assert action_hint({}, []) == ""


def test_times_and_marks_of_success_are_neither_observations_nor_actions(tmp_path):
    rows = np.random.default_rng(0).normal(size=(N, 3))
    beside = {"observation.controller.success": rows[:, 0], "observation.timestamp.control": rows[:, 1]}
    np.savez(
        tmp_path / "d.npz",
        **{"observation.joints": rows, "control.joints": rows},
        **beside,
        episode_ends=ends_of([12, 18]),
    )
    (found,) = inspect(str(tmp_path / "d.npz"))
    assert [signal.key for signal in found.survey.of("observation")] == ["observation.joints"]
    assert found.survey.action_hint.endswith("""--set 'data.action.key="control.joints"'""")


def test_the_keys_that_a_format_counts_are_one_line(tmp_path):
    pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from dp_prior_foreign.convert import convert

    rows = {"action": np.zeros((ROWS, 2)), "state": np.zeros((ROWS, 3))}
    np.savez(tmp_path / "d.npz", **rows, episode_ends=ends_of([ROWS]))
    convert(tmp_path / "d.npz", tmp_path / "d", "lerobot", fps=10)
    (found,) = inspect(str(tmp_path / "d"))
    assert told(found.survey.unused["index, episode_index, frame_index, timestamp"], "episodes")
    assert told(found.survey.unused["task_index"], "number", "instruction")


def test_annotations_of_lerobot_are_told_with_the_keys_of_their_texts(tmp_path):
    """Its columns of type `language` hold a list of messages for each step."""
    pytest.importorskip("pyarrow", reason="NOT CHECKED: the extra lerobot is not installed")
    from dp_prior_foreign.convert import convert

    np.savez(tmp_path / "d.npz", action=np.zeros((ROWS, 2)), state=np.zeros((ROWS, 3)), episode_ends=ends_of([ROWS]))
    convert(tmp_path / "d.npz", tmp_path / "d", "lerobot", fps=10)
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    info["features"]["language_events"] = {"dtype": "language", "shape": [1], "names": None}
    (tmp_path / "d/meta/info.json").write_text(json.dumps(info))
    (found,) = inspect(str(tmp_path / "d"))
    line = found.survey.unused["language_events"]
    assert told(line, "language", "annotations") and "data.language" not in line
    assert told(found.survey.unused["language_events.interjection"], "interjection", "data.language")
    assert "language_events.interjection" not in "".join(found.survey.unused.values())
    assert told(
        unused_keys(LeRobotStoreConfig(path=tmp_path / "d").create(), (), 0, {})["language_events"],
        "language",
        "annotated_lerobot",
        "data.episodes",
    )


def test_robosuite_s_own_file_is_told_what_its_states_are(tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        for number in range(3):
            file[f"data/demo_{number}/actions"] = np.random.default_rng(number).normal(size=(20, 7))
            file[f"data/demo_{number}/states"] = np.random.default_rng(number).normal(size=(20, 32))
    (found,) = inspect(str(tmp_path / "demo.hdf5"))
    assert any("simulator" in str(finding) and "dataset_states_to_obs" in str(finding) for finding in found.findings)


def test_two_axes_are_proposed_and_a_configured_data_set_has_the_same_lines(path):
    seen = survey(NpzStoreConfig(path=path).create())
    assert [(signal.key, signal.values.shape[1]) for signal in seen.of("observation")] == [("state", 6)]
    data = {
        "episodes": {"type": "npz", "path": str(path)},
        "obs": {"hand": {"key": ["state"], "slice": [0, 3]}},
        "action": {"key": ["pose_command", "grip_command"]},
    }
    config = path.with_name("c.json")
    config.write_text(json.dumps(propose("d", data, None)))
    (found,) = inspect(str(config))
    assert [(one.name, one.values.shape[1]) for one in found.survey.signals] == [("hand", 3), ("action", 4)]
    expected = (seen.unused.keys() | {"picture"}) - {"pose_command", "grip_command"}
    assert found.survey.unused.keys() >= expected - {"cloud"} and "cloud" in found.survey.unused


def test_masks_and_splits_are_told(tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    from tests.data.frames.recordings import pictures, write_lerobot, write_robomimic

    with h5py.File(write_robomimic(tmp_path / "d.hdf5", pictures(6), [2, 4]), "a") as file:
        file["mask/train"] = np.array([b"demo_0"])
    (found,) = inspect(str(tmp_path / "d.hdf5"))
    assert told(found.survey.unused["mask/train"], "1 demonstrations", "data.choice")
    path = write_lerobot(tmp_path / "lerobot", pictures(6), [2, 4], "v2.1", "image")
    info = json.loads((path / "meta/info.json").read_text())
    for splits, lines in (({"train": "0:2"}, []), ({"train": "0:1", "val": "1:2"}, ["splits.train", "splits.val"])):
        (path / "meta/info.json").write_text(json.dumps(info | {"splits": splits}))
        (found,) = inspect(str(path))
        assert [name for name in found.survey.unused if name.startswith("splits")] == lines


def test_an_array_with_one_value_per_episode_is_not_offered_as_an_observation(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays(), target_mass=np.ones(2), episode_ends=ends_of([12, 18]))
    seen = survey(NpzStoreConfig(path=tmp_path / "d.npz").create())
    assert told(seen.unused["target_mass"], "each episode") and "data.obs" not in seen.unused["target_mass"]


def test_the_state_of_each_reset_is_no_observation_by_any_name_and_no_fault(tmp_path):
    """As the demonstrations of Adroit hold init_qpos: an observation by its name, with a row for each episode."""
    resets = {"init_qpos": np.ones((2, 30)), "gripper": np.ones((2, 1)), "init_door_body_pos": np.ones((2, 3))}
    np.savez(tmp_path / "d.npz", **arrays(), **resets, episode_ends=ends_of([12, 18]))
    (found,) = inspect(str(tmp_path / "d.npz"))
    assert not found.gaps and not found.refusals()
    assert resets.keys().isdisjoint(entry["key"] for entry in found.data["obs"].values())
    for key in resets:
        assert told(found.survey.unused[key], "each episode")


def test_an_action_with_a_row_for_each_episode_is_a_fault_by_its_name(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays() | {"action": np.ones((2, 2))}, episode_ends=ends_of([12, 18]))
    (found,) = inspect(str(tmp_path / "d.npz"))
    assert any(told(line, "action", "2 rows", f"{N} steps") for line in found.refusals())


def test_complex_numbers_are_called_what_they_are(tmp_path):
    np.savez(tmp_path / "c.npz", state=np.ones((N, 2), np.complex64), action=np.ones((N, 1)), episode_ends=[N])
    seen = survey(NpzStoreConfig(path=tmp_path / "c.npz").create())
    assert told(seen.unused["state"], "real", "imaginary")


def test_a_key_without_numbers_is_called_empty(tmp_path):
    state = np.zeros((6, 2))
    np.savez(tmp_path / "d.npz", state=state, action=state, nothing=state[:, :0], episode_ends=[3, 6])
    assert inspect(str(tmp_path / "d.npz"))[0].survey.unused["nothing"] == "float64 (0,), empty"


def test_states_that_pictures_are_drawn_from_are_read(tmp_path):
    np.savez(
        tmp_path / "d.npz", where=np.zeros((N, 5)), aim=np.zeros((N, 2)), action=np.zeros((N, 2)), episode_ends=[N]
    )
    data = {
        "type": "trajectories",
        "episodes": {"type": "npz", "path": str(tmp_path / "d.npz")},
        "images": {"camera": {"key": "where", "render": {"type": "pusht"}, "size": [96, 96]}},
        "action": {"key": "action"},
    }
    (tmp_path / "cfg.json").write_text(json.dumps(tiny(tmp_path) | {"data": data}))
    (found,) = inspect(str(tmp_path / "cfg.json"))
    assert "aim" in found.survey.unused and "where" not in found.survey.unused


@pytest.mark.parametrize("lengths", [[1, 1, 1], [4, 2, 3]])
def test_a_value_for_each_episode_is_told_as_that_unless_episodes_are_single_steps(tmp_path, lengths):
    rows = np.zeros((sum(lengths), 2))
    np.savez(tmp_path / "d.npz", state=rows, action=rows, grade=np.arange(3.0), episode_ends=ends_of(lengths))
    store = NpzStoreConfig(path=tmp_path / "d.npz").create()
    line = unused_keys(store, {"state", "action"}, 0, {})["grade"]
    assert told(line, "float64 ()", "each episode") == (lengths != [1, 1, 1])
