"""The expert of LIBERO's tasks that put one object in or on another: a function of the present scene alone.

An expert without a clock: the next action follows from where hand, object and goal are, and from whether the gripper
holds the object. Paths bend smoothly with the distance, so that a policy needs no history to imitate the expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ACTION_REACH, ACTION_TURN = 0.05, 0.5  # m and rad of an action of 1
GAIN = 1.5  # the controller lags behind its goal
OPEN, CLOSE = -1.0, 1.0
WIDEST = 0.07  # m, widest side that the gripper takes
ASIDE, ABOVE = 0.01, 0.006  # m from the goal of the grasp at which a gripper closes
FLAT, BOTTOM = 0.04, 0.004  # m of height below which an object is grasped at its bottom, and how far above
ROUND = 0.05  # m of length up to which an object is grasped in its middle
APPROACH_SLOPE = 3.0  # m of height for each m that the gripper is aside
CLEARANCE = 0.12  # m of height above an object at most
FINGER = 0.03  # m that the fingers reach over the top of an object at most
HELD_DISTANCE = 0.03  # m from the goal of the grasp within which an object is held
OPENED = 0.07  # m between opened fingers at least
FIRM = 0.02  # m/s of the fingers below which they have closed firmly
HAND = np.array([0.035, 0.11])  # m from the middle of the hand to its sides, across and along the fingers' way
ROOMY = 0.01  # m of room from which on a place is free
RIM, RIM_DEPTH = 0.008, 0.012  # m from a side, and from the top, of a wide object to where its rim is grasped
LIFT = 0.015  # m, most that an object is lifted in an action, before `GAIN`
LIFTED = 0.05  # m between a carried object and the top of its goal
LET_GO = 0.02  # m of height above the goal at which an object is let go
REACHED = 0.01  # m above this height at which the gripper opens already
NEAR = 0.015  # m aside from the goal within which an object is lowered


def pick_and_place(scene: Mapping[str, Any]) -> np.ndarray:
    """The action (7,) that grasps an object from above, carries the object over its goal, and lets go there.

    Args:
        scene: see `scene` of `libero_program.py`.
    """
    hand, is_turned = scene["hand"], _is_turned(scene["low"], scene["high"])
    grip, turn = _grip(scene, is_turned), _turned(scene["hand_matrix"], is_turned)
    is_near = np.linalg.norm(grip - hand) < HELD_DISTANCE
    if is_near and scene["gap_speed"] < FIRM and scene["is_held"]:
        return _carry(scene, turn)
    way = grip - hand
    aside = np.linalg.norm(way[:2])
    is_closing = scene["gap"] < OPENED and is_near
    if is_closing or (aside < ASIDE and abs(way[2]) < ABOVE):
        return _action(way / GAIN, turn, CLOSE)
    way[2] += min(CLEARANCE, APPROACH_SLOPE * max(0.0, aside - 0.004))
    return _action(way, turn, OPEN)


def _carry(scene: Mapping[str, Any], turn: np.ndarray) -> np.ndarray:
    """The action (7,) that moves a held object over its goal, then lowers the object, and lets go at the bottom."""
    way, bottom = scene["goal"] - scene["object"], scene["low"][2]
    way[2] = 0.0
    if np.linalg.norm(way) < NEAR:
        drop = (scene["goal"][2] if scene["relation"] == "in" else scene["goal_top"]) + LET_GO - bottom
        way[2] = min(drop, 0.0)
        return _action(way, turn, OPEN if drop > -REACHED else CLOSE)
    rise = scene["goal_top"] + LIFTED - bottom
    way *= np.clip(1.0 - rise / LIFTED, 0.0, 1.0)  # aside once the object has nearly reached its height
    way[2] = np.clip(rise, 0.0, LIFT)
    return _action(way, turn, CLOSE)


def _grip(scene: Mapping[str, Any], is_turned: bool) -> np.ndarray:
    """The place (3,) between the fingers when they close: the middle of an object, or the rim of a wide object; of
    several such places the first that leaves the hand room between other objects, or the roomiest."""
    low, high = scene["low"], scene["high"]
    middle, size, along = (low + high) / 2, high - low, int(is_turned)
    depth = min(middle[2], low[2] + BOTTOM) if size[2] < FLAT else middle[2]
    middle[2] = max(depth, high[2] - FINGER)
    offset = np.zeros(3)
    if min(size[:2]) > WIDEST:
        offset[1] = size[1] / 2 - RIM
        middle[2] = high[2] - RIM_DEPTH
        places = [middle + offset, middle - offset]
    else:
        offset[along] = max(0.0, (size[along] - max(size[1 - along], ROUND)) / 2)
        places = [middle + share * offset for share in (0.0, -0.5, 0.5, -1.0, 1.0)]
    hand = HAND[::-1] if is_turned else HAND
    return max(places, key=lambda place: min(_room(place, hand, scene["others"]), ROOMY))


def _room(place: np.ndarray, hand: np.ndarray, others: np.ndarray) -> float:
    """Distance in m between a hand at the place of a grasp and the boxes of objects that reach up to the hand; negative
    where they would overlap."""
    reached = others[others[:, 1, 2] > place[2] + FINGER]
    apart = np.maximum(reached[:, 0, :2] - place[:2] - hand, place[:2] - hand - reached[:, 1, :2])
    return float(apart.max(axis=1).min(initial=np.inf))


def _is_turned(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether the fingers, which close along y, have to close along x."""
    width, depth = (high - low)[:2]
    return bool(depth > WIDEST >= width)


def _turned(matrix: np.ndarray, is_turned: bool) -> np.ndarray:
    """The rotation vector (3,) to a gripper that points down, whose fingers close along y, or along x if turned."""
    down = np.cross(matrix[:, 2], [0.0, 0.0, -1.0])
    present = np.arctan2(matrix[1, 0], matrix[0, 0])
    off = (0.0 if is_turned else np.pi / 2) - present
    return down + np.array([0.0, 0.0, (off + np.pi / 2) % np.pi - np.pi / 2])


def _action(way: np.ndarray, turn: np.ndarray, gripper: float) -> np.ndarray:
    """The action (7,) for an offset in m and a rotation vector in rad."""
    return np.clip([*(GAIN * way / ACTION_REACH), *(turn / ACTION_TURN), gripper], -1.0, 1.0).astype(np.float32)
