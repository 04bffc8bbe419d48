"""Push-T with four goals, a quarter turn apart; only the instruction names the goal of an episode.

A quarter turn of the world about the centre leaves the walls and the dynamics unchanged and maps each goal to the next.
Demonstrations of Push-T, turned, are therefore demonstrations of all four goals by the same expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from dp_prior.envs.lockstep import Lockstep
from dp_prior.envs.vector import SEED
from dp_prior.files.durable import refuse_existing
from dp_prior_worlds.expert_demonstrations import read_demonstrations, write_episodes
from dp_prior_worlds.goal_choice import INSTRUCTION, instruction_rows, number_of
from dp_prior_worlds.pusht import OBS_SHAPES, PushTConfig, read_state, reduced, repeatable_env, sensed
from dp_prior_worlds.pusht_keypoints import keypoints
from dp_prior_worlds.renderers.pusht import SCREEN, PushTWithoutGoalRendererConfig

INSTRUCTIONS = tuple(
    f"push the T onto its goal with the stem to the {corner}"
    for corner in ("lower left", "upper left", "upper right", "lower right")
)
"""Instructions, indexed by the number of quarter turns from the goal of Push-T."""


class PushTGoalsConfig(PushTConfig):
    """Push-T with four goals. An episode's goal is its seed modulo 4. Only the observation `instruction` tells the
    goal; state and camera do not show it."""

    type: Literal["pusht_goals"] = "pusht_goals"

    embedding: ClassVar = False

    expert: ClassVar = None
    """None, since the expert of Push-T knows a single goal."""

    def create(self) -> Lockstep:
        """Create the environment; observations as of Push-T, and `instruction`, a text. See `PushTConfig`."""
        shapes, cameras = {**OBS_SHAPES, INSTRUCTION: ()}, {}
        if self.camera is not None:
            shapes["camera"] = (*self.camera, 3)
            cameras["camera"] = PushTWithoutGoalRendererConfig().create(self.camera)
        draw = partial(_draw, cameras=cameras)
        return self._lockstep(_env_with_goals(), shapes, _read, draw, start_keys=("state", SEED))


def _env_with_goals() -> Any:
    class PushTWithGoals(repeatable_env()):
        """Observes the state and the instruction."""

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            state, info = super().reset(seed=seed, options=options)
            self.turns = number_of(seed, len(INSTRUCTIONS))
            self.goal_pose[2] += self.turns * np.pi / 2
            return (state, INSTRUCTIONS[self.turns]), info

        def step(self, action: np.ndarray) -> tuple[Any, ...]:
            state, *rest = super().step(action)
            return (state, INSTRUCTIONS[self.turns]), *rest

        def begin(self, start: Mapping[str, Any]) -> Any:
            """See `repeatable_env`; the recorded seed, modulo 4, is the goal."""
            return super().begin(start), INSTRUCTIONS[self.turns]

    return PushTWithGoals


def _read(raw: tuple[np.ndarray, str]) -> dict[str, np.ndarray]:
    state, text = raw
    return {**read_state(state, {"keypoint": keypoints}), INSTRUCTION: np.array(text)}


def _draw(raw: tuple[np.ndarray, str], cameras: dict[str, Any]) -> dict[str, np.ndarray]:
    return sensed(raw[0], cameras)


def turned(points: np.ndarray, turns: int) -> np.ndarray:
    """Turn points (..., 2) in px by quarter turns about the middle of the world, clockwise on the screen."""
    for _ in range(turns % 4):
        points = np.stack([SCREEN - points[..., 1], points[..., 0]], axis=-1)
    return points


def turned_states(states: np.ndarray, turns: int) -> np.ndarray:
    """Turn states (n, 5) of Push-T by quarter turns; the angle stays in [0, 2 pi)."""
    angle = reduced(states[:, 4:] + turns * np.pi / 2)
    return np.concatenate([turned(states[:, :2], turns), turned(states[:, 2:4], turns), angle], axis=1)


def write_goal_demonstrations(demonstrations: Path, path: Path) -> int:
    """Write every episode of Push-T demonstrations four times, turned to each goal, with the number of the goal.

    Args:
        demonstrations: a file by `write_demonstrations`.
        path: file to write: state, action, episode_ends, `goal` (N,) and the texts of the goals `instructions` (4,).

    Returns:
        Number of episodes written.

    Raises:
        ConfigError: see `read_demonstrations`.
        FileExistsError: the file exists.
    """
    refuse_existing(path)
    states, actions, ends = read_demonstrations(demonstrations)
    episodes, goals = [], []
    for rows in np.split(np.arange(len(states)), ends[:-1]):
        for turns in range(4):
            episodes.append((turned_states(states[rows], turns), turned(actions[rows], turns)))
            goals.append(turns)
    lengths = [len(episode_actions) for _, episode_actions in episodes]
    write_episodes(path, episodes, **instruction_rows("goal", goals, lengths, INSTRUCTIONS))
    return len(episodes)
