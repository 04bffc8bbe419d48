"""Roles of the keys of a data set by their names: the action, the observations, and what a robot cannot observe when a
policy acts, such as labels, commands, the calibration of cameras and the future."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from typing import Literal

Role = Literal["observation", "action", "other"]

COMMAND, LABEL, CALIBRATION = "another action", "about success or a label", "calibration of a camera"
RECORDING, SIMULATOR, FUTURE = (
    "about the recording",
    "perhaps the state of a simulator, which no robot has",
    "of the future",
)
TEXT = "an annotation"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+|\d+")


def _words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_ACTION_WORDS = _words("action actions qaction qactions")

_LEADER_WORDS = _words("master leader")

_COMMAND_WORDS = _ACTION_WORDS | _words(
    "cmd cmds command commands commanded control controls ctrl controller desired setpoint setpoints "
    "master leader teleop teleoperator spacemouse computed reference prev previous"
)

_OWN_WORDS = _words("qpos qvel joint joints gripper grippers effector eef ee tcp cartesian proprio proprioception")

_STATE_WORDS = _words("state states pos")

_LABEL_WORDS = _words(
    "reward rewards return returns done dones terminal terminals terminate terminated terminates termination truncated "
    "truncate truncation timeout timeouts success successes successful succeeded failure failures fail failed discount "
    "discounts label labels score scores quality advantage progress stage phase subtask validity valid intervention "
    "outcome rating cost costs onehot mask masks contacts"
)

_CALIBRATION_WORDS = _words("intrinsic intrinsics extrinsic extrinsics calib calibration distortion fov fovy")

_CAMERA_WORDS = _words("cam camera cameras")

_PLACED_WORDS = _words("matrix pose to type param params world id serial position rotation rot quat")

_RECORDING_WORDS = _words(
    "timestamp timestamps time times stamp stamps clock latency index idx elapsed seed id ids fps counter step "
    "steps duration frequency hz ms nsec ns info infos meta metadata enabled"
)

_TEXT_WORDS = _words("annotation annotations description caption captions language instruction instructions prompt")

_SIMULATOR_WORDS = _words("sim simulator scene physics mujoco")

_FUTURE_WORDS = _words("next future final")

_EPISODE_WORDS = _words("demo demonstration episode traj trajectory")

_GRIPPER_WORDS = _words("gripper grippers grip effector claw")

_NO_SENSOR_WORDS = _FUTURE_WORDS | _words("goal subgoal segmentation segm seg mask masks")

_JOINT_WORDS = _words("joint joints qpos")

_POSE_WORDS = _words("cartesian end endpose ee eef tcp pose orientation rotation rot quat")

_QUANTITIES = ("position", "velocity", "difference", "effort")

_QUANTITY_OF = {
    **dict.fromkeys(("velocity", "velocities", "vel", "qvel"), "velocity"),
    **dict.fromkeys(("delta", "deltas"), "difference"),
    **dict.fromkeys(("effort", "efforts", "torque", "torques", "force", "current", "motor"), "effort"),
}

_POSITION_WORDS = _words("position positions pos qpos")

_OBSERVED = re.compile(r"(^|[./_])(obs|observations?)(_seq)?([./_]|$)", re.I)

_STEPS = re.compile(r"^(steps|data)[./]")

_WHOLE = _words("vector all joined")

_CLOCK = re.compile(r"(^|[./])(t|times?(_?stamps?)?)$", re.I)


@cache
def words_of(key: str) -> tuple[str, ...]:
    """The words of a key, in lower case: `obs/isFirst_2` has obs, is, first and 2."""
    return tuple(word.lower() for word in _WORD.findall(key))


def clock_key(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The key with the time of each step: `timestamp`, or else the only one called `time`, `timestamps` or alike.

    Args:
        shapes: feature shape of every key.
    """
    clocks = [key for key, shape in shapes.items() if shape in ((), (1,)) and _CLOCK.search(key)]
    if "timestamp" in clocks:
        return "timestamp"
    return clocks[0] if len(clocks) == 1 else None


def is_gripper(key: str) -> bool:
    """Whether a key is called a gripper; an end effector alone is a pose."""
    words = words_of(key)
    return any(
        word in _GRIPPER_WORDS and not (word == "effector" and place and words[place - 1] == "end")
        for place, word in enumerate(words)
    )


def unobservable(key: str) -> str | None:
    """Why a robot cannot observe a key when a policy acts, by its name; None for a key that may be observed."""
    names = set(words_of(_STEPS.sub("", key, count=1)))
    last = set(last_words(key))
    if names & _FUTURE_WORDS or ("end" in names and names & _EPISODE_WORDS):
        return FUTURE
    if names & _TEXT_WORDS:
        return TEXT
    if names & _LABEL_WORDS or ("is" in names and names & {"first", "last"}):
        return LABEL
    if names & _CALIBRATION_WORDS or (names & _CAMERA_WORDS and names & _PLACED_WORDS):
        return CALIBRATION
    if re.search(r"cam\w*2\w+|\w+2cam|sensor_params?", key, re.I):
        return CALIBRATION
    if names & _RECORDING_WORDS or last in ({"frame"}, {"frames"}, {"t"}):
        return RECORDING
    if names & _SIMULATOR_WORDS or re.search(r"(^|[./])env_states?([./]|$)", key, re.I):
        return SIMULATOR
    if "goal" in names:
        return None
    return COMMAND if names & _COMMAND_WORDS or ("target" in names and names & _OWN_WORDS) else None


