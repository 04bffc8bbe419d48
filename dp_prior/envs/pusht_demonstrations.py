"""Demonstrations of Push-T by the scripted expert, with random disturbances so that they contain recoveries.

An episode depends on its seed alone. The file has the layout of a replay buffer: `state`, `action`, `episode_ends`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dp_prior.envs.demonstrations import record
from dp_prior.envs.pusht_expert import PushTExpert

MAX_STEPS = 300
DISTURBANCE_RATE = 0.04  # probability per step that a disturbance begins
DISTURBANCE_STEPS = 2, 7  # fewest and most steps it lasts
DISTURBANCE_PX = 30.0  # standard deviation, in x and in y, of the offset that it adds to the action


def demonstrate(seed: int, expert: PushTExpert | None = None) -> tuple[np.ndarray, np.ndarray, bool]:
    """One episode of gym_pusht/PushT-v0 from the start that `reset(seed=seed)` gives.

    A disturbance shifts the executed action; the recorded action is the one that the expert chose
    (Laskey et al. 2017, DART, arXiv:1703.09327).

    Returns:
        state: (T, 5) float32 before the action of its row: agent x, agent y, block x, block y in px, block angle in
            [0, 2 pi). In the last row of a solved episode the block is at the goal.
        action: (T, 2) float32: target position of the agent in px, 0..512.
        is_solved: whether the block came to cover more than 95 % of the goal.
    """
    try:
        import gym_pusht  # noqa: F401 (registers the environment)
        import gymnasium
    except ImportError as error:
        raise ImportError("Push-T needs gym-pusht, which is not installed. Run: pip install dp_prior[pusht]") from error

    expert = expert or PushTExpert()
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="state", max_episode_steps=MAX_STEPS)
    rng = np.random.default_rng(seed)
    state, _ = env.reset(seed=seed)
    states, actions = [], []
    is_solved, is_over = False, False
    disturbed_steps, disturbance = 0, np.zeros(2)
    while not is_over:
        action = expert.act(state).astype(np.float32)
        states.append(state)
        actions.append(action)
        if disturbed_steps == 0 and rng.random() < DISTURBANCE_RATE:
            disturbed_steps = rng.integers(*DISTURBANCE_STEPS, endpoint=True)
            disturbance = rng.normal(0.0, DISTURBANCE_PX, 2)
        executed = action
        if disturbed_steps > 0:
            executed = np.clip(action + disturbance, 0.0, 512.0).astype(np.float32)
            disturbed_steps -= 1
        state, _, is_solved, is_truncated, _ = env.step(executed)
        is_over = is_solved or is_truncated
    env.close()
    states.append(state)
    actions.append(expert.act(state).astype(np.float32))
    return np.array(states[:MAX_STEPS], np.float32), np.array(actions[:MAX_STEPS], np.float32), bool(is_solved)


def write_demonstrations(
    path: str | Path,
    episodes: int = 200,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, seeds_tried: None,
) -> int:
    """Record the first `episodes` solved episodes of the seeds from `seed` on; see `record`."""
    return record(path, partial(demonstrate, expert=PushTExpert()), episodes, seed, workers, progress)
