"""Corrections: an expert takes over along the way that a policy went in an episode that was lost (Ross et al. 2011,
DAgger, arXiv:1011.0686)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.envs.env_record import Expert
from dp_prior.envs.vector import VectorEnv, stacked
from dp_prior_worlds.expert_demonstrations import write_arrays

EPISODES, UNSOLVED = "[!.]*.npz", "[!.]*.unsolved"
"""Names of the expert's episodes in their folder, and of empty files for take-overs that gave none."""

LOST_SEED = "lost_seed"
"""Key of the seed; not `seed`, where a replay would begin."""


def correct(
    record: Any, observations: Iterable[str], lost: Mapping[int, np.ndarray], points: int, folder: Path
) -> None:
    """Let the expert of an environment take over at the start and at steps spread evenly over each lost episode.

    The expert's part of a solved episode is the file `SEED_STEP.npz` with `obs.NAME` and `action`, a row per step: it
    follows the first STEP actions of the policy on SEED. After a kill the same call goes on with the next take-over.

    Args:
        record: of the environment, which has an expert.
        observations: of the environment, that are kept.
        lost: the executed actions (T, A) of lost episodes by their seed.
        points: take-overs in an episode, the start among them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[Path, tuple[int, int]] = {}
    for seed, actions in lost.items():
        steps = (np.arange(points) * len(actions) // points).tolist()
        places |= {folder / f"{seed}_{step}.npz": (seed, step) for step in steps}
    longest, expert = max(map(len, lost.values())), record.expert()
    limit = longest + (record.max_steps or longest)  # a whole episode for the expert, wherever it begins
    with contextlib.closing(record.model_copy(update={"n_envs": 1, "max_steps": limit}).create()) as env:
        env.is_watched = False
        for path, (seed, step) in places.items():
            unsolved = path.with_suffix(Path(UNSOLVED).suffix)
            if path.exists() or unsolved.exists():
                continue
            episode = solution(env, expert, reached(env, seed, lost[seed][:step]))
            if episode is None:
                unsolved.touch()
            else:
                obs = {f"obs.{key}": episode[key] for key in observations}
                origin = {LOST_SEED: np.full(len(episode["action"]), seed)}
                write_arrays(path, action=episode["action"], **obs, **origin)


def counted(folder: Path) -> tuple[int, int]:
    """The number of episodes in a folder of corrections, and of take-overs that solved nothing."""
    return len([*folder.glob(EPISODES)]), len([*folder.glob(UNSOLVED)])


def reached(env: VectorEnv, seed: int, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Reset an environment of a single row to a seed, and execute actions (k, A).

    Returns:
        (1, *shape) by key, the observation after the last action.
    """
    obs = env.reset([seed])
    for action in actions:
        obs = env.step(action[None]).obs
    return obs


def solution(env: VectorEnv, expert: Expert, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Let the expert act in an environment of a single row, from an observation to the end of the episode.

    Returns:
        (T, *shape): the observations by key, and under `action` the executed actions of the expert in float32; None for
        an unsolved episode.
    """
    rows, done = [], False
    while not done:
        observed = {key: values[0] for key, values in obs.items()}
        rows.append({**observed, "action": np.asarray(expert(observed), np.float32)})
        obs, _, (done,), info = env.step(rows[-1]["action"][None])
    if info["success"][0] != 1:
        return None
    return stacked(rows)
