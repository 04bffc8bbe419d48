"""Writers of small data sets whose files, names and shapes are those of public recorders, with what a policy may read
of them."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

EPISODES, STEPS = 4, 24


@dataclass(frozen=True)
class Layout:
    """What first settings name of a data set, by its keys.

    Attributes:
        place: what is inspected.
        warned: cameras that are left out with a warning.
        has_action: whether commands were recorded.
    """

    place: Path
    observations: set[str]
    action: tuple[str, ...] = ("action",)
    cameras: set[str] = field(default_factory=set)
    depths: set[str] = field(default_factory=set)
    clouds: set[str] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)
    has_action: bool = True


LAYOUTS: dict[str, Callable[[Path, np.random.Generator], Layout]] = {}


def layout(write: Callable[[Path, np.random.Generator], Layout]) -> Callable[[Path, np.random.Generator], Layout]:
    LAYOUTS[write.__name__] = write
    return write


def walk(random, width, steps=STEPS):
    return np.cumsum(random.normal(0, 0.1, (steps, width)), axis=0).astype(np.float32)


def switch(random, steps=STEPS):
    """A gripper, open or closed, (steps, 1)."""
    return (np.cumsum(random.random((steps, 1)) < 0.2, axis=0) % 2).astype(np.float32)


def frames(random, steps=STEPS, size=(24, 32), channels=3):
    return random.integers(0, 256, (steps, *size, channels), dtype=np.uint8)


def matrices(random):
    return random.normal(size=(STEPS, 4, 4))


def encoded(pictures, how):
    """JPEG of each picture: padded rows of bytes, or texts of one length."""
    from PIL import Image

    files = []
    for picture in pictures:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG")
        files.append(stream.getvalue())
    longest = max(map(len, files))
    if how == "texts":
        return np.array(files, dtype=f"S{longest}")
    return np.stack([np.frombuffer(file.ljust(longest, b"\0"), np.uint8) for file in files])


def ends():
    return np.arange(1, EPISODES + 1) * STEPS


def write_hdf5(path, arrays, **attributes):
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        file.attrs.update(attributes)


def write_zarr(path, arrays):
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=2)
    for name, values in arrays.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=values.shape)
        array[...] = values


@layout
def droid(path, random):
    """A folder for each trajectory with trajectory.h5, whose action and states are recorded in every space."""
    for episode in range(EPISODES):
        poses, joints, gripper = walk(random, 6), walk(random, 7), switch(random)[:, 0]
        last = np.arange(STEPS) == STEPS - 1
        write_hdf5(
            path / f"Fri_Jul_{episode}" / "trajectory.h5",
            {
                "action/cartesian_position": poses,
                "action/cartesian_velocity": walk(random, 6),
                "action/gripper_position": gripper,
                "action/gripper_delta": walk(random, 1)[:, 0],
                "action/gripper_velocity": walk(random, 1)[:, 0],
                "action/joint_position": joints,
                "action/joint_velocity": walk(random, 7),
                "action/target_cartesian_position": poses,
                "action/target_gripper_position": gripper,
                "action/robot_state/cartesian_position": poses,
                "action/robot_state/gripper_position": gripper,
                "action/robot_state/joint_positions": joints,
                "action/robot_state/joint_velocities": walk(random, 7),
                "action/robot_state/motor_torques_measured": walk(random, 7),
                "action/robot_state/prev_command_successful": random.random(STEPS) < 0.9,
                "action/robot_state/prev_joint_torques_computed_safened": walk(random, 7),
                "observation/camera_extrinsics/1234_left": np.tile(np.arange(6.0) + episode, (STEPS, 1)),
                "observation/camera_extrinsics/5678_left": walk(random, 6),
                "observation/camera_extrinsics/5678_left_gripper_offset": np.tile(np.arange(6.0), (STEPS, 1)),
                "observation/camera_intrinsics/1234_left": np.tile(np.eye(3), (STEPS, 1, 1)),
                "observation/camera_type/1234": np.zeros(STEPS, np.int64),
                "observation/controller_info/controller_on": np.ones(STEPS, bool),
                "observation/controller_info/failure": last & (episode == 1),
                "observation/controller_info/movement_enabled": random.random(STEPS) < 0.5,
                "observation/controller_info/success": last & (episode != 1),
                "observation/robot_state/cartesian_position": poses,
                "observation/robot_state/gripper_position": gripper,
                "observation/robot_state/joint_positions": joints,
                "observation/robot_state/joint_torques_computed": walk(random, 7),
                "observation/robot_state/joint_velocities": walk(random, 7),
                "observation/robot_state/motor_torques_measured": walk(random, 7),
                "observation/robot_state/prev_command_successful": random.random(STEPS) < 0.9,
                "observation/robot_state/prev_controller_latency_ms": random.random(STEPS),
                "observation/robot_state/prev_joint_torques_computed": walk(random, 7),
                "observation/robot_state/prev_joint_torques_computed_safened": walk(random, 7),
                "observation/timestamp/cameras/1234_read_start": np.arange(STEPS) * 66 + 5,
                "observation/timestamp/robot_state/read_end": np.arange(STEPS) * 66 + 2,
                "observation/timestamp/robot_state/robot_timestamp_nanos": random.integers(0, 10**9, STEPS),
                "observation/timestamp/control/step_start": np.arange(STEPS) * 66,
                "observation/timestamp/robot_state/robot_timestamp_seconds": np.arange(STEPS) // 15,
                "observation/timestamp/skip_action": random.random(STEPS) < 0.1,
            },
        )
    state = "observation/robot_state/"
    names = (
        "cartesian_position", "gripper_position", "joint_positions", "joint_velocities", "motor_torques_measured",
    )  # fmt: skip
    return Layout(path, {state + name for name in names}, ("action/gripper_position", "action/joint_position"))


@layout
def maniskill(path, random):
    """A group for each trajectory, with one observation more than actions, and trajectory.json beside the file."""
    arrays = {}
    for episode in range(EPISODES):
        rows = STEPS + 1
        ending = np.arange(STEPS) == STEPS - 1
        arrays |= {
            f"traj_{episode}/{name}": values
            for name, values in {
                "obs/agent/qpos": walk(random, 9, rows),
                "obs/agent/qvel": walk(random, 9, rows),
                "obs/extra/is_grasped": random.random(rows) < 0.5,
                "obs/extra/tcp_pose": walk(random, 7, rows),
                "obs/extra/goal_pos": walk(random, 3, rows),
                "obs/sensor_param/base_camera/extrinsic_cv": random.normal(size=(rows, 3, 4)),
                "obs/sensor_param/base_camera/cam2world_gl": random.normal(size=(rows, 4, 4)),
                "obs/sensor_param/base_camera/intrinsic_cv": random.normal(size=(rows, 3, 3)),
                "obs/sensor_data/base_camera/rgb": frames(random, rows),
                "obs/sensor_data/base_camera/depth": random.integers(500, 900, (rows, 24, 32, 1), dtype=np.int16),
                "obs/sensor_data/base_camera/segmentation": random.integers(0, 9, (rows, 24, 32, 1), dtype=np.int16),
                "actions": walk(random, 8),
                "terminated": ending,
                "truncated": np.zeros(STEPS, bool),
                "success": ending,
                "fail": np.zeros(STEPS, bool),
                "rewards": random.random(STEPS).astype(np.float32),
                "env_states/actors/cube": walk(random, 13, rows),
                "env_states/articulations/panda": walk(random, 31, rows),
            }.items()
        }
    write_hdf5(path / "trajectory.h5", arrays)
    notes = [{"episode_id": episode, "episode_seed": episode, "success": True} for episode in range(EPISODES)]
    (path / "trajectory.json").write_text(json.dumps({"env_info": {"env_id": "PickCube-v1"}, "episodes": notes}))
    observations = {f"obs/{name}" for name in ("agent/qpos", "agent/qvel", "extra/is_grasped", "extra/tcp_pose")}
    camera = "obs/sensor_data/base_camera/"
    return Layout(
        path / "trajectory.h5",
        {*observations, "obs/extra/goal_pos"},
        ("actions",),
        {f"{camera}rgb"},
        {f"{camera}depth"},
    )


@layout
def aloha(path, random):
    """The files of the recorder of ACT: `action` are the joints of the leaders."""
    for episode in range(EPISODES):
        arrays = {name: walk(random, 14) for name in ("action", "observations/qpos", "observations/qvel")}
        arrays |= {f"observations/images/{name}": frames(random) for name in ("cam_high", "cam_left_wrist")}
        write_hdf5(path / f"episode_{episode}.hdf5", arrays, sim=False)
    cameras = {"observations/images/cam_high", "observations/images/cam_left_wrist"}
    return Layout(path, {"observations/qpos", "observations/qvel"}, cameras=cameras)


@layout
def mobile_aloha(path, random):
    """The files of ACT++: efforts and the velocity of the base beside those of ACT, and JPEG in padded rows."""
    cameras = [f"observations/images/{name}" for name in ("cam_high", "cam_left_wrist")]
    for episode in range(EPISODES):
        names = ("action", "observations/qpos", "observations/qvel", "observations/effort")
        arrays = {name: walk(random, 14) for name in names} | {"base_action": walk(random, 2)}
        arrays |= {camera: encoded(frames(random), "rows") for camera in cameras}
        arrays["compress_len"] = np.full((len(cameras), STEPS), 900.0)
        write_hdf5(path / f"episode_{episode}.hdf5", arrays, sim=False, compress=True)
    return Layout(path, {"observations/qpos", "observations/qvel", "observations/effort"}, cameras={*cameras})


@layout
def agibot(path, random):
    """A folder for each episode with proprio_stats.h5, whose action has parts, some of which are empty."""
    for episode in range(EPISODES):
        joints, grip = walk(random, 14), walk(random, 2)
        arrays = {
            "timestamp": np.arange(STEPS, dtype=np.int64) * 33_000_000,
            "action/effector/index": np.arange(STEPS),
            "action/effector/position": grip,
            "action/end/orientation": walk(random, 8).reshape(STEPS, 2, 4),
            "action/end/position": walk(random, 6).reshape(STEPS, 2, 3),
            "action/head/position": walk(random, 2),
            "action/joint/index": np.arange(STEPS),
            "action/joint/position": joints,
            "action/robot/velocity": np.zeros((STEPS, 2), np.float32),
            "action/waist/position": walk(random, 2),
            "action/effector/force": np.zeros(0, np.float32),
            "state/joint/effort": np.zeros(0, np.float32),
            "state/robot/orientation_drift": np.zeros(0, np.float32),
            "state/effector/force": walk(random, 2),
            "state/effector/position": grip,
            "state/end/orientation": walk(random, 8).reshape(STEPS, 2, 4),
            "state/end/position": walk(random, 6).reshape(STEPS, 2, 3),
            "state/head/position": walk(random, 2),
            "state/joint/current_value": walk(random, 14),
            "state/joint/position": joints,
            "state/robot/orientation": np.tile(np.float32([0, 0, 0, 1]), (STEPS, 1)),
            "state/waist/position": walk(random, 2),
        }
        write_hdf5(path / f"327/{648642 + episode}/proprio_stats.h5", arrays)
    names = (
        "effector/force", "effector/position", "end/orientation", "end/position", "head/position",
        "joint/current_value", "joint/position", "waist/position",
    )  # fmt: skip
    parts = ("effector", "head", "joint", "waist")
    place = path / "327"
    return Layout(place, {f"state/{name}" for name in names}, tuple(f"action/{part}/position" for part in parts))


@layout
def robotwin(path, random):
    """A file for each episode: the joints of two arms in parts and as a vector, matrices of each camera, and JPEG in
    texts of one length. Clouds that were not asked for are empty."""
    for episode in range(EPISODES):
        left, right = walk(random, 6), walk(random, 6)
        grips = switch(random), switch(random)
        camera = "observation/head_camera/"
        arrays = {
            "joint_action/left_arm": left,
            "joint_action/left_gripper": grips[0][:, 0],
            "joint_action/right_arm": right,
            "joint_action/right_gripper": grips[1][:, 0],
            "joint_action/vector": np.concatenate([left, grips[0], right, grips[1]], axis=1),
            "endpose/left_endpose": walk(random, 7),
            "endpose/left_gripper": grips[0][:, 0],
            "endpose/right_endpose": walk(random, 7),
            "endpose/right_gripper": grips[1][:, 0],
            "pointcloud": np.zeros((STEPS, 0)),
            "third_view_rgb": encoded(frames(random), "texts"),
            f"{camera}rgb": encoded(frames(random), "texts"),
            f"{camera}actor_segmentation": frames(random),
            f"{camera}depth": random.uniform(400, 900, (STEPS, 24, 32)),
            f"{camera}cam2world_gl": random.normal(size=(STEPS, 4, 4)),
            f"{camera}extrinsic_cv": random.normal(size=(STEPS, 3, 4)),
            f"{camera}intrinsic_cv": random.normal(size=(STEPS, 3, 3)),
        }
        write_hdf5(path / f"episode{episode}.hdf5", arrays)
    names = {f"endpose/{side}_{part}" for side in ("left", "right") for part in ("endpose", "gripper")}
    cameras = {"observation/head_camera/rgb", "third_view_rgb"}
    return Layout(path, names, ("joint_action/vector",), cameras, {"observation/head_camera/depth"})


@layout
def umi(path, random):
    """A replay buffer of a hand-held gripper, which has no commands, and poses at both ends of a demonstration."""
    import shutil

    arrays = {
        "data/robot0_eef_pos": walk(random, 3, EPISODES * STEPS),
        "data/robot0_eef_rot_axis_angle": walk(random, 3, EPISODES * STEPS),
        "data/robot0_gripper_width": walk(random, 1, EPISODES * STEPS),
        "data/robot0_demo_start_pose": np.repeat(random.normal(size=(EPISODES, 6)), STEPS, axis=0),
        "data/robot0_demo_end_pose": np.repeat(random.normal(size=(EPISODES, 6)), STEPS, axis=0),
        "data/camera0_rgb": frames(random, EPISODES * STEPS),
        "meta/episode_ends": ends(),
    }
    write_zarr(path / "dataset.zarr", arrays)
    shutil.make_archive(str(path / "dataset.zarr"), "zip", path / "dataset.zarr")
    shutil.rmtree(path / "dataset.zarr")
    names = {f"robot0_{name}" for name in ("eef_pos", "eef_rot_axis_angle", "gripper_width", "demo_start_pose")}
    return Layout(path / "dataset.zarr.zip", names, (), {"camera0_rgb"}, has_action=False)


def _robomimic(path, random, further, environment=None, flag=np.int64, states=True, **facts):
    """A group for each demonstration with these arrays beside those that each such file has."""
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = EPISODES * STEPS
        data.attrs.update(facts)
        if environment:
            data.attrs["env_args"] = json.dumps(environment)
        for episode in range(EPISODES):
            group = data.create_group(f"demo_{episode}")
            group.attrs["num_samples"] = STEPS
            arrays = {
                "actions": np.concatenate([walk(random, 6), switch(random)], axis=1),
                "dones": (np.arange(STEPS) == STEPS - 1).astype(flag),
                "rewards": (np.arange(STEPS) == STEPS - 1).astype(flag if flag == np.uint8 else float),
            }
            arrays |= {"states": walk(random, 32)} if states else {}
            for name, values in (arrays | further(random)).items():
                group[name] = values
    return path


@layout
def robomimic(path, random):
    """Observations and the next ones, cameras among both."""

    def further(random):
        arrays = {}
        for group in ("obs", "next_obs"):
            arrays |= {f"{group}/{name}": walk(random, 3) for name in ("object", "robot0_eef_pos")}
            arrays[f"{group}/robot0_gripper_qpos"] = walk(random, 2)
            arrays[f"{group}/agentview_image"] = frames(random)
        return arrays

    names = {f"obs/{name}" for name in ("object", "robot0_eef_pos", "robot0_gripper_qpos")}
    return Layout(_robomimic(path / "image.hdf5", random, further), names, ("actions",), {"obs/agentview_image"})


@layout
def libero(path, random):
    """States of the robot beside the observations, which hold the same numbers."""

    def further(random):
        arrays = {f"obs/{name}": walk(random, 3) for name in ("ee_ori", "ee_pos")}
        arrays |= {"obs/ee_states": walk(random, 6), "obs/joint_states": walk(random, 7)}
        arrays |= {"obs/gripper_states": walk(random, 2), "robot_states": walk(random, 9)}
        return arrays | {f"obs/{name}": frames(random) for name in ("agentview_rgb", "eye_in_hand_rgb")}

    names = {f"obs/{name}" for name in ("ee_ori", "ee_pos", "ee_states", "joint_states", "gripper_states")}
    cameras = {"obs/agentview_rgb", "obs/eye_in_hand_rgb"}
    environment = {"type": 1, "env_name": "Libero_Kitchen_Tabletop_Manipulation", "env_kwargs": {"robots": ["Panda"]}}
    facts = {"macros_image_convention": "opengl", "problem_info": json.dumps({"language_instruction": "open it"})}
    place = _robomimic(path / "demo.hdf5", random, further, environment, np.uint8, **facts)
    return Layout(place, names, ("actions",), cameras)


@layout
def robocasa(path, random):
    """Actions in several forms; the one called actions is what the simulator was given."""

    def further(random):
        arrays = {f"action_dict/{name}": walk(random, 3) for name in ("abs_pos", "rel_pos", "rel_rot_axis_angle")}
        arrays |= {f"action_dict/{name}_rot_6d": walk(random, 6) for name in ("abs", "rel")}
        arrays |= {"action_dict/gripper": switch(random), "actions_abs": walk(random, 7)}
        arrays |= {"datagen_info/gripper_action": switch(random), "datagen_info/object_poses/cube": matrices(random)}
        arrays |= {f"datagen_info/{name}": matrices(random) for name in ("eef_pose", "target_pose")}
        arrays["datagen_info/subtask_term_signals/grasp"] = (np.arange(STEPS) > 9).astype(int)
        arrays |= {"obs/robot0_base_to_eef_pos": walk(random, 3), "obs/robot0_gripper_qvel": walk(random, 2)}
        return arrays | {"obs/robot0_agentview_left_image": frames(random)}

    names = {"obs/robot0_base_to_eef_pos", "obs/robot0_gripper_qvel"}
    place = _robomimic(path / "demo_im128.hdf5", random, further, {"env_name": "PnPCounterToCab", "type": 1})
    return Layout(place, names, ("actions",), {"obs/robot0_agentview_left_image"})


@layout
def isaac_lab(path, random):
    """The recorder of Isaac Lab: the layout of robomimic with the last actions among the observations, what the
    simulator was in, and the actions after their scaling."""

    def further(random):
        arrays = {f"obs/{name}": walk(random, width) for name, width in (("joint_pos", 9), ("joint_vel", 9))}
        arrays |= {"obs/actions": walk(random, 7), "obs/eef_pos": walk(random, 3), "obs/gripper_pos": walk(random, 2)}
        arrays |= {"processed_actions": walk(random, 8), "states/articulation/robot/joint_position": walk(random, 9)}
        arrays |= {"initial_state/articulation/robot/joint_position": walk(random, 9, 1)}
        arrays |= {"states/rigid_object/cube_1/root_pose": walk(random, 7), "obs/table_cam": frames(random)}
        return arrays | {"obs/datagen_info/eef_pose/franka": matrices(random)}

    names = {f"obs/{name}" for name in ("joint_pos", "joint_vel", "eef_pos", "gripper_pos")}
    environment = {"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-v0", "type": 2}
    place = _robomimic(path / "dataset.hdf5", random, further, environment, states=False)
    return Layout(place, names, ("actions",), {"obs/table_cam"})


@layout
def robomind(path, random):
    """Files of two arms that are led: the leaders' joints are the commands."""
    for episode in range(EPISODES):
        arrays = {}
        for side in ("left", "right"):
            joints = walk(random, 7)
            arrays |= {
                f"{robot}/joint_position_{side}": joints + walk(random, 7) / 50 for robot in ("master", "puppet")
            }
            arrays |= {f"{robot}/end_effector_{side}": walk(random, 7) for robot in ("master", "puppet")}
            arrays |= {f"{robot}/joint_velocity_{side}": walk(random, 7) for robot in ("master", "puppet")}
        arrays["observations/rgb_images/camera_front"] = encoded(frames(random), "rows")
        arrays["language_distilbert"] = np.zeros((1, 1, 768), np.float32)
        write_hdf5(path / f"{episode}/data/trajectory.hdf5", arrays)
    names = {f"puppet/{name}_{side}" for name in ("joint_position", "end_effector", "joint_velocity")
             for side in ("left", "right")}  # fmt: skip
    commands = ("master/joint_position_left", "master/joint_position_right")
    return Layout(path, names, commands, {"observations/rgb_images/camera_front"})


