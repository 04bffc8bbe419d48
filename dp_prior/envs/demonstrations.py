"""Demonstrations by scripted experts, recorded in several processes. An episode depends on its seed alone."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from dp_prior.durable import replacing

Demonstrate = Callable[[int], tuple[np.ndarray, np.ndarray, bool]]
"""From the seed of an episode to its states (T, state), its actions (T, action), and whether it is solved."""


def record(
    path: str | Path,
    demonstrate: Demonstrate,
    episodes: int,
    seed: int,
    workers: int | None,
    progress: Callable[[int, int], None] = lambda done, seeds_tried: None,
) -> int:
    """Write the first `episodes` solved episodes of the seeds from `seed` on as one compressed npz.

    The file has the layout of a replay buffer: `state`, `action`, `episode_ends`.

    Args:
        path: file to write, replaced durably at the end. A missing directory is created.
        demonstrate: can be pickled.
        workers: processes, None for one per core; the result does not depend on them.
        progress: called after every seed with the number of solved episodes and of seeds tried.

    Returns:
        Number of seeds tried.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; a set needs at least 1.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)  # so that a missing permission fails early
    solved: list[tuple[np.ndarray, np.ndarray]] = []
    tried = 0
    with get_context("spawn").Pool(workers) as pool:
        while len(solved) < episodes:
            wave = range(seed + tried, seed + tried + episodes - len(solved))
            for state, action, is_solved in pool.imap(demonstrate, wave):
                tried += 1
                if is_solved:
                    solved.append((state, action))
                progress(len(solved), tried)
    states, actions = zip(*solved, strict=True)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(
            file,
            state=np.concatenate(states),
            action=np.concatenate(actions),
            episode_ends=np.cumsum([len(state) for state in states]),
        )
    return tried
