"""Roles of keys: what a policy may observe and what is its action, over the layouts of many recorders."""

import json

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
from dp_prior_studio.inspection.inspect import inspect, write_config
from dp_prior_studio.inspection.roles import action_parts, gripper_commands, is_gripper, named_action, unobservable
from tests.faults import assert_none
from tests.messages import naming
from tests.plugins.dp_prior_studio.inspection.layouts import LAYOUTS


def named_keys(entries):
    return {entry["key"] for entry in entries.values()}


def faults_of(layout, path, random):
    """What first settings of a layout name and a policy must not have, and what they lack."""
    (path / "data").mkdir(parents=True)
    expected = layout(path / "data", random)
    inspections = inspect(str(expected.place))
    if not expected.has_action:
        with pytest.raises(ConfigError, match=naming("data.action", "ahead")):
            write_config(inspections, path / "c.json")
        data = inspections[0].data
    else:
        write_config(inspections, path / "c.json")
        TrainConfig.from_json_path(path / "c.json").open_data()
        data = json.loads((path / "c.json").read_text())["data"]
    keys = data["action"]["key"] if "action" in data else ()
    action = (keys,) if isinstance(keys, str) else tuple(keys)
    if action != expected.action:
        yield f"action {action}, expected {expected.action}"
    sections = {"obs": expected.observations, "images": expected.cameras, "depth": expected.depths}
    for section, wanted_keys in (sections | {"points": expected.clouds}).items():
        keys = named_keys(data.get(section, {}))
        if keys != wanted_keys:
            yield f"{section}: too many {sorted(keys - wanted_keys)}, too few {sorted(wanted_keys - keys)}"
    warnings = {str(finding) for finding in inspections[0].findings if finding.severity == "warning"}
    for key in expected.warned:
        if not any(text.startswith(f"{key}: ") for text in warnings):
            yield f"{key} is left out without a warning: {sorted(warnings)}"


@pytest.mark.slow
def test_first_settings_name_what_a_policy_may_read_of_every_layout(tmp_path):
    for package in ("h5py", "zarr", "pyarrow"):
        pytest.importorskip(package, reason=f"NOT CHECKED: {package} is not installed")
    random = np.random.default_rng(0)
    faults = {}
    for name, layout in LAYOUTS.items():
        try:
            faults[name] = list(faults_of(layout, tmp_path / name, random))
        except Exception as error:  # each layout is reported
            faults[name] = [f"{type(error).__name__}: {error}"]
    assert len(LAYOUTS) >= 20
    assert_none(f"{name}: {fault}" for name, lines in faults.items() for fault in lines)


def test_a_robot_cannot_observe_what_only_the_recorder_knows():
    observable = [
        "obs/robot0_eef_pos",
        "observation.state",
        "observations/qpos",
        "observations/desired_goal",
        "tcp_pose",
        "qvel",
        "observation.gripper.pos",
        "obs/object",
        "state/end/position",
        "observations/target_pos",
    ]
    hidden = [
        "next_obs/object",
        "final_state",
        "demo_end_pose",
        "env_states/actors/cube",
        "observation/is_first",
        "isLast",
        "observation/cam_left2base",
        "obs/sensor_param/hand/K",
        "camera_pose",
        "intrinsics",
        "observation/joint_cmd",
        "observation.target_qpos",
        "leader_joints",
        "prev_torque",
        "timestamp",
        "robot/clock",
        "frame_index",
        "success_rate",
        "stage",
        "observation/controller_pose",
        "scene_obs",
        "action.gripper",
        "language_tokens",
        "infos/qpos",
    ]
    assert_none(f"{key} may be observed" for key in hidden if unobservable(key) is None)
    assert_none(f"{key}: {unobservable(key)}" for key in observable if unobservable(key) is not None)


def test_an_end_effector_is_no_gripper():
    assert [is_gripper(key) for key in ("action/effector/position", "end_effector", "gripper_cmd")] == [
        True,
        False,
        True,
    ]


def test_parts_of_an_action_are_positions_of_joints_and_grippers_or_the_vector_of_all():
    shapes = {"action.arm.joint_pos": (7,), "action.arm.joint_vel": (7,), "action.arm.tcp_pose": (6,)}
    shapes |= {"action.gripper": (1,), "action.state": (3,), "obs/action.x": (2,)}
    assert action_parts(shapes) == ["action.arm.joint_pos", "action.gripper"]
    assert action_parts(shapes, still={"action.gripper"}) == ["action.arm.joint_pos"]
    assert action_parts({"action/gripper_delta": (), "action/gripper_position": ()}) == ["action/gripper_position"]
    assert action_parts({"action/delta_pose": (6,), "action/gripper": ()}) == ["action/delta_pose", "action/gripper"]
    led = {"master/joint_position": (7,), "master/joint_velocity": (7,), "puppet/joint_position": (7,)}
    assert action_parts(led) == ["master/joint_position"]
    assert action_parts({**led, "action/joints": (7,)}) == ["action/joints"]
    assert action_parts({"action/left": (7,), "action/right": (7,), "action/all": (14,)}) == ["action/all"]
    assert action_parts({"action/pose/pos": (3,), "action/pose/rot": (3,)}) == ["action/pose/pos", "action/pose/rot"]
    assert action_parts({"action": (7,), "state": (3,)}) == []


def test_an_action_in_a_folder_is_one_unless_there_are_several():
    assert named_action({"robot/action": (7,), "robot/state": (7,)}) == "robot/action"
    assert named_action({"left/action": (7,), "right/action": (7,)}) is None
    assert named_action({"left/action": (7,), "action": (14,)}) == "action"


def test_commands_of_a_gripper_beside_the_action_are_those_of_this_step():
    shapes = {"action": (6,), "gripper_command": (1,), "prev_gripper_command": (1,), "gripper": (1,)}
    assert gripper_commands(shapes | {"arm/gripper_command": (1,)}, "action") == ["gripper_command"]