@layout
def bridge(path, random):
    """Episodes of RLDS, as arrays of all steps: marks of the first and last step, and the embedding of a text."""
    for episode in range(EPISODES):
        arrays = {
            "steps/action": np.concatenate([walk(random, 6), switch(random)], axis=1),
            "steps/discount": np.ones(STEPS),
            "steps/is_first": np.arange(STEPS) == 0,
            "steps/is_last": np.arange(STEPS) == STEPS - 1,
            "steps/is_terminal": np.arange(STEPS) == STEPS - 1,
            "steps/language_embedding": np.tile(random.normal(size=512), (STEPS, 1)),
            "steps/observation/state": walk(random, 7),
            "steps/observation/image_0": frames(random),
            "steps/reward": (np.arange(STEPS) == STEPS - 1).astype(float),
        }
        write_hdf5(path / f"episode_{episode}.hdf5", arrays)
    return Layout(path, {"steps/observation/state"}, ("steps/action",), {"steps/observation/image_0"})


@layout
def rh20t_arrays(path, random):
    """One array of each kind of number of RH20T, the commands of the gripper apart from its width."""
    arrays = {
        "tcp_base": walk(random, 7, EPISODES * STEPS),
        "joint": walk(random, 7, EPISODES * STEPS),
        "force_torque": walk(random, 6, EPISODES * STEPS),
        "gripper_info": walk(random, 1, EPISODES * STEPS),
        "gripper_width": walk(random, 1, EPISODES * STEPS),
        "gripper_command": switch(random, EPISODES * STEPS),
        "action": walk(random, 7, EPISODES * STEPS),
        "timestamp": np.tile(np.arange(STEPS) / 10, EPISODES),
        "episode_ends": ends(),
    }
    np.savez(path / "scene.npz", **arrays)
    names = {"tcp_base", "joint", "force_torque", "gripper_width"}
    return Layout(path / "scene.npz", names, ("action", "gripper_command"))


