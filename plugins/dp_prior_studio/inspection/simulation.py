"""Evaluators in the simulation in which a data set was recorded, if its metadata name the simulation."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.formats.robomimic import ACTIONS
from dp_prior.data.recorded.selection import ActionConfig
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_studio.inspection.survey import SMALLEST_PICTURE, Survey
from dp_prior_worlds.libero import STATES as LIBERO_STATES
from dp_prior_worlds.libero import TASK, LiberoConfig
from dp_prior_worlds.opengl import can_draw
from dp_prior_worlds.renderers.robosuite import need_robosuite
from dp_prior_worlds.robosuite import STATES, RobosuiteConfig, has_composite, needs_composite
from dp_prior_worlds.robosuite_world import IMAGE

RECORDED_CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
"""Names of LIBERO's cameras, without `obs/`."""

LARGEST_DIFFERENCE = 1.0
"""Largest relative action of robosuite's controllers; larger numbers are poses."""

POSE = 7
"""Numbers of an arm's pose as an action: position, rotation vector, and the gripper."""


def simulated(survey: Survey, data: dict[str, Any]) -> list[dict[str, Any]]:
    """`test` of a configuration: rollouts, unless frames are turned, and replays where the simulator's states were
    recorded. Empty if the data set does not name its simulation, something else than its actions is learned, robosuite
    cannot be imported, or the task is another package's, as MimicGen's.

    Args:
        data: `data` of the configuration, whose cameras the environment draws.
    """
    environment = survey.store.environment()
    action = data.get("action", {})
    is_recorded = {"key"} <= action.keys() <= {"key", "rotations"} and str(action["key"]).startswith(ACTIONS)
    if environment is None or not is_recorded:
        return []
    if any(simulation_gap(survey)):
        return []
    if environment["type"] == "libero":
        return _in_libero(environment, data)
    cameras = {
        name.removesuffix(IMAGE): record["size"]
        for name, record in data.get("images", {}).items()
        if name.endswith(IMAGE)
    }
    longest = 100 * math.ceil(1.5 * survey.lengths.max() / 100)
    env = RobosuiteConfig(
        **environment,
        absolute_actions=_has_poses(survey),
        max_steps=max(longest, RobosuiteConfig.model_fields["max_steps"].default),
        cameras=cameras,
    ).model_dump(mode="json", exclude_defaults=True)
    env = {"type": "robosuite", **env}
    if cameras and not can_draw():
        return []
    films = {} if can_draw() else {"videos": 0}
    is_turned = any("turn" in record for record in data.get("images", {}).values())  # the environment draws upright
    rollout = {"type": "rollout", "name": "test", "env": env, **films}
    evaluators: list[dict[str, Any]] = [] if is_turned else [rollout]
    keys = survey.store.keys()
    if STATES in keys:
        replayed = {name: value for name, value in env.items() if name != "cameras"}
        evaluators.insert(0, {"type": "replay", "env": replayed, "start": {STATES: STATES}})
    return evaluators


def pose_action(survey: Survey) -> ActionConfig | None:
    """The action of robosuite's poses with the rotation vector of each arm, which a policy learns as 6D.

    None for differences of poses, data of another simulation, and an action whose rotations are named already.
    """
    environment, signals = survey.store.environment(), survey.of("action")
    if environment is None or environment["type"] != "robosuite" or len(signals) != 1 or signals[0].rotations:
        return None
    (signal,), robots = signals, environment["make_arguments"].get("robots")
    n_arms = len(robots) if isinstance(robots, list) else 1
    is_recorded = len(signal.keys) == 1 and signal.keys[0].startswith(ACTIONS)
    if not is_recorded or signal.values.shape[1] != POSE * n_arms or not _has_poses(survey):
        return None
    rotations = [RotationSlice(slice=(POSE * arm + 3, POSE * arm + 6), form="axis_angle") for arm in range(n_arms)]
    return ActionConfig(key=signal.keys[0], rotations=tuple(rotations))


def _has_poses(survey: Survey) -> bool:
    """Whether recorded actions of robosuite are poses, which exceed the limits of differences."""
    largest = max(float(np.nanmax(abs(signal.values), initial=0.0)) for signal in survey.of("action"))
    return largest > LARGEST_DIFFERENCE


def simulation_gap(survey: Survey) -> Iterator[str]:
    """Why the simulation that a data set names is not proposed for tests: a line, none for a simulation that can be
    made here and for data of a robot."""
    environment = survey.store.environment()
    if environment is None:
        return
    if environment["type"] == "libero":
        yield from _libero_gap(LiberoConfig(**environment))
        return
    name = f"the episodes were recorded in robosuite's {environment['task']}, in which first settings do not test"
    try:
        robosuite = need_robosuite()
        tasks = robosuite.ALL_ENVIRONMENTS
    except (ImportError, ValueError) as error:
        yield f"{name}: {error}"
        return
    if environment["task"] not in tasks:
        yield f"{name}: robosuite here has no task of that name, which another package adds"
    elif needs_composite(environment["make_arguments"]) and not has_composite(robosuite):
        versions = f"with robosuite 1.5 or later, by its controllers of body_parts; here is {robosuite.__version__}"
        yield f"{name}: the file was recorded {versions} (docs/robosuite.md)"
    elif survey.cameras and not can_draw():
        yield f"{name}: MuJoCo cannot draw its cameras here (docs/robosuite.md)"
    elif fault := making_fault(json.dumps(environment)):
        yield f"{name}: {fault}"


@functools.cache
def making_fault(environment: str) -> str:
    """Why robosuite here cannot make a recorded task, as with the arguments of another version; else an empty text.

    Args:
        environment: the settings of a `RobosuiteConfig`, as JSON.
    """
    try:
        RobosuiteConfig(**json.loads(environment), n_envs=1).create().close()
    except ValueError as error:
        return str(error)
    return ""


def _in_libero(environment: dict[str, Any], data: dict[str, Any]) -> list[dict[str, Any]]:
    """A replay from the recorded states and a rollout from the published starts, of a suite of LIBERO."""
    images = {name: record["size"] for name, record in data.get("images", {}).items() if name in RECORDED_CAMERAS}
    cameras = {name: np.maximum(size, SMALLEST_PICTURE).tolist() for name, size in images.items()}
    env = LiberoConfig(**environment, cameras=cameras).model_dump(mode="json", exclude_defaults=True)
    env = {"type": "libero", **env}
    replayed = {name: value for name, value in env.items() if name != "cameras"}
    start = {LIBERO_STATES: LIBERO_STATES, TASK: TASK}
    rollout = {"type": "rollout", "name": "test", "env": env, "first_seed": 0}
    return [{"type": "replay", "env": replayed, "start": start}, rollout]


def _libero_gap(record: LiberoConfig) -> Iterator[str]:
    """A line where LIBERO is not installed in the Python that an environment of this machine would start."""
    if not Path(record.interpreter).is_file():
        where = f"there is no {record.interpreter}, an environment with {record.requires} (docs/libero.md)"
        yield f"the episodes were recorded in LIBERO's {record.suite}, in which first settings do not test: {where}"
