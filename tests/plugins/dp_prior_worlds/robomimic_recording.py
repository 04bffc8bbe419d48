"""Files with the groups, attributes and order of robomimic's writers, of arms that move at random."""

import json

import numpy as np

TASKS = {
    "lift": ("Lift", 10, ("agentview", "robot0_eye_in_hand"), 84),
    "can": ("PickPlaceCan", 14, ("agentview", "robot0_eye_in_hand"), 84),
    "square": ("NutAssemblySquare", 14, ("agentview", "robot0_eye_in_hand"), 84),
    "transport": (
        "TwoArmTransport",
        41,
        ("shouldercamera0", "robot0_eye_in_hand", "shouldercamera1", "robot1_eye_in_hand"),
        84,
    ),
    "tool_hang": ("ToolHang", 44, ("sideview", "robot0_eye_in_hand"), 240),
}
"""robosuite's name of each task, the numbers of its objects, its cameras and the side of their pictures."""

CONTROLLER = {"type": "OSC_POSE", "input_max": 1, "input_min": -1, "kp": 150, "input_type": "delta"}


def write_robomimic(path, task, *, pictures=False, poses="", lists=(), episodes=4, steps=24, version="1.5.1", seed=0):
    """Write a file as `dataset_states_to_obs.py` does; returns the path.

    Args:
        poses: key of the arms' absolute actions, as `robosuite_add_absolute_actions.py` adds `actions_abs` and
            Diffusion Policy's conversion replaces `actions`; empty for none.
        lists: further lists under mask/, each of the first half of the demonstrations.
    """
    import h5py

    name, n_object, cameras, side = TASKS[task]
    n_arms, random = 2 if name.startswith("TwoArm") else 1, np.random.default_rng(seed)
    names = [f"demo_{number}" for number in range(episodes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for demonstration in names:
            group = data.create_group(demonstration)
            parts = [_arm(f"robot{arm}", random, steps) for arm in range(n_arms)]
            obs = {"object": np.cumsum(random.normal(0, 0.01, (steps, n_object)), axis=0)}
            for arm_obs, _, _ in parts:
                obs |= arm_obs
            if pictures:
                shape = (steps, side, side, 3)
                obs |= {f"{camera}_image": random.integers(0, 256, shape, np.uint8) for camera in cameras}
            differences, targets = (np.concatenate([part[place] for part in parts], axis=1) for place in (1, 2))
            group.create_dataset("actions", data=targets if poses == "actions" else differences)
            group.create_dataset("states", data=random.normal(size=(steps, 32)))
            group.create_dataset("rewards", data=np.eye(steps)[-1])
            group.create_dataset("dones", data=np.eye(steps, dtype=np.int64)[-1])
            if poses and poses != "actions":
                group.create_dataset(poses, data=targets)
            for key, values in obs.items():
                group.create_dataset(f"obs/{key}", data=values)
                group.create_dataset(f"next_obs/{key}", data=np.concatenate([values[1:], values[-1:]]))
            group.attrs["model_file"] = "<mujoco/>"
            group.attrs["num_samples"] = steps
        for mask, listed in {"train": names[:-1], "valid": names[-1:], **dict.fromkeys(lists, names[::2])}.items():
            file[f"mask/{mask}"] = np.array(listed, dtype="S")
        data.attrs["total"] = steps * episodes
        controller = CONTROLLER if version < "1.5" else {"type": "BASIC", "body_parts": {"right": CONTROLLER}}
        kwargs = {
            "has_renderer": False,
            "has_offscreen_renderer": pictures,
            "ignore_done": True,
            "use_object_obs": True,
            "use_camera_obs": pictures,
            "control_freq": 20,
            "controller_configs": controller,
            "robots": ["Panda"] * n_arms,
            "camera_depths": False,
            "camera_heights": side,
            "camera_widths": side,
            "camera_names": list(cameras) if pictures else [],
            "reward_shaping": False,
        }
        told = {"env_name": name, "env_version": version, "type": 1, "env_kwargs": kwargs}
        data.attrs["env_args"] = json.dumps(told, indent=4)
    return path


def _arm(arm, random, steps):
    """Observations of an arm that points down, its differences of poses, and its poses."""
    from scipy.spatial.transform import Rotation

    positions = np.cumsum(random.normal(0, 0.01, (steps + 1, 3)), axis=0) + [0.1, 0.0, 1.0]
    turns = np.cumsum(random.normal(0, 0.02, (steps + 1, 3)), axis=0) + [0.98 * np.pi, 0.0, 0.0]
    rotations = Rotation.from_rotvec(turns)
    gripper = np.where(np.arange(steps) > steps // 2, 1.0, -1.0)[:, None]
    joints = np.cumsum(random.normal(0, 0.01, (steps, 7)), axis=0)
    obs = {
        "eef_pos": positions[:-1],
        "eef_quat": rotations[:-1].as_quat(),
        "gripper_qpos": np.hstack([0.02 - 0.01 * gripper, 0.01 * gripper - 0.02]),
        "gripper_qvel": random.normal(0, 0.01, (steps, 2)),
        "joint_pos": joints,
        "joint_pos_cos": np.cos(joints),
        "joint_pos_sin": np.sin(joints),
        "joint_vel": random.normal(0, 0.1, (steps, 7)),
    }
    moves = np.clip(np.diff(positions, axis=0) / 0.05, -1, 1)
    turned = np.clip((rotations[1:] * rotations[:-1].inv()).as_rotvec() / 0.5, -1, 1)
    poses = np.hstack([positions[1:], rotations[1:].as_rotvec(), gripper])
    return {f"{arm}_{name}": values for name, values in obs.items()}, np.hstack([moves, turned, gripper]), poses