@layout
def rh20t_steps(path, random):
    """Episodes of RLDS made of RH20T: poses in the frame of each camera, the action in parts, and velocities of joints
    that the robot did not give."""
    for episode in range(EPISODES):
        poses = ("tcp_0", "tcp_1", "tcp_2", "tcp_base", "ft_robot_base", "ft_raw_base", "ft_zeroed_base")
        observations = {name: walk(random, 6) for name in poses} | {"joint": walk(random, 7)}
        observations |= {"joint_vel": np.zeros((STEPS, 7), np.float32), "gripper_width": walk(random, 1)[:, 0]}
        observations |= {"timestamp": 1_600_000_000_000 + np.arange(STEPS) * 100}
        observations |= {f"image_{camera}": frames(random) for camera in range(3)}
        arrays = {f"steps/observation/{name}": values for name, values in observations.items()}
        arrays |= {"steps/action/tcp_base": walk(random, 6), "steps/action/gripper": switch(random)[:, 0]}
        arrays |= {"steps/discount": np.ones(STEPS), "steps/is_first": np.arange(STEPS) == 0}
        ending = np.arange(STEPS) == STEPS - 1
        arrays |= {"steps/reward": ending.astype(float), "steps/is_last": ending, "steps/is_terminal": ending}
        write_hdf5(path / f"episode_{episode}.hdf5", arrays)
    names = {f"steps/observation/{name}" for name in (*poses, "joint", "gripper_width")}
    cameras = {f"steps/observation/image_{camera}" for camera in range(3)}
    return Layout(path, names, ("steps/action/gripper", "steps/action/tcp_base"), cameras)