def is_previous(key: str) -> bool:
    """Whether a key is called a command of an earlier step."""
    return not {"prev", "previous"}.isdisjoint(words_of(key))


def last_words(key: str) -> tuple[str, ...]:
    """Split the last part of a key into words; one empty word for a key without letters."""
    return words_of(re.split(r"[./]", key)[-1]) or ("",)


def is_sensor(key: str) -> bool:
    """Whether a camera, depth or a cloud of this name shows the present scene, rather than the future, a goal or the
    labels of a simulator."""
    return not _NO_SENSOR_WORDS.intersection(words_of(key))


def roles_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """Guess the role of each numeric key from the names that recorders commonly use."""
    roles: dict[str, Role] = dict.fromkeys(shapes, "other")
    action = named_action(shapes)
    roles.update(dict.fromkeys(_observations({key: shapes[key] for key in shapes if key != action}), "observation"))
    if action is not None:
        roles[action] = "action"
    return roles


def named_action(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The key that is called the action; None without one, or where several have the name in different folders."""
    for name in ("action", "actions", "actions_seq"):
        if name in shapes and len(shapes[name]) <= 2:
            return name
    inner = [key for key in shapes if set(last_words(key)) <= _ACTION_WORDS and len(shapes[key]) <= 2]
    inner = [key for key in inner if not _OBSERVED.search(key) and unobservable(key) == COMMAND]
    return inner[0] if len(inner) == 1 else None


def _observations(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """List the keys that are probably observed: the keys in a folder of observations, and keys beside the folder with
    the name of a robot's part. Without such a folder: every vector, and every scalar with such a name."""
    candidates = [key for key, shape in shapes.items() if len(shape) <= 2 and unobservable(key) is None]
    inside = [key for key in candidates if _OBSERVED.search(key)]
    if inside:
        beside = [key for key in candidates if not re.search(r"[./]", key) and _OWN_WORDS & set(words_of(key))]
        states = [key for key in candidates if key in ("state", "states") and not any("/" in key for key in inside)]
        return [key for key in candidates if key in {*inside, *beside, *states}]
    if not any(set(words_of(key)) & (_OWN_WORDS | _STATE_WORDS) for key in candidates):
        return [key for key in candidates if len(shapes[key]) == 1 and shapes[key][0] > 1]
    return [
        key
        for key in candidates
        if (len(shapes[key]) == 1 and shapes[key][0] > 1) or (_OWN_WORDS | _STATE_WORDS) & set(words_of(key))
    ]


def action_parts(shapes: Mapping[str, tuple[int, ...]], still: Collection[str] = ()) -> list[str]:
    """The keys that make one action where commands are recorded in parts, in a folder called action or, without such
    a folder, after the leader of the robot: of each part of the robot positions rather than velocities or differences,
    and the joints of arms rather than their poses. Empty without parts.

    Args:
        still: keys that never change, which no command needs.
    """
    commands = {key: words_of(key) for key in shapes if _is_part(key, shapes[key], _ACTION_WORDS) and key not in still}
    if not commands:
        led = [key for key in shapes if _is_part(key, shapes[key], _LEADER_WORDS) and key not in still]
        commands = {key: words_of(key) for key in led}
    plain = {key: words for key, words in commands.items() if "target" not in words}
    commands = plain or commands
    for key, words in commands.items():
        width = math.prod(shapes[key])
        if words[-1] in _WHOLE and width == sum(math.prod(shapes[other]) for other in commands if other != key):
            return [key]
    limbs: dict[frozenset[str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, words in commands.items():
        quantity = next((_QUANTITY_OF[word] for word in words if word in _QUANTITY_OF), "position")
        limb = frozenset(set(words) - _ACTION_WORDS - _LEADER_WORDS - _POSITION_WORDS - _QUANTITY_OF.keys())
        limbs[limb][quantity].append(key)
    chosen = [
        (limb, next(quantities[quantity] for quantity in _QUANTITIES if quantity in quantities))
        for limb, quantities in limbs.items()
    ]
    has_joints = any(_is_joint(limb, keys) for limb, keys in chosen)
    parts: list[str] = []
    for limb, keys in chosen:
        is_pose = bool(limb & _POSE_WORDS) and not any(map(is_gripper, keys))
        parts += [] if has_joints and is_pose else keys
    return [key for key in shapes if key in parts]


def _is_joint(limb: Collection[str], keys: Collection[str]) -> bool:
    return bool(_JOINT_WORDS.intersection(limb)) and not any(map(is_gripper, keys))


def _is_part(key: str, shape: tuple[int, ...], names: Collection[str]) -> bool:
    """Whether a key lies in a folder of one of these names, such as `action/joint/position` or `steps/action/grip`."""
    folder, separator, _ = _STEPS.sub("", key, count=1).replace(".", "/").partition("/")
    is_folder = bool(separator) and not set(words_of(folder)).isdisjoint(names) and not _OBSERVED.search(key)
    is_state = {"state", "states"} & set(words_of(key))
    return is_folder and not is_state and len(shape) <= 2 and unobservable(key) in (COMMAND, None)


def gripper_commands(shapes: Mapping[str, tuple[int, ...]], action: str) -> list[str]:
    """Commands of grippers beside the key that is called the action."""
    return [
        key
        for key, shape in shapes.items()
        if key != action
        and not re.search(r"[./]", key)
        and len(shape) <= 1
        and is_gripper(key)
        and unobservable(key) == COMMAND
        and not is_previous(key)
    ]
