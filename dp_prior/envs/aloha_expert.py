"""Scripted experts for the worlds of gym-aloha, pure functions of the state, so that a policy can imitate them.

ACT's scripted policy is a clock with waypoints, and fails from MuJoCo 3.0 on. These experts look at every step which
object is held and which goal is reached, and move both grippers a little; a disturbed arm comes back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dp_prior.envs.aloha_kinematics import Arm, Pose, rotation_by, rotation_of, stepped
from dp_prior.pixels.renderers.aloha import CLOSED, JOINTS, OPEN, TIPS, AlohaTask

LEAD = 0.012, 0.06  # m and rad from the measured pose to the commanded pose, which set the speed
NEAR = 0.008  # m to a goal that count as reached
HOLDING = 0.025  # m from the fingertips to an object between them
INNER = 0.0224  # m from a finger's joint position to its inner face
PRESSED = 0.0015  # m between finger and object below which they touch
ABOVE = 0.08  # m over an object from which a gripper comes down
WIDE = 0.85  # opening of a gripper that is free to come down, or to leave
PITCH = 1.05  # rad by which grippers look down on objects
TILT = 0.5  # rad by which the cube is tilted for the left gripper
AWAY = 0.1  # m from the cube to a gripper before and after

CUBE = np.full(3, 0.02)  # m, half of the sides
PEG = np.array([0.06, 0.01, 0.01])
SOCKET = np.array([0.06, 0.022, 0.022])
PEG_GRASP = np.array([0.0, 0.0, 0.012])  # m over the peg's middle, so that the fingertips stay off the table
MEETING = np.array([0.0, 0.5, 0.25])  # m, where the cube is handed over
JOINING = np.array([0.0, 0.5, 0.15])  # m, where peg and socket meet
APART, PUSHED = 0.16, 0.092  # m between the middles of peg and socket, before and after; they touch the pin at 0.1
ASIDE = 0.004  # m from the socket's axis to the peg from which on the peg keeps off


class Goal(NamedTuple):
    """Where a gripper should go, and how far it should be open."""

    position: np.ndarray
    """(3,) in m."""

    rotation: np.ndarray
    """(3, 3), see `Pose`."""

    opening: float
    """0 to 1."""


def looking(yaw: float, pitch: float, roll: float = 0.0) -> np.ndarray:
    """(3, 3) a gripper turned about z by `yaw`, which looks down by `pitch` and is turned about its axis by `roll`."""
    turns = np.diag([roll, pitch, yaw])
    return rotation_by(turns[2]) @ rotation_by(turns[1]) @ rotation_by(turns[0])


LEFT_DOWN, RIGHT_DOWN = looking(0.0, PITCH), looking(np.pi, PITCH)
TAKING, GIVING = looking(0.0, TILT, np.pi / 2), looking(np.pi, PITCH - TILT)  # fingers across each other


class AlohaExpert:
    """Chooses the next joint command for a state."""

    def __init__(self, task: AlohaTask, model: Any):
        """Args: model: MuJoCo's, of this task."""
        self._arms = Arm(model, "left"), Arm(model, "right")
        self._goals = {"transfer_cube": transfer_goals, "insertion": insertion_goals}[task]

    def act(self, state: np.ndarray) -> np.ndarray:
        """Joint command (14,) for a state as `AlohaWorld.state` gives it."""
        state = np.asarray(state, np.float64)
        joints = state[:6], state[7:13]
        poses = [arm.pose(angles) for arm, angles in zip(self._arms, joints, strict=True)]
        goals = self._goals(poses, state[[6, 13]], state[JOINTS + TIPS :].reshape(-1, 7))
        command = []
        for arm, angles, pose, goal in zip(self._arms, joints, poses, goals, strict=True):
            ahead = stepped(pose, Pose(goal.position, goal.rotation), *LEAD)
            command += [*arm.joints(ahead, angles), goal.opening]
        return np.array(command)


def transfer_goals(poses: list[Pose], openings: np.ndarray, objects: np.ndarray) -> tuple[Goal, Goal]:
    """Goals of both grippers: the right gripper lifts the cube, the left gripper takes the cube from it."""
    left, right = poses
    cube = objects[0]
    if holds(left, openings[0], cube, CUBE):
        way = AWAY * (openings[1] > WIDE)
        return Goal(MEETING - way * TAKING[:, 0], TAKING, 0.0), Goal(MEETING - way * GIVING[:, 0], GIVING, 1.0)
    ready = Goal(MEETING - AWAY * TAKING[:, 0], TAKING, 1.0)
    if not holds(right, openings[1], cube, CUBE):
        return ready, picking(right, openings[1], cube[:3], RIGHT_DOWN)
    lifted = Goal(MEETING, GIVING, 0.0)
    if np.linalg.norm(right.position - MEETING) > NEAR:
        return ready, lifted
    is_there = np.linalg.norm(left.position - cube[:3]) < NEAR
    return Goal(cube[:3], TAKING, 0.0 if is_there else 1.0), lifted


def insertion_goals(poses: list[Pose], openings: np.ndarray, objects: np.ndarray) -> tuple[Goal, Goal]:
    """Goals of both grippers: left lifts the socket, right lifts the peg, then both push along the socket's axis."""
    left, right = poses
    peg, socket = objects
    has_socket, has_peg = holds(left, openings[0], socket, SOCKET), holds(right, openings[1], peg, PEG)
    if not (has_socket and has_peg):
        over = socket[:3], peg[:3] + PEG_GRASP
        return (
            Goal(over[0], LEFT_DOWN, 0.0) if has_socket else picking(left, openings[0], over[0], LEFT_DOWN),
            Goal(over[1], RIGHT_DOWN, 0.0) if has_peg else picking(right, openings[1], over[1], RIGHT_DOWN),
        )
    aside = np.linalg.norm((peg - socket)[1:3])
    half = np.array([np.clip(PUSHED + 10 * (aside - ASIDE), PUSHED, APART) / 2, 0, 0])
    return (
        Goal(left.position + JOINING - half - socket[:3], LEFT_DOWN, 0.0),
        Goal(right.position + JOINING + half - peg[:3], RIGHT_DOWN, 0.0),
    )


def picking(pose: Pose, opening: float, place: np.ndarray, rotation: np.ndarray) -> Goal:
    """The goal of a gripper that comes down on an object, lower the less it is aside, and closes around the object."""
    if np.linalg.norm(pose.position - place) < NEAR:
        return Goal(place, rotation, 0.0)
    aside = np.linalg.norm((pose.position - place)[:2])
    height = ABOVE if opening < WIDE else np.clip(4 * (aside - 0.01), 0.0, ABOVE)
    return Goal(place + [0, 0, height], rotation, 1.0)


def holds(pose: Pose, opening: float, thing: np.ndarray, half: np.ndarray) -> bool:
    """Whether a gripper's fingers touch an object between them.

    Args:
        thing: (7,) position and quaternion of the object.
        half: (3,) of the sides of the object.
    """
    offset, across = thing[:3] - pose.position, pose.rotation[:, 1]
    reach = across @ offset + np.abs(across @ rotation_of(thing[3:])) @ half
    gap = CLOSED + opening * (OPEN - CLOSED) - INNER
    return bool(np.linalg.norm(offset) < HOLDING and gap < reach + PRESSED)