@layout
def rdt_bags(path, random):
    """ROS bags as files for RDT: an instruction, the velocity of the base, and depth as PNG of 16 bits."""
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")
    from PIL import Image

    for episode in range(EPISODES):
        arrays = {f"observations/{name}": walk(random, 14) for name in ("effort", "qvel")}
        arrays |= {"action": walk(random, 16), "base_action": walk(random, 2), "observations/qpos": walk(random, 16)}
        arrays |= {"observations/images/cam_high": frames(random), "instruction": "put the cup down"}
        place = path / f"episode_{episode}.hdf5"
        write_hdf5(place, arrays)
        with h5py.File(place, "a") as file:
            name, kind = "observations/images_depth/cam_high", h5py.vlen_dtype(np.uint8)
            depths = file.create_dataset(name, (STEPS,), dtype=kind)
            for step in range(STEPS):
                stream = io.BytesIO()
                Image.fromarray(random.integers(300, 2000, (24, 32)).astype(np.uint16)).save(stream, "PNG")
                depths[step] = np.frombuffer(stream.getvalue(), np.uint8)
    names = {f"observations/{name}" for name in ("effort", "qpos", "qvel")}
    return Layout(path, names, cameras={"observations/images/cam_high"}, depths={name})


@layout
def robots_apart(path, random):
    """Files with a folder of commands beside the observations, a key for each of two robots."""
    for episode in range(EPISODES):
        arrays = {f"{folder}/robot_{number}": walk(random, 7) for folder in ("qaction", "observations/qpos")
                  for number in (1, 2)}  # fmt: skip
        write_hdf5(path / f"episode_{episode}.hdf5", arrays | {"observations/images/sensor_1": frames(random)})
    names = {f"observations/qpos/robot_{number}" for number in (1, 2)}
    return Layout(path, names, ("qaction/robot_1", "qaction/robot_2"), {"observations/images/sensor_1"})


