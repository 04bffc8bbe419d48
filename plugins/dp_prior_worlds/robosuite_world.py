"""One world of robosuite in gymnasium's manner: starts from seeds or recorded states, and pictures when looked at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from dp_prior.files.entry_points import needing
from dp_prior_worlds.renderers.robosuite import RobosuiteStage

OBJECT = "object"
"""robomimic's name of robosuite's `object-state`: poses of the objects and their offsets to the grippers."""

IMAGE = "_image"
"""Ending of a picture's name, after the name of the camera."""

PROPRIOCEPTION = "eef_pos", "eef_quat", "gripper_qpos"
"""The observations of each arm for policies of robomimic's tasks: m, quaternion (x, y, z, w), and the fingers in m."""

SIDES = "", "right_", "left_"
"""The arm in an observation's name: empty for a robot with a single arm."""


class RobosuiteWorld:
    """A world that is its own raw observation. The seed determines the start; success ends the episode."""

    def __init__(self, env: Any, is_limited: bool, cameras: Mapping[str, tuple[int, int]], film: tuple[str, int]):
        """
        Args:
            env: an environment of `robosuite.make`, without renderers.
            is_limited: whether actions have robosuite's limits, as differences of poses do.
            cameras: height and width of each camera's pictures.
            film: camera and side in pixels of the pictures for films.
        """
        with needing("robosuite", "the tasks of robosuite need gymnasium"):
            from gymnasium.spaces import Box

        self._env, self._cameras, self._film = env, cameras, film
        unlimited = np.full(env.action_dim, np.inf)
        low, high = env.action_spec if is_limited else (-unlimited, unlimited)
        self.control_freq = env.control_freq
        self.action_space = Box(low.astype(np.float32), high.astype(np.float32))
        self._observations: Mapping[str, np.ndarray] = env._get_observations(force_update=True)
        self._stages: dict[tuple[int, int], RobosuiteStage] = {}

    def reset(self, seed: int) -> tuple[RobosuiteWorld, dict[str, Any]]:
        """Reset to the start of a seed; returns this world and an empty info."""
        with _seeded(self._env, seed):
            self._observations = self._env.reset()
        self._stages.clear()  # of the model of the last start
        return self, {}

    def begin(self, state: np.ndarray) -> tuple[RobosuiteWorld, dict[str, Any]]:
        """Reset to a recorded state of the simulator; returns this world and an empty info.

        Args:
            state: (1 + positions + velocities,), as in robomimic's files under `states`.

        Raises:
            ValueError: the state belongs to another world.
        """
        self.reset(0)
        sim = self._env.sim
        size = 1 + sim.model.nq + sim.model.nv
        if state.shape != (size,):
            raise ValueError(
                f"a recorded state has shape {state.shape}, but this world's has {size} numbers: time, "
                f"{sim.model.nq} positions and {sim.model.nv} velocities; check task and make_arguments"
            )
        sim.set_state_from_flattened(state.astype(np.float64))
        sim.forward()
        for controller in _controllers(self._env):  # as if its reset had put the joints there
            controller.update_initial_joints(sim.data.qpos[controller.qpos_index])
        for observable in self._env._observables.values():  # otherwise clocks since the reset would be a step ahead
            observable.reset()
        self._observations = self._env._get_observations(force_update=True)
        return self, {}

    def step(self, action: np.ndarray) -> tuple[RobosuiteWorld, float, bool, bool, dict[str, Any]]:
        """Execute an action; returns this world, the reward from 0 to 1, whether the task is solved, False, and the
        info."""
        self._observations, reward, _, _ = self._env.step(action)
        is_solved = bool(self._env._check_success())
        return self, float(reward), is_solved, False, {"success": is_solved}

    def observe(self) -> dict[str, np.ndarray]:
        """The numbers by name, see `RobosuiteConfig.create`."""
        parts = {name: value for name, value in self._observations.items() if not name.endswith("-state")}
        observed = {OBJECT: self._observations[f"{OBJECT}-state"], **parts}
        robots = [robot.robot_model.naming_prefix for robot in self._env.robots]
        body_names = list(map("".join, itertools.product(robots, SIDES, PROPRIOCEPTION)))
        observed["state"] = np.concatenate([observed[name] for name in (OBJECT, *body_names) if name in observed])
        return {name: np.atleast_1d(value).astype(np.float32) for name, value in observed.items()}

    def draw(self) -> dict[str, np.ndarray]:
        """The cameras' pictures by name, such as `agentview_image`."""
        return {f"{camera}{IMAGE}": self._picture(camera, *size) for camera, size in self._cameras.items()}

    def render(self) -> np.ndarray:
        """(side, side, 3) uint8 for films."""
        camera, side = self._film
        return self._picture(camera, side, side)

    def close(self) -> None:
        """Release pictures and simulation."""
        self._stages.clear()
        self._env.close()

    def _picture(self, camera: str, *size: int) -> np.ndarray:
        if size not in self._stages:
            self._stages[size] = RobosuiteStage(self._env.sim, size)
        return self._stages[size].draw(camera)


def _controllers(env: Any) -> Iterator[Any]:
    """The controllers of all arms; a robot has a single controller, or a dictionary of several."""
    for robot in env.robots:
        parts = getattr(robot, "part_controllers", None) or robot.controller
        yield from parts.values() if isinstance(parts, dict) else (parts,)


@contextmanager
def _seeded(env: Any, seed: int) -> Iterator[None]:
    """A context in which robosuite draws a start from a seed: from the generators of Python and numpy, whose states are
    restored afterwards, and from version 1.5 on from a generator that all parts of robosuite share."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    if hasattr(env, "rng"):
        env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
