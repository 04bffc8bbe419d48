"""Experts of three tasks of robosuite, functions of the observations alone, for one Panda with the controller OSC_POSE.

An expert has no clock: the next action follows from the positions of gripper and object, and from whether the gripper
holds the object. Paths bend smoothly with the distance, so that a policy needs no history to imitate the experts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dp_prior.envs.env_record import Expert

Observed = Mapping[str, np.ndarray]

ACTION_REACH, ACTION_TURN = 0.05, 0.5  # m and rad of an action of 1
GAIN = 1.5  # the controller lags behind its goal
OPEN, CLOSE = -1.0, 1.0
CUBE, CAN, HANDLE = 0.046, 0.053, 0.033  # m between the fingers below which they have closed on the object
GRASP_DISTANCE = 0.012  # m from the goal at which a gripper closes
APPROACH_SLOPE = 3.0  # m of height for each m that the gripper is aside
CLEARANCE = 0.12  # m of height above an object at most
CARRY_HEIGHT = 0.98  # m, height at which objects are carried
BIN = np.array([0.17, 0.37])  # x and y in m of the place of the can
PEG = np.array([0.23, 0.10])  # x and y in m of the square peg
INWARD = np.pi / 2 * np.array([1, 2, 3])  # rad, how the nut fits on the peg: its handle not away from the robot
HANDLE_OFFSET = 0.054  # m from the middle of the square nut to its handle


def lift(obs: Observed) -> np.ndarray:
    """The action (7,) that grasps the cube, aligned with its sides, and lifts it."""
    cube, turn = obs["cube_pos"], _turned(obs, _yaw(obs["cube_quat"]), 4)
    if _holds(obs, cube, CUBE):
        return _action(np.array([0.0, 0.0, 0.1]), turn, CLOSE)
    return _grasp(obs, cube, turn)


def place_can(obs: Observed) -> np.ndarray:
    """The action (7,) that grasps the can and sets it down in its bin."""
    can, turn = obs["Can_pos"], _turned(obs, 0.0, 2)
    aside = np.linalg.norm(can[:2] - BIN)
    if not _holds(obs, can, CAN):
        if aside < 0.06:  # set down
            return _action(np.array([0.0, 0.0, 0.1]), turn, OPEN)
        return _grasp(obs, can, turn)
    way = np.array([*(BIN - can[:2]), 0.0])
    if aside > 0.02:
        return _action(_carried(way, CARRY_HEIGHT - can[2]), turn, CLOSE)
    way[2] = 0.88 - can[2]
    return _action(way, turn, OPEN if can[2] < 0.9 else CLOSE)


def put_nut(obs: Observed) -> np.ndarray:
    """The action (7,) that takes the square nut by its handle and puts it over the square peg."""
    nut, yaw = obs["SquareNut_pos"], _yaw(obs["SquareNut_quat"])
    handle = nut + np.array([np.cos(yaw), np.sin(yaw), 0.0]) * HANDLE_OFFSET
    if not _holds(obs, handle, HANDLE):
        return _grasp(obs, handle, _turned(obs, yaw, 2))
    way = np.array([*(PEG - nut[:2]), 0.0])
    off = min((_least(goal - yaw, 1) for goal in INWARD), key=abs)
    turn = _turned(obs, yaw, 2) + np.array([0.0, 0.0, off])
    if np.linalg.norm(way) > 0.006 or abs(off) > 0.05:
        return _action(_carried(way, CARRY_HEIGHT - nut[2]), turn, CLOSE)
    way[2] = 0.84 - nut[2]
    return _action(way, turn, CLOSE)


def _grasp(obs: Observed, goal: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Approach a goal from above with an open gripper, and close the gripper at the goal."""
    way = goal - obs["robot0_eef_pos"]
    aside = np.linalg.norm(way[:2]) + 0.05 * abs(turn[2])
    way[2] += min(CLEARANCE, APPROACH_SLOPE * max(0.0, aside - 0.004))
    is_there = np.linalg.norm(goal - obs["robot0_eef_pos"]) < GRASP_DISTANCE
    return _action(way, turn, CLOSE if is_there else OPEN)


def _carried(way: np.ndarray, rise: float) -> np.ndarray:
    """Move aside once the load has nearly reached its height. Args: rise: remaining height in m."""
    way = way * np.clip(1.0 - rise / 0.05, 0.0, 1.0)
    way[2] = rise
    return way


def _holds(obs: Observed, goal: np.ndarray, width: float) -> bool:
    """Whether the gripper has closed on an object at the goal, to less than `width` in m."""
    gap = float(np.abs(obs["robot0_gripper_qpos"]).sum())
    return bool(np.linalg.norm(goal - obs["robot0_eef_pos"]) < 2.0 * GRASP_DISTANCE and gap < width)


def _action(way: np.ndarray, turn: np.ndarray, gripper: float) -> np.ndarray:
    """The action (7,) for an offset in m and a rotation vector in rad."""
    return np.clip([*(GAIN * way / ACTION_REACH), *(turn / ACTION_TURN), gripper], -1.0, 1.0).astype(np.float32)


def _turned(obs: Observed, yaw: float, symmetry: int) -> np.ndarray:
    """The rotation vector (3,) to a gripper that points down, turned like an object with `symmetry` equal sides."""
    x, y, z, w = obs["robot0_eef_quat"].astype(np.float64)
    present = np.arctan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
    half = (present + _least(yaw - present, symmetry)) / 2.0
    goal, hand = np.array([np.cos(half), np.sin(half), 0.0]), np.array([x, y, z])  # the goal has no real part
    axis, real = w * goal - np.cross(goal, hand), goal @ hand  # of goal times the conjugate of hand
    axis, size = np.copysign(1.0, real) * axis, np.linalg.norm(axis)
    return axis * (2.0 * np.arctan2(size, abs(real)) / max(size, 1e-12))


def _yaw(quaternion: np.ndarray) -> float:
    """Angle in rad about the vertical of an object that lies flat."""
    return 2.0 * float(np.arctan2(quaternion[2], quaternion[3]))


def _least(angle: float, symmetry: int) -> float:
    """The smallest of the equivalent angles in rad of an object with `symmetry` equal sides."""
    period = 2.0 * np.pi / symmetry
    return (angle + period / 2) % period - period / 2


EXPERTS: dict[str, Expert] = {"Lift": lift, "PickPlaceCan": place_can, "NutAssemblySquare": put_nut}
"""Experts by robosuite's name of the task."""