@layout
def minari(path, random):
    """A group for each episode of a gymnasium environment with goals: a goal is given, the achieved one is observed.
    `infos` are JSON in texts."""
    arrays = {}
    for episode in range(EPISODES):
        group, rows = f"episode_{episode}", STEPS + 1
        arrays |= {
            f"{group}/actions": walk(random, 4),
            f"{group}/infos": [json.dumps({"success": row == STEPS, "qpos": [0.5, row]}) for row in range(rows)],
            f"{group}/observations/observation": walk(random, 10, rows),
            f"{group}/observations/achieved_goal": walk(random, 3, rows),
            f"{group}/observations/desired_goal": np.repeat(random.normal(size=(1, 3)), rows, axis=0),
            f"{group}/rewards": -np.ones(STEPS),
            f"{group}/terminations": np.zeros(STEPS, bool),
            f"{group}/truncations": np.arange(STEPS) == STEPS - 1,
        }
    write_hdf5(path / "main_data.hdf5", arrays)
    names = {f"observations/{name}" for name in ("observation", "achieved_goal", "desired_goal")}
    return Layout(path / "main_data.hdf5", names, ("actions",))


@layout
def d4rl(path, random):
    """Transitions one after another with the ends as flags; each has the next observation."""
    rows = EPISODES * STEPS
    arrays = {
        "actions": walk(random, 8, rows),
        "infos/qpos": walk(random, 15, rows),
        "infos/qvel": walk(random, 14, rows),
        "next_observations": walk(random, 29, rows),
        "observations": walk(random, 29, rows),
        "rewards": np.zeros(rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % STEPS == STEPS - 1,
    }
    write_hdf5(path / "antmaze.hdf5", arrays)
    return Layout(path / "antmaze.hdf5", {"observations"}, ("actions",))


@layout
def pusht(path, random):
    """The replay buffer of Push-T of Diffusion Policy."""
    rows = EPISODES * STEPS
    arrays = {
        "data/action": walk(random, 2, rows),
        "data/img": frames(random, rows).astype(np.float32),
        "data/keypoint": walk(random, 18, rows).reshape(rows, 9, 2),
        "data/n_contacts": random.integers(0, 4, (rows, 1)).astype(np.float32),
        "data/state": walk(random, 5, rows),
        "meta/episode_ends": ends(),
    }
    write_zarr(path / "pusht.zarr", arrays)
    return Layout(path / "pusht.zarr", {"state"}, cameras={"img"})


@layout
def diffusion_policy_robot(path, random):
    """The replay buffer of Diffusion Policy's real robot: its stage is the demonstrator's key press."""
    rows = EPISODES * STEPS
    names = {"robot_eef_pose": 6, "robot_eef_pose_vel": 6, "robot_joint": 6, "robot_joint_vel": 6}
    arrays = {f"data/{name}": walk(random, width, rows) for name, width in names.items()}
    arrays |= {
        "data/action": walk(random, 6, rows),
        "data/stage": np.repeat(np.arange(rows // 12), 12),
        "data/timestamp": np.tile(np.arange(STEPS) / 10, EPISODES),
        "meta/episode_ends": ends(),
    }
    write_zarr(path / "replay_buffer.zarr", arrays)
    return Layout(path / "replay_buffer.zarr", {*names})


@layout
def dp3(path, random):
    """The replay buffer of 3D Diffusion Policy, with clouds and depth."""
    rows = EPISODES * STEPS
    arrays = {
        "data/action": walk(random, 4, rows),
        "data/depth": random.uniform(0.5, 2, (rows, 24, 24)).astype(np.float32),
        "data/full_state": walk(random, 39, rows),
        "data/img": frames(random, rows),
        "data/point_cloud": random.normal(size=(rows, 128, 6)).astype(np.float32),
        "data/state": walk(random, 9, rows),
        "meta/episode_ends": ends(),
    }
    write_zarr(path / "metaworld.zarr", arrays)
    return Layout(
        path / "metaworld.zarr", {"state", "full_state"}, cameras={"img"}, depths={"depth"}, clouds={"point_cloud"}
    )


@layout
def kitchen(path, random):
    """The masked arrays of the kitchen: goals of each demonstration are those that it reached."""
    shape = (STEPS, EPISODES)
    np.save(path / "actions_seq.npy", random.normal(size=(*shape, 9)))
    np.save(path / "observations_seq.npy", random.normal(size=(*shape, 60)))
    exists = np.ones(shape)
    exists[-4:, 0] = 0
    np.save(path / "existence_mask.npy", exists)
    np.save(path / "onehot_goals.npy", np.tile(np.eye(7)[:EPISODES], (STEPS, 1, 1)))
    return Layout(path, {"observations_seq"}, ("actions_seq",))


def _lerobot(path, random, further, tasks=("pick",)):
    """A data set of LeRobot v2.1 without videos."""
    import pyarrow as pa
    from pyarrow import parquet

    counters = ("frame_index", "episode_index", "index", "task_index")
    first = further(random)
    features = {
        key: {"dtype": str(rows.dtype), "shape": rows.shape[1:] or [1], "names": None} for key, rows in first.items()
    }
    features |= {key: {"dtype": "int64", "shape": [1], "names": None} for key in counters}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    info = {
        "codebase_version": "v2.1", "robot_type": "so101", "total_episodes": EPISODES, "total_frames": EPISODES * STEPS,
        "total_tasks": len(tasks), "chunks_size": 1000, "fps": 10, "splits": {"train": f"0:{EPISODES}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "video_path": None,
        "features": features,
    }  # fmt: skip
    (path / "meta").mkdir()
    (path / "data/chunk-000").mkdir(parents=True)
    (path / "meta/info.json").write_text(json.dumps(info))
    rows = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    (path / "meta/tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = []
    for episode in range(EPISODES):
        steps, task = np.arange(STEPS), episode % len(tasks)
        columns = {key: pa.array(values.tolist()) for key, values in further(random).items()}
        columns |= {"frame_index": steps, "episode_index": np.full(STEPS, episode)}
        columns |= {"index": steps + STEPS * episode, "task_index": np.full(STEPS, task)}
        columns["timestamp"] = (steps / 10).astype(np.float32)
        parquet.write_table(pa.table(columns), path / f"data/chunk-000/episode_{episode:06d}.parquet")
        lines.append(json.dumps({"episode_index": episode, "tasks": [tasks[task]], "length": STEPS}) + "\n")
    (path / "meta/episodes.jsonl").write_text("".join(lines))
    return path


@layout
def lerobot(path, random):
    """A simulation of LeRobot: marks of the next step, and the state of the environment."""

    def further(random):
        ending = np.arange(STEPS) == STEPS - 1
        vectors = {"action": walk(random, 2), "observation.state": walk(random, 2)}
        vectors["observation.environment_state"] = walk(random, 16)
        return vectors | {"next.reward": ending.astype(np.float32), "next.done": ending, "next.success": ending}

    return Layout(_lerobot(path, random, further), {"observation.state", "observation.environment_state"})


@layout
def hil_serl(path, random):
    """LeRobot's recordings with a person who intervenes, and what only the learner reads."""

    def further(random):
        vectors = {"action": walk(random, 4), "observation.state": walk(random, 18)}
        vectors["complementary_info.is_intervention"] = random.random((STEPS, 1)) < 0.3
        vectors["complementary_info.discrete_penalty"] = random.random((STEPS, 1)).astype(np.float32)
        vectors["next.done"] = np.arange(STEPS) == STEPS - 1
        return vectors | {"next.reward": random.random(STEPS).astype(np.float32)}

    return Layout(_lerobot(path, random, further), {"observation.state"})


@layout
def groot(path, random):
    """LeRobot's layout as GR00T reads it: columns that number annotations."""

    def further(random):
        vectors = {"action": walk(random, 7), "observation.state": walk(random, 8)}
        return vectors | {"annotation.human.validity": np.ones(STEPS, np.int64)}

    return Layout(_lerobot(path, random, further, ("pick", "place")), {"observation.state"})


@layout
def robocasa_lerobot(path, random):
    """Episodes of RoboCasa as LeRobot's, with numbers of texts, and files of the simulator beside them."""

    def further(random):
        vectors = {"action": walk(random, 12).astype(float), "observation.state": walk(random, 16).astype(float)}
        vectors |= {"annotation.human.task_description": np.zeros(STEPS, np.int64)}
        vectors |= {"annotation.human.task_name": np.ones(STEPS, np.int64), "next.done": np.arange(STEPS) == STEPS - 1}
        return vectors | {"next.reward": np.zeros(STEPS, np.float32)}

    place = _lerobot(path, random, further, ("open the drawer", "OpenDrawer"))
    (place / "extras/episode_000000").mkdir(parents=True)
    (place / "extras/episode_000000/ep_meta.json").write_text(json.dumps({"lang": "open the drawer"}))
    part = {"start": 0, "end": 7, "original_key": "observation.state"}
    (place / "meta/modality.json").write_text(json.dumps({"state": {"arm": part}, "action": {}, "video": {}}))
    return Layout(place, {"observation.state"})


@layout
def agibot_lerobot(path, random):
    """AgiBot World as LeRobot's: a column for each part of the robot, and wheels that stand still."""

    def further(random):
        widths = {"effector.position": 2, "end.orientation": 8, "end.position": 6, "head.position": 2}
        widths |= {"joint.position": 14, "waist.position": 2}
        columns = {f"actions.{name}": walk(random, width) for name, width in widths.items()}
        columns |= {f"observation.states.{name}": walk(random, width) for name, width in widths.items()}
        columns["observation.states.joint.current_value"] = walk(random, 14)
        return columns | {"actions.robot.velocity": np.zeros((STEPS, 2), np.float32)}

    names = ("effector.position", "end.orientation", "end.position", "head.position", "joint.current_value",
             "joint.position", "waist.position")  # fmt: skip
    parts = tuple(f"actions.{part}.position" for part in ("effector", "head", "joint", "waist"))
    return Layout(_lerobot(path, random, further), {f"observation.states.{name}" for name in names}, parts)


@layout
def assembly_lerobot(path, random):
    """LeRobot's layout with several actions, of which one is called the action, and a person's interventions."""

    def further(random):
        widths = {"joint_pos": 9, "joint_vel": 9, "eef_pose": 7, "gripper": 1}
        columns = {f"observation.{name}": walk(random, width) for name, width in widths.items()}
        columns |= {"action.joint_pos": walk(random, 9), "action.gripper": switch(random), "action": walk(random, 7)}
        return columns | {"intervention": np.arange(STEPS) % 2, "control_mode": np.arange(STEPS) % 3}

    names = {f"observation.{name}" for name in ("joint_pos", "joint_vel", "eef_pose", "gripper")}
    return Layout(_lerobot(path, random, further), names)


@layout
def calvin(path, random):
    """Episodes of CALVIN's arrays: the state of the scene is the simulator's."""
    for episode in range(EPISODES):
        arrays = {"actions": walk(random, 7), "rel_actions": walk(random, 7)}
        arrays |= {"robot_obs": walk(random, 15), "scene_obs": walk(random, 24), "rgb_static": frames(random)}
        arrays["depth_gripper"] = random.uniform(0.2, 1, (STEPS, 24, 24)).astype(np.float32)
        np.savez(path / f"episode_{episode}.npz", **arrays)
    return Layout(path, {"robot_obs"}, ("actions",), {"rgb_static"}, {"depth_gripper"})


@layout
def spreadsheet(path, random):
    """A table for each episode with a column for each number."""
    for episode in range(EPISODES):
        rows = np.concatenate(
            [np.arange(STEPS)[:, None] / 10, walk(random, 3), switch(random), walk(random, 4)], axis=1
        )
        names = ["time", "q0", "q1", "q2", "gripper", *(f"action{number}" for number in range(4))]
        lines = [",".join(names), *(",".join(f"{number:.5f}" for number in row) for row in rows)]
        (path / f"take_{episode}.csv").write_text("\n".join(lines) + "\n")
    return Layout(path, {"q", "gripper"})


@layout
def tables(path, random):
    """A parquet table for each episode with lists, and the command of the gripper in a column of its own."""
    import pyarrow as pa
    from pyarrow import parquet

    for episode in range(EPISODES):
        columns = {"state": walk(random, 6).tolist(), "action": walk(random, 6).tolist()}
        columns |= {"gripper_state": walk(random, 1)[:, 0], "gripper_action": switch(random)[:, 0]}
        columns |= {"reward": np.zeros(STEPS), "step": np.arange(STEPS)}
        parquet.write_table(pa.table(columns), path / f"{episode}.parquet")
    return Layout(path, {"state", "gripper_state"}, ("action", "gripper_action"))


@layout
def own_states(path, random):
    """Files in which one key is called a state, beside joints and a command that was sent a step before."""
    for episode in range(EPISODES):
        arrays = {"action": walk(random, 4), "observations/qpos": walk(random, 4)}
        arrays |= {"observations/gripper_state": walk(random, 2), "observations/target_joint_pos": walk(random, 4)}
        arrays |= {"observations/master_qpos": walk(random, 4), "observations/prev_action": walk(random, 4)}
        write_hdf5(path / f"episode_{episode}.hdf5", arrays)
    return Layout(path, {"observations/qpos", "observations/gripper_state"})


@layout
def two_sizes(path, random):
    """Files whose camera changed its size between two episodes."""
    for episode in range(EPISODES):
        size = (24, 32) if episode else (30, 40)
        np.savez(
            path / f"{episode}.npz", state=walk(random, 3), action=walk(random, 2), front=frames(random, size=size)
        )
    return Layout(path, {"state"}, warned={"front"})


@layout
def float_pictures(path, random):
    """Pictures as floats from 0 to 1, and the segmentation of a simulator."""
    rows = EPISODES * STEPS
    arrays = {"state": walk(random, 3, rows), "action": walk(random, 2, rows), "episode_ends": ends()}
    arrays |= {"front": random.random((rows, 24, 24, 3)).astype(np.float32), "front_segmentation": frames(random, rows)}
    np.savez(path / "d.npz", **arrays)
    return Layout(path / "d.npz", {"state"}, warned={"front"})
