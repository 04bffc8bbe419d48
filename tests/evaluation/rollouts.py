"""Policies of known score in the toy environment, and worlds with a camera or with instructions."""

from types import SimpleNamespace

import numpy as np
import torch

from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.envs.toy import Toy, ToyConfig
from dp_prior.evaluation.measurement import Measurement
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Normalizer, Statistics
from tests.evaluation.fakes import NOW, TinyPolicy

KEYS = {"agent_pos": (2,), "goal": (2,)}


class Way(TinyPolicy):
    """Plans around the disc, by a side drawn from its noise; a `broken` one gives NaN for goals at the left."""

    def __init__(self, side=None, broken=False):
        super().__init__(horizon=8, n_obs_steps=2, n_action_steps=4, keys=KEYS)
        self.side, self.broken, self.samplers, self.batches, self.begun_from = side, broken, [], [], []

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.samplers.append(how.sampler)
        self.begun_from.append(how.previous)
        self.batches.append(len(random))
        drawn = torch.where(random.uniform(1) < 0.5, -1.0, 1.0)
        side = drawn if self.side is None else torch.full_like(drawn, self.side)
        here = obs["agent_pos"][:, -1]
        chunk = [here]
        waypoint = torch.cat([0.62 * side, torch.zeros_like(side)], dim=1)
        for _ in range(7):
            way = torch.where(here[:, 1:] < 0, waypoint, obs["goal"][:, -1]) - here
            here = here + way * (0.1 / way.norm(dim=1, keepdim=True)).clamp(max=1)
            chunk.append(here)
        chunk = torch.stack(chunk, dim=1)
        return torch.where((obs["goal"][:, -1, 0] < 0)[:, None, None], torch.nan, chunk) if self.broken else chunk


def config(**fields) -> RolloutConfig:
    """Twenty rollouts of the toy, eight at a time."""
    return RolloutConfig(**{"env": ToyConfig(n_envs=8), "n_episodes": 20, "videos": 0, "model": "online", **fields})


def measure(policy=None, accelerator=None, **fields) -> Measurement:
    """Those of a policy, or of one that wavers."""
    return config(**fields).create().run({"online": policy or Way()}, accelerator, NOW)


class Silent(Toy):
    """A world that speaks of success only where `solved` says so, and does not draw itself."""

    solved = ()

    def step(self, actions):
        step = super().step(actions)
        success = np.where(np.isin(np.arange(len(actions)), self.solved), 1.0, np.nan)
        return step._replace(info={**step.info, "success": success})

    def render(self, rows):
        raise ValueError("the environment renders None")


FRONT = {**KEYS, "front": (8, 8, 3)}


class Filmed(Toy):
    """A world with a camera, whose frames are the number of the step."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.obs_shapes = FRONT

    def reset(self, seeds):
        self.number = 0
        return super().reset(seeds)

    def step(self, actions):
        self.number += 1
        return super().step(actions)

    def _observations(self):
        obs = super()._observations()
        return {**obs, "front": np.full((len(obs["goal"]), 8, 8, 3), self.number, np.uint8)}


class Watching(Way):
    """Has a camera, remembers what it gets, and acts by the rest."""

    def __init__(self):
        super().__init__(side=1.0)
        self.spec = Spec(
            x_shape=(8, 2), cond_shapes={key: (2, *shape) for key, shape in FRONT.items()}, kinds={"front": "image"}
        )
        self.normalizer = Normalizer(KEYS, {})
        self.normalizer.fit({key: Statistics.of(np.array([[0.0, 0.5], [0.5, 1.0], [1.0, 3.0]])) for key in KEYS})
        self.got = []

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.got.append(obs)
        return super().draw(obs, random, how)


def seen(**fields) -> tuple[Measurement, list]:
    """Rollouts of a policy that has a camera, and what it got."""
    policy = Watching()
    return measure(policy, workers=0, **fields), policy.got


SIDES = ("go right", "go left")


class Telling(Toy):
    """Says on which side the goal lies."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.obs_shapes = {**self.obs_shapes, "told": ()}

    def reset(self, seeds):
        return self._told(super().reset(seeds))

    def step(self, actions):
        step = super().step(actions)
        return step._replace(obs=self._told(step.obs))

    def _told(self, obs):
        return {**obs, "told": np.array([SIDES[int(x < 0)] for x in obs["goal"][:, 0]])}


class Listening(Way):
    """Remembers what it was told, as embeddings."""

    def __init__(self, **fields):
        super().__init__(**fields)
        shapes = {**self.spec.cond_shapes, "told": (2, 8)}
        more = {"kinds": {"told": "text"}, "embedders": {"told": HashedConfig(dimension=8)}}
        self.spec = Spec(x_shape=(8, 2), cond_shapes=shapes, **more)
        self.heard = []
        self.normalizer = SimpleNamespace(get_buffer=lambda name: torch.full((8,), 7.0))  # the mean in training

    def draw(self, obs, random, how=AS_CONFIGURED):
        self.heard.append((obs["goal"][:, -1, 0] < 0, obs["told"][:, -1]))
        return super().draw(obs, random, how)

    def heard_rightly(self):
        """For every prediction and row whether it was told its own side."""
        own = torch.from_numpy(HashedConfig(dimension=8).create().texts(SIDES))
        return torch.cat([(told == own[left.long()]).all(-1) for left, told in self.heard])
