"""Meta-World: 50 tasks for a simulated Sawyer arm (Yu et al. 2020, arXiv:1910.10897), by the package metaworld.

Meta-World's gymnasium ids are not used: `reset(seed=...)` there draws one of 50 starts and ignores the seed.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.config import Config
from dp_prior.config.extras import needing
from dp_prior.envs.expert import Expert
from dp_prior.envs.lockstep import Lockstep


class MetaWorldConfig(Config):
    """A Meta-World task observed as a state. Score: 1 if solved, which ends the episode, else 0."""

    type: Literal["metaworld"] = "metaworld"

    score_range: ClassVar = (0.0, 1.0)

    modules: ClassVar = ("metaworld", "mujoco")
    """What simulates, for the environment's fingerprint."""

    task: str
    """Name of the task, for example `push-v3`."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=500, ge=1, le=500)
    """Control steps after which an unsolved episode is over; 80 per second. Meta-World's own limit is 500."""

    render_size: int = Field(default=256, ge=16, le=4096)
    """Side of a rendered picture, in pixels."""

    def create(self) -> Lockstep:
        """The environment. Observation: state (39,): hand x, y, z in m, opening of the gripper in [0, 1], position and
        quaternion of two objects (zeros if there is only one); the same one step earlier; and the goal x, y, z in m.

        Actions are (4,) in [-1, 1]: the hand's x, y, z in cm and the force that closes the gripper.

        Raises:
            ImportError: metaworld is missing.
            ValueError: the task does not exist.
        """
        return Lockstep(
            [SeededTask(self.task, self.render_size) for _ in range(self.n_envs)],
            max_steps=self.max_steps,
            fps=80,
            obs_shapes={"state": (39,)},
            read_obs=lambda obs: {"state": obs.astype(np.float32)},
            score="success",
            success_score=None,
        )

    def expert(self) -> Expert:
        """Meta-World's scripted policy of the task.

        Raises: see `create`.
        """
        task_class(self.task)
        from metaworld.policies import ENV_POLICY_MAP

        policy = ENV_POLICY_MAP[self.task]()

        def act(obs: Mapping[str, np.ndarray]) -> np.ndarray:
            with warnings.catch_warnings():  # the policies warn of large actions at nearly every step
                warnings.simplefilter("ignore")
                return np.clip(policy.get_action(obs["state"].astype(np.float64)), -1.0, 1.0)

        return act


class SeededTask:
    """One environment of a task. The seed determines the start; the goal is observed; success ends the episode."""

    def __init__(self, task: str, render_size: int = 256):
        """Raises: see `task_class`."""
        env = task_class(task)(render_mode="rgb_array", camera_name="corner2", width=render_size, height=render_size)
        env._partially_observable = False
        del env.sawyer_observation_space  # a cached property, recomputed with the bounds of the goal
        env.seeded_rand_vec, env._freeze_rand_vec = True, False  # starts are drawn from the generator that `seed` seeds
        env._set_task_called = True
        self._env = env
        self.action_space = env.action_space

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """(39,) float64 observation at the start, and an empty info."""
        self._env.seed(seed)
        return self._env.reset()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Observation, reward, whether the task is solved, whether 500 steps have passed, and Meta-World's info."""
        obs, reward, _, truncated, info = self._env.step(action)
        return obs, float(reward), info["success"] == 1.0, truncated, info

    def render(self) -> np.ndarray:
        """(size, size, 3) uint8 from the camera `corner2`, which Meta-World mounts upside down."""
        try:
            return self._env.render()[::-1, ::-1]
        except Exception as error:  # of MuJoCo, PyOpenGL or gymnasium, by platform
            raise ValueError(
                f"MuJoCo cannot render here ({error}). Set the environment variable MUJOCO_GL to egl or osmesa, see "
                f"docs/environments.md, or the evaluator's videos to 0"
            ) from error

    def close(self) -> None:
        """Release the renderer."""
        self._env.close()


def task_class(task: str) -> type:
    """Meta-World's class of a task.

    Raises:
        ImportError: metaworld is missing.
        ValueError: there is no such task.
    """
    with needing("metaworld", "Meta-World is not installed"):
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    if task not in ALL_V3_ENVIRONMENTS:
        close = difflib.get_close_matches(task, ALL_V3_ENVIRONMENTS, n=3, cutoff=0.4)
        hint = (
            f"Did you mean {' or '.join(map(repr, close))}?"
            if close
            else "Its tasks: " + ", ".join(ALL_V3_ENVIRONMENTS)
        )
        raise ValueError(f"Meta-World has no task {task!r}. {hint}")
    return ALL_V3_ENVIRONMENTS[task]
