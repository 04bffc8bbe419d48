"""Toy environment: reach a goal behind a disc, passing left or right. Needs numpy only and runs in milliseconds.

Both ways are equally good, so a policy that averages its demonstrations runs into the disc and stays there with about
half the score, while a policy that commits to one way reaches the best score of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.envs.env_record import EnvRecord, Expert
from dp_prior.envs.vector import EnvStep, check_actions, check_seeds, check_starts

_REACH = 0.1  # the goal is reached from this distance
_WAYPOINT = np.array([0.62, 0.0])  # where the expert passes the disc, on the right; mirrored on the left


class ToyConfig(EnvRecord):
    """A reacher in the square [-1, 1] x [-1, 1]. Score: best progress towards the goal so far; 1 at the goal."""

    type: Literal["toy"] = "toy"

    score_range: ClassVar = (0.0, 1.0)

    n_envs: int = Field(default=25, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=40, ge=1)
    """Control steps after which an unsolved episode is over; the expert needs about 21."""

    speed: float = Field(default=0.1, gt=0)
    """Longest move in one step."""

    obstacle_radius: float = Field(default=0.4, ge=0, le=0.45)
    """Radius of the disc around the origin, which the agent cannot enter. 0 removes it."""

    render_size: int = Field(default=128, ge=16, le=4096)
    """Side of a rendered picture, in pixels."""

    def create(self) -> Toy:
        """Create the environment. Observations: agent_pos (2,), goal (2,). Actions are target positions, (2,)."""
        return Toy(**self.arguments())

    def expert(self) -> Expert:
        """Create an expert that passes the disc on the agent's side; see `expert_action`."""

        def act(obs: Mapping[str, np.ndarray]) -> np.ndarray:
            agent, goal = obs["agent_pos"][None], obs["goal"][None]
            return expert_action(agent, goal, np.where(agent[:, 0] < 0, -1.0, 1.0), self.speed)[0]

        return act


