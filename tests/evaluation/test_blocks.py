"""Blocks of episodes come back whole and in order, whichever rank ran them."""

import numpy as np
import pytest

from dp_prior.evaluation.blocks import run_blocks
from tests.evaluation.fakes import on_ranks

COLUMNS = np.dtype([("episode", int), ("square", float), ("text", "U3")])


def rows_of(episodes):
    """Rows of some episodes."""
    return np.array([(episode, episode**2, "né"[: episode % 3]) for episode in episodes], COLUMNS)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("n_episodes", "block"), [(1, 4), (4, 4), (7, 3), (9, 2)])
def test_every_episode_is_run_once_on_one_rank(size, n_episodes, block):
    def run(models, ranks):
        seen = []

        def rows(episodes):
            seen.append(list(episodes))
            return rows_of(episodes)

        return run_blocks(rows, n_episodes, block, COLUMNS, ranks, "rollout"), seen

    results = on_ranks(size, run, {})
    expected = rows_of(range(n_episodes)).tolist()
    assert all(found.tolist() == expected for found, _ in results)
    blocks = sorted(block for _, seen in results for block in seen)
    assert sum(blocks, []) == list(range(n_episodes)) and all(one[0] % block == 0 for one in blocks)


def test_a_failed_block_fails_every_rank():
    def run(models, ranks):
        def rows(episodes):
            if 4 in episodes:
                raise OSError("the simulator is gone")
            return rows_of(episodes)

        return run_blocks(rows, 8, 2, COLUMNS, ranks, "rollout")

    first, second, third = on_ranks(3, run, {})
    assert isinstance(third, OSError), "block 2 is that of rank 2"
    assert all(isinstance(found, RuntimeError) and "rank 2" in str(found) for found in (first, second))
