"""Demonstrations of Push-T by the scripted expert, half of them from starts with the agent beside the block.

An episode depends only on its seed. The file has the layout of a replay buffer: `state`, `action`, `episode_ends`.
"""

from __future__ import annotations

import numpy as np

from dp_prior.files.entry_points import needing
from dp_prior_worlds.pusht_expert import (
    AGENT_RADIUS,
    GOAL_TURN,
    POSITION,
    REACH,
    WALLS,
    PushTExpert,
    block_of,
    block_outline,
    distance_to_block,
    goal_error,
    outside,
)

MAX_STEPS = 300
PLACED_SHARE = 0.5  # share of episodes that begin at `placed_start`
FINISHED_PX = 0.05  # an episode ends when the block is at the goal and the error falls by less than this per step


def demonstrate(seed: int, expert: PushTExpert | None = None) -> tuple[np.ndarray, np.ndarray, bool]:
    """Play one episode of gym_pusht/PushT-v0, from `reset(seed=seed)` or, in half of the episodes, `placed_start`.

    Policies end up on the wrong side of the block far more often than the expert; placed starts show the way back.
    Recorded actions are executed unchanged, so a chunk of actions is the expert's true behaviour from the first state.

    Returns:
        state: (T, 5) float32 before the action of its row: agent x, agent y, block x, block y in px, block angle in
            [0, 2 pi). In the last row of a solved episode the block is at the goal.
        action: (T, 2) float32: target position of the agent in px, 0..512.
        is_solved: whether the block covers more than 95 % of the goal at the end.
    """
    with needing("pusht", "Push-T needs gym-pusht"):
        import gym_pusht  # noqa: F401 (registers the environment)
        import gymnasium

    expert = expert or PushTExpert()
    env = gymnasium.make("gym_pusht/PushT-v0", obs_type="state").unwrapped
    rng = np.random.default_rng(seed)
    options = {"reset_to_state": placed_start(rng)} if rng.random() < PLACED_SHARE else None
    state, _ = env.reset(seed=seed, options=options)
    is_solved = False
    states, actions = [state], [expert.act(state).astype(np.float32)]
    error, fall = goal_error(*block_of(state)), np.inf
    while len(states) < MAX_STEPS and not (is_solved and fall < FINISHED_PX):
        state, _, is_solved, _, _ = env.step(actions[-1])
        states.append(state)
        actions.append(expert.act(state).astype(np.float32))
        fall = error - goal_error(*block_of(state))
        error -= fall
    return np.array(states, np.float32), np.array(actions, np.float32), bool(is_solved)


def placed_start(rng: np.random.Generator) -> np.ndarray:
    """Draw a state (5,) with the agent 0 to 20 px off the block, for `reset_to_state`: on any side, also near walls."""
    while True:
        scale = rng.choice([15.0, 60.0, 150.0])  # px
        centre = 256 + 256j + scale * complex(*rng.normal(size=2))
        turn = GOAL_TURN * np.exp(1j * scale / 60.0 * rng.normal())
        agent = centre + turn * complex(*rng.uniform(-120, 120, 2))
        gap = distance_to_block(np.array((agent - centre) / turn))[0] - AGENT_RADIUS
        excess = max(outside(block_outline(centre, turn), WALLS).max(), outside(np.array(agent), REACH))
        if 0 < gap < 20 and excess < 0:
            position = centre + POSITION  # gym-pusht places the block, then turns it about the centre of gravity
            return np.array([agent.real, agent.imag, position.real, position.imag, np.angle(turn)])