class Toy:
    """See `ToyConfig`."""

    def __init__(self, *, n_envs: int, max_steps: int, speed: float, obstacle_radius: float, render_size: int):
        self.n_envs = n_envs
        self.max_steps = max_steps
        self.speed = speed
        self.obstacle_radius = obstacle_radius
        self.render_size = render_size
        self.fps = 10.0
        self.obs_shapes = {"agent_pos": (2,), "goal": (2,)}
        self.action_dim = 2
        self.start_keys = ("agent_pos", "goal")

    def reset(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        draws = np.array([np.random.default_rng(int(seed)).uniform(-0.15, 0.15, 2) for seed in seeds]).reshape(-1, 2)
        agent, goal = (np.stack([draws[:, i], np.full(len(draws), y)], axis=1) for i, y in enumerate((-0.8, 0.8)))
        return self.reset_to({"agent_pos": agent, "goal": goal})

    def reset_to(self, starts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `StartsAsRecorded`."""
        check_starts(starts, self.start_keys)
        check_seeds(starts["goal"], self.n_envs)
        n = len(starts["goal"])
        self._agent, self._goal = (np.array(starts[key], np.float64) for key in self.start_keys)
        self._target = self._agent.copy()
        self._start = np.linalg.norm(self._goal - self._agent, axis=1)
        self._steps = 0
        self._done = np.zeros(n, dtype=bool)
        self._success = np.zeros(n, dtype=bool)
        self._score = np.zeros(n)
        return self._observations()

    def step(self, actions: np.ndarray) -> EnvStep:
        actions = np.clip(check_actions(actions, len(self._agent), self.action_dim), -1.0, 1.0).astype(np.float64)
        self._steps += 1
        running = ~self._done
        move = actions - self._agent
        length = np.linalg.norm(move, axis=1, keepdims=True)
        arrival = self._agent + move * np.minimum(1.0, self.speed / np.maximum(length, 1e-12))
        free = np.linalg.norm(arrival, axis=1) >= self.obstacle_radius
        self._agent = np.where((running & free)[:, None], arrival, self._agent)
        self._target = np.where(running[:, None], actions, self._target)
        distance = np.linalg.norm(self._goal - self._agent, axis=1)
        self._success |= running & (distance < _REACH)
        progress = np.where(self._success, 1.0, np.clip(1.0 - distance / self._start, 0.0, 1.0))
        score = np.where(running, np.maximum(self._score, progress), self._score)
        reward, self._score = score - self._score, score
        self._done = self._done | self._success | (self._steps >= self.max_steps)
        info = {"score": self._score.copy(), "success": self._success.copy()}
        return EnvStep(self._observations(), reward, self._done.copy(), info)

    def render(self, rows: Sequence[int]) -> np.ndarray:
        size = self.render_size
        centres = (np.arange(size) + 0.5) / size * 2 - 1
        x, y = np.meshgrid(centres, -centres)
        image = np.ones((len(rows), size, size, 3))

        def disc(centre: np.ndarray, radius: float, colour: tuple[float, float, float]) -> None:
            distance = np.hypot(x - centre[:, 0, None, None], y - centre[:, 1, None, None])
            cover = np.clip((radius - distance) * size / 2 + 0.5, 0.0, 1.0)[..., None]  # smooth over one pixel
            image[:] = image * (1 - cover) + cover * np.array(colour)

        picked = list(rows)
        disc(self._goal[picked], _REACH, (0.56, 0.93, 0.56))
        disc(np.zeros((len(picked), 2)), self.obstacle_radius, (0.47, 0.53, 0.6))
        disc(self._target[picked], 0.03, (0.86, 0.2, 0.2))
        disc(self._agent[picked], 0.06, (0.25, 0.41, 0.88))
        return (image * 255).round().astype(np.uint8)

    def close(self) -> None:
        """Do nothing."""

    def _observations(self) -> dict[str, np.ndarray]:
        return {"agent_pos": self._agent.astype(np.float32), "goal": self._goal.astype(np.float32)}


def expert_action(agent: np.ndarray, goal: np.ndarray, side: np.ndarray, speed: float = 0.1) -> np.ndarray:
    """Next target (n, 2) of agents at (n, 2) that pass the disc on `side`, (n,) of +-1."""
    waypoint = _WAYPOINT * np.stack([side, np.ones_like(side)], axis=1)
    way = np.where(agent[:, 1:] < _WAYPOINT[1], waypoint, goal) - agent
    length = np.linalg.norm(way, axis=1, keepdims=True)
    return agent + way * np.minimum(1.0, speed / np.maximum(length, 1e-12))


def demonstrations(n: int, seed: int = 0, noise: float = 0.005) -> dict[str, np.ndarray]:
    """Play episodes of the expert, which takes either side with equal probability.

    Args:
        n: number of episodes.
        noise: standard deviation of the noise added to each action.

    Returns:
        state (N, 4) float32: agent_pos and goal; action (N, 2) float32; episode_ends (n,) int64.
    """
    random = np.random.default_rng(seed)
    env = ToyConfig(n_envs=n, max_steps=100).create()
    obs = env.reset(random.integers(2**62, size=n))
    side = random.choice([-1.0, 1.0], size=n)
    states, actions, alive = [], [], []
    done = np.zeros(n, dtype=bool)
    while not done.all():
        action = expert_action(obs["agent_pos"], obs["goal"], side) + random.normal(0.0, noise, (n, 2))
        states.append(np.concatenate([obs["agent_pos"], obs["goal"]], axis=1))
        actions.append(action)
        alive.append(~done)
        obs, _, done, _ = env.step(action)
    is_alive = np.stack(alive, axis=1)  # (n, steps), so that an episode's rows are contiguous
    return {
        "state": np.stack(states, axis=1)[is_alive].astype(np.float32),
        "action": np.stack(actions, axis=1)[is_alive].astype(np.float32),
        "episode_ends": np.cumsum(is_alive.sum(axis=1)).astype(np.int64),
    }
