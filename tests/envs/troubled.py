"""Environments with trouble in them, and workers that open them; in a file that imports no torch, as workers do."""

import os
import select
import signal

import gymnasium
import numpy as np

from dp_prior.config import ConfigError
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.workers import Workers


class Troubled(gymnasium.Env):
    """Does what `trouble` says in the second step of an episode whose seed is odd."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode=None, trouble=None):
        self.trouble = trouble

    def reset(self, seed=None, options=None):
        self.age, self.is_odd = 0, seed % 2 == 1
        return np.zeros(1), {}

    def step(self, action):
        self.age += 1
        if self.is_odd and self.age == 2:
            if self.trouble == "raise":
                raise ValueError("the gripper is stuck")
            if self.trouble == "refuse":
                raise ConfigError("no camera", ["there is no display"], advice="set MUJOCO_GL")
            if self.trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "hang":
                select.select([], [], [])
        return np.full(1, self.age), 1.0, False, False, {}


gymnasium.register("dp_prior_tests/Troubled-v0", "tests.envs.troubled:Troubled", max_episode_steps=9)
gymnasium.register("dp_prior_tests/Class-v0", Troubled, max_episode_steps=9)
gymnasium.register("dp_prior_tests/Nowhere-v0", "no_such_package.world:World", max_episode_steps=9)


def troubled(trouble=None, id="Troubled-v0", n_envs=2):
    return GymConfig(id=f"dp_prior_tests/{id}", n_envs=n_envs, make_arguments={"trouble": trouble})


def opened(*args):
    workers = Workers(*args)
    return workers, [worker._process.pid for worker in workers._workers]
