"""Episodes that were played are not played again, and belong to one expert with its arguments."""

from functools import partial

import numpy as np
import pytest

from dp_prior.envs.kept_episodes import KeptEpisodes

PLAYED = []


def play(seed, task):
    if seed < 0:
        raise RuntimeError("killed")
    PLAYED.append((seed, task))
    return np.full((2, 3), seed, np.float32), np.ones((2, 1)), seed % 2 == 0


def test_an_episode_is_played_once_for_each_expert_and_its_arguments(tmp_path):
    PLAYED.clear()
    kept = {task: KeptEpisodes(partial(play, task=task), tmp_path / "new" / "d.npz") for task in "ab"}
    for task in "aab":
        for seed in (1, 2):
            state, action, is_solved = kept[task](seed)
            assert (state == seed).all() and state.dtype == np.float32 and action.shape == (2, 1)
            assert bool(is_solved) == (seed == 2)
    assert PLAYED == [(1, "a"), (2, "a"), (1, "b"), (2, "b")]
    kept["a"].remove_written()
    assert kept["a"].folder.exists()
    kept["a"].path.touch()
    kept["a"].remove_written()
    assert kept["b"].folder.exists() and not kept["a"].folder.exists()


def test_an_episode_that_was_cut_off_leaves_nothing(tmp_path):
    kept = KeptEpisodes(partial(play, task="a"), tmp_path / "d.npz")
    with pytest.raises(RuntimeError):
        kept(-1)
    assert not list(kept.folder.glob("*.npz"))
