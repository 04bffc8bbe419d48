"""Where the episodes of a store end: checked, and which episode and frame a row belongs to."""

from __future__ import annotations

import numpy as np

from dp_prior.data.episodes import EpisodeStore


def checked_ends(store: EpisodeStore) -> tuple[np.ndarray, list[str]]:
    """Episode ends (E,) int64 and what is wrong with them."""
    ends = np.asarray(store.episode_ends)
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        found = f"{ends.dtype} of shape {ends.shape}"
        return np.zeros(0, np.int64), [f"episode ends are {found}; expected integers of shape (episodes,)"]
    if len(ends) == 0:
        return np.zeros(0, np.int64), ["the data set is empty: it has 0 episodes"]
    ends = ends.astype(np.int64)
    problems = []
    before = np.concatenate([[0], ends[:-1]])
    for e in np.flatnonzero(ends <= before)[:5]:
        problems.append(
            f"episode {e} ends at row {ends[e]} but begins at row {before[e]}; episode ends must increase strictly"
        )
    return ends, problems


def step_of(row: int, ends: np.ndarray) -> tuple[int, int]:
    """Episode and frame of a row. Args: ends: (E,) exclusive end row of each episode."""
    episode = int(np.searchsorted(ends, row, side="right"))
    return episode, int(row - (ends[episode - 1] if episode > 0 else 0))
