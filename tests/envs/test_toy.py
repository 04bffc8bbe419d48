"""The toy environment: a known best score, two ways, and rows that know nothing of each other."""

import numpy as np
import pytest

from dp_prior.envs.toy import ToyConfig, demonstrations, expert_action
from tests.messages import naming


def run(env, seeds, act):
    """Scores, successes and steps of one block; `act(obs)` gives the actions."""
    obs = env.reset(seeds)
    done, steps = np.zeros(len(seeds), dtype=bool), np.zeros(len(seeds), dtype=int)
    while not done.all():
        steps += ~done
        obs, _, done, info = env.step(act(obs))
    return info["score"], info["success"], steps


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_expert_reaches_the_best_score_on_either_side(side):
    env = ToyConfig(n_envs=200).create()
    sides = np.full(200, side)
    score, success, steps = run(env, range(200), lambda obs: expert_action(obs["agent_pos"], obs["goal"], sides))
    assert (score == 1.0).all() and success.all() and steps.max() <= 25


def test_average_of_both_ways_runs_into_the_disc_and_stays_there():
    env = ToyConfig(n_envs=50).create()
    both = np.ones(50)

    def average(obs):
        left, right = (expert_action(obs["agent_pos"], obs["goal"], sign * both) for sign in (-1, 1))
        return (left + right) / 2

    score, success, steps = run(env, range(50), average)
    assert not success.any() and (steps == 40).all() and score.max() < 0.5


def test_rows_are_those_of_single_episodes():
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 5, 2))
    together, alone = ToyConfig(n_envs=5).create(), ToyConfig(n_envs=1).create()
    obs = together.reset([7, 8, 9, 10, 11])
    trace = [obs["agent_pos"]]
    for action in actions:
        trace.append(together.step(action).obs["agent_pos"])
    for row, seed in enumerate([7, 8, 9, 10, 11]):
        single = [alone.reset([seed])["agent_pos"]] + [alone.step(a[row : row + 1]).obs["agent_pos"] for a in actions]
        np.testing.assert_array_equal(np.concatenate(single), np.stack(trace)[:, row])


def test_rewards_add_up_to_the_score_and_stop_when_the_episode_is_over():
    env = ToyConfig(n_envs=8).create()
    obs = env.reset(range(8))
    sides, total = np.ones(8), np.zeros(8)
    for _ in range(40):
        obs, reward, done, info = env.step(expert_action(obs["agent_pos"], obs["goal"], sides))
        total += reward
    assert done.all()
    np.testing.assert_allclose(total, info["score"], atol=1e-12)
    before = obs["agent_pos"].copy()
    obs, reward, done, _ = env.step(np.zeros((8, 2)))
    assert not reward.any() and done.all()
    np.testing.assert_array_equal(before, obs["agent_pos"])


def test_demonstrations_take_both_sides_and_replay_to_the_goal():
    data = demonstrations(200, seed=3)
    ends, starts = data["episode_ends"], np.concatenate([[0], data["episode_ends"][:-1]])
    assert data["state"].shape == (ends[-1], 4) and data["action"].shape == (ends[-1], 2)
    episodes = [data["state"][start:end] for start, end in zip(starts, ends, strict=True)]
    middle = np.array([episode[np.abs(episode[:, 1]).argmin(), 0] for episode in episodes])
    assert (np.abs(middle) > 0.4).all() and 70 < (middle > 0).sum() < 130
    last = data["action"][ends - 1]  # the step it asks for ends within reach
    assert (np.linalg.norm(last - data["state"][ends - 1, 2:], axis=1) < 0.1 + 0.02).all()
    again = demonstrations(200, seed=3)
    assert all(np.array_equal(data[key], again[key]) for key in data)
    assert not np.array_equal(data["state"][:10], demonstrations(200, seed=4)["state"][:10])


def test_pictures_show_every_row_on_its_own():
    env = ToyConfig(n_envs=3, render_size=64).create()
    env.reset([0, 1, 2])
    frames = env.render([2, 0])
    assert frames.shape == (2, 64, 64, 3) and frames.dtype == np.uint8
    np.testing.assert_array_equal(frames[1], env.render([0])[0])
    assert (frames[0] != frames[1]).any()


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"n_envs": 3}, lambda env: env.n_envs),
        ({"max_steps": 5}, lambda env: run(env, [0], lambda obs: obs["goal"])[2][0]),
        ({"speed": 0.3}, lambda env: run(env, [0], lambda obs: expert_action(*obs.values(), np.ones(1), 9.0))[2][0]),
        ({"obstacle_radius": 0.0}, lambda env: run(env, [0], lambda obs: obs["goal"])[0][0]),
        ({"render_size": 32}, lambda env: (env.reset([0]), env.render([0]).shape)[1]),
    ],
)
def test_every_knob_changes_the_world(change, effect):
    assert effect(ToyConfig(**change).create()) != effect(ToyConfig().create())


def test_wrong_seeds_and_actions_are_refused():
    env = ToyConfig(n_envs=2).create()
    with pytest.raises(ValueError, match=naming("3 seeds", "1 to 2")):
        env.reset([1, 2, 3])
    env.reset([1, 2])
    with pytest.raises(ValueError, match=naming("(2, 3)", "(2, 2)")):
        env.step(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=naming("row 1", "nan")):
        env.step(np.array([[0.0, 0.0], [0.0, np.nan]]))
