"""What the table of Meta-World compares with."""

from functools import partial

import numpy as np
import pytest

from benchmarks import metaworld as table


def test_the_open_loop_baseline_is_the_mean_of_the_episodes_that_still_run(tmp_path):
    actions = np.array([[1.0], [2.0], [3.0], [5.0], [6.0]])
    np.savez(tmp_path / "d.npz", action=actions, episode_ends=[3, 5])
    act = table.open_loop(tmp_path / "d.npz")
    assert [act(np.zeros((2, 39)), step).tolist() for step in (0, 1, 2, 9)] == [
        [[mean], [mean]] for mean in (3.0, 4.0, 3.0, 3.0)
    ]


@pytest.mark.slow
def test_the_expert_solves_what_standing_still_does_not(monkeypatch):
    names = pytest.importorskip("metaworld.env_dict", reason="NOT CHECKED: metaworld is not installed")
    assert set(table.TASKS) <= set(names.ALL_V3_ENVIRONMENTS)
    monkeypatch.setattr(table, "EPISODES", 2)
    monkeypatch.setattr(table, "MetaWorldConfig", partial(table.MetaWorldConfig, n_envs=2, max_steps=100))
    assert table.solved_by("button-press-v3", table.expert("button-press-v3")) == 2
    assert table.solved_by("button-press-v3", lambda states, step: np.zeros((len(states), 4))) == 0
