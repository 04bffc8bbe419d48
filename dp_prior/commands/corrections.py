"""Corrections: an expert takes over where a policy went in the episodes that it lost (Ross et al. 2011, DAgger,
arXiv:1011.0686)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.envs.expert import expert_of, reached, solution
from dp_prior.files.durable import replacing

EPISODES = "episodes.npz"
"""The expert's episodes of a round."""


def write_corrections(
    record: Any, observations: Sequence[str], lost: Mapping[int, np.ndarray], points: int, path: Path
) -> None:
    """Write the solved episodes of an expert that takes over at the start and at steps spread evenly over an episode.

    The file has `obs.NAME` and `action`, a row per step, and `episode_ends`. To repeat an episode, begin at its
    `lost_seed`, execute the first `lost_step` actions of the policy there, and then `action`. `asked` is the number of
    take-overs. After a kill the same call goes on with the next lost episode.

    Args:
        record: of the environment.
        observations: those that the policy reads.
        lost: the executed actions (T, A) of lost episodes by their seed.
        points: take-overs in an episode, the start among them.

    Raises:
        ConfigError: the environment has no expert, or the expert solves nothing.
        OSError: the file cannot be written.
    """
    expert, folder = expert_of(record), path.with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    longest = max(map(len, lost.values()))
    limit = longest + (record.max_steps or longest)  # a whole episode for the expert, wherever it begins
    env = record.model_copy(update={"n_envs": 1, "max_steps": limit}).create()
    with contextlib.closing(env):
        for seed, actions in lost.items():
            part = folder / f"{seed}.npz"
            if part.exists():
                continue
            found = {}
            for step in (np.arange(points) * len(actions) // points).tolist():
                if (episode := solution(env, expert, reached(env, seed, actions[:step]))) is not None:
                    found |= {f"{step}.{key}": episode[key] for key in (*observations, "action")}
            with replacing(part) as temporary, open(temporary, "wb") as file:
                np.savez(file, **found)
    _join([folder / f"{seed}.npz" for seed in lost], observations, points * len(lost), path)
    shutil.rmtree(folder)


def counted(path: Path) -> tuple[int, int]:
    """The number of episodes in a file of corrections, and of the take-overs that gave none."""
    with np.load(path, allow_pickle=False) as file:
        episodes = len(file["episode_ends"])
        return episodes, int(file["asked"]) - episodes if "asked" in file else 0


def _join(parts: Sequence[Path], observations: Sequence[str], asked: int, path: Path) -> None:
    """One file of the episodes in `parts`, which are named by their seed."""
    episodes, origins = [], []
    for part in parts:
        with np.load(part, allow_pickle=False) as file:
            for step in sorted({int(name.partition(".")[0]) for name in file.files}):
                episodes.append({key: file[f"{step}.{key}"] for key in (*observations, "action")})
                origins.append((int(part.stem), step))
    if not episodes:
        raise ConfigError(str(path), [f"the expert solves none of {asked} take-overs, so there is nothing to learn"])
    columns = {key: np.concatenate([one[key] for one in episodes]) for key in episodes[0]}
    seeds, steps = np.array(origins).T
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(
            file,
            **{f"obs.{key}": columns[key] for key in observations},
            action=columns["action"],
            episode_ends=np.cumsum([len(one["action"]) for one in episodes]),
            lost_seed=seeds,
            lost_step=steps,
            asked=np.array(asked),
        )
