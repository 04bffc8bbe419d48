"""Scripted experts for the worlds of gym-aloha, pure functions of the state, so that a policy can imitate them.

ACT's scripted policy is a clock: waypoints by time, which fail from MuJoCo 3.0 on. Here each step asks what is held and
what is reached, and moves both grippers a little towards where they should be next; a disturbed arm comes back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dp_prior.envs.aloha_kinematics import Arm, Pose, rotation_by, rotation_of, stepped
from dp_prior.pixels.renderers.aloha import CLOSED, OPEN, AlohaTask

LEAD = 0.012, 0.06  # m and rad from the measured pose to the commanded one: what the speed follows from
NEAR = 0.008  # m to a goal that count as reached
HOLDING = 0.025  # m from an object to the fingertips between which the object is
PITCH = 1.05  # rad by which grippers look down
TILT = 0.5  # rad by which the cube is tilted for the left gripper
ABOVE = 0.08  # m over an object from which it is approached
MEETING = np.array([0.0, 0.5, 0.25])  # m, where the cube is handed over
CUBE, PEG, SOCKET = (
    np.full(3, 0.02),
    np.array([0.06, 0.01, 0.01]),
    np.array([0.06, 0.022, 0.022]),
)  # m, half of the sides
JOINING = np.array([0.0, 0.5, 0.15])  # m, where peg and socket meet
INNER = 0.0224  # m from a finger's joint position to its inner face
PRESSED = 0.0015  # m between finger and object below which they touch


class Goal(NamedTuple):
    """Where a gripper should go, and how far it should be open."""

    position: np.ndarray
    """(3,) in m."""

    rotation: np.ndarray
    """(3, 3)."""

    opening: float
    """0 to 1."""


def looking(side: str, pitch: float, roll: float = 0.0) -> np.ndarray:
    """(3, 3) a gripper that looks to the other arm, down by `pitch` rad, and is turned about its axis by `roll`."""
    yaw = 0.0 if side == "left" else np.pi
    return (
        rotation_by(np.array([0, 0, yaw])) @ rotation_by(np.array([0, pitch, 0])) @ rotation_by(np.array([roll, 0, 0]))
    )


PICKING_LEFT = looking("left", PITCH)
PICKING = looking("right", PITCH)
GIVING = looking("right", PITCH - TILT)
TAKING = looking("left", TILT, np.pi / 2)


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
        goals = self._goals(poses, (state[6], state[13]), state[14:].reshape(-1, 7))
        command = []
        for arm, angles, pose, goal in zip(self._arms, joints, poses, goals, strict=True):
            ahead = stepped(pose, Pose(goal.position, goal.rotation), *LEAD)
            command += [*arm.joints(ahead, angles), goal.opening]
        return np.array(command)


def transfer_goals(poses: list[Pose], openings: tuple[float, float], objects: np.ndarray) -> tuple[Goal, Goal]:
    """Goals of both grippers to hand the cube from the right one to the left one."""
    left, right = poses
    cube = objects[0, :3]
    ready = Goal(MEETING - 0.1 * TAKING[:, 0], TAKING, 1.0)
    if _holds(left, openings[0], objects[0], CUBE):
        is_free = openings[1] > 0.85
        return (
            Goal(MEETING - 0.12 * is_free * TAKING[:, 0], TAKING, 0.0),
            Goal(MEETING - 0.12 * is_free * GIVING[:, 0], GIVING, 1.0),
        )
    if not _holds(right, openings[1], objects[0], CUBE):
        return ready, picking(right, openings[1], cube, PICKING)
    lifted = Goal(MEETING, GIVING, 0.0)
    if np.linalg.norm(right.position - MEETING) > NEAR:
        return ready, lifted
    is_there = np.linalg.norm(left.position - cube) < NEAR
    return Goal(cube, TAKING, 0.0 if is_there else 1.0), lifted


def insertion_goals(poses: list[Pose], openings: tuple[float, float], objects: np.ndarray) -> tuple[Goal, Goal]:
    """Goals of both grippers to lift the socket with the left one and the peg with the right one, and to join them."""
    left, right = poses
    socket, peg = objects[1], objects[0]
    has_socket, has_peg = _holds(left, openings[0], socket, SOCKET), _holds(right, openings[1], peg, PEG)
    if not has_socket or not has_peg:  # whoever has got hold waits
        socket_grasp, peg_grasp = socket[:3], peg[:3] + [0, 0, 0.012]
        return (
            Goal(socket_grasp, PICKING_LEFT, 0.0)
            if has_socket
            else picking(left, openings[0], socket_grasp, PICKING_LEFT),
            Goal(peg_grasp, PICKING, 0.0) if has_peg else picking(right, openings[1], peg_grasp, PICKING),
        )
    aside = np.linalg.norm((peg - socket)[1:3])
    distance = np.clip(0.092 + 10 * (aside - 0.004), 0.092, 0.16)
    centre = JOINING
    wanted_socket, wanted_peg = centre - [distance / 2, 0, 0], centre + [distance / 2, 0, 0]
    return (
        Goal(left.position + wanted_socket - socket[:3], PICKING_LEFT, 0.0),
        Goal(right.position + wanted_peg - peg[:3], PICKING, 0.0),
    )


def picking(pose: Pose, opening: float, place: np.ndarray, rotation: np.ndarray) -> Goal:
    """The goal of a gripper that comes down on an object from above, and closes around it."""
    if np.linalg.norm(pose.position - place) < NEAR:
        return Goal(place, rotation, 0.0)
    aside = np.linalg.norm((pose.position - place)[:2])
    height = ABOVE if opening < 0.85 else np.clip(4 * (aside - 0.01), 0.0, ABOVE)
    return Goal(place + [0, 0, height], rotation, 1.0)


def _holds(pose: Pose, opening: float, thing: np.ndarray, half: np.ndarray) -> bool:
    """Whether the fingers touch an object between them."""
    offset = thing[:3] - pose.position
    along = pose.rotation[:, 1]
    reach = along @ offset + np.abs(along @ rotation_of(thing[3:])) @ half
    gap = CLOSED + opening * (OPEN - CLOSED) - INNER
    return np.linalg.norm(offset) < HOLDING and gap < reach + PRESSED
