"""Every environment begins where a recorded episode began, or says why it cannot."""

import numpy as np
import pytest

from dp_prior.envs.gym import GymConfig
from dp_prior.envs.toy import ToyConfig
from dp_prior.envs.vector import check_starts, reset_to, start_keys
from dp_prior_worlds.metaworld import MetaWorldConfig
from dp_prior_worlds.pusht import PushTConfig
from dp_prior_worlds.pusht_goals import INSTRUCTIONS, PushTGoalsConfig
from tests.messages import naming


def replayed(env, seeds, starts, actions):
    """Observations (steps + 1) when played from seeds, and from the starts that `starts()` gives after a reset.

    Args:
        actions: (steps, rows, A).
    """
    found = [[env.reset(seeds), *(env.step(action).obs for action in actions)]]
    env.reset(seeds)
    return [*found, [reset_to(env, starts()), *(env.step(action).obs for action in actions)]]


@pytest.mark.parametrize("record", [PushTConfig(n_envs=3), PushTGoalsConfig(n_envs=3)], ids=["pusht", "pusht_goals"])
def test_an_episode_of_pusht_is_the_same_from_its_seed_and_from_its_state(record, gym_pusht):
    env, seeds = record.create(), [4, 5, 7]  # none of them begins in contact, which no state tells of
    is_goal = "seed" in start_keys(env)

    def starts():
        state = np.stack([one.get_obs() for one in env.envs])
        return {"state": state, "seed": np.array(seeds)} if is_goal else {"state": state}

    actions = np.random.default_rng(0).uniform(100, 400, (25, 3, 2))
    first, again = replayed(env, seeds, starts, actions)
    assert np.abs(first[-1]["state"] - first[0]["state"])[:, 2:].max() > 1, "blocks are pushed"
    for one, other in zip(first, again, strict=True):
        np.testing.assert_allclose(one["state"], other["state"], atol=1e-4)
    if is_goal:
        assert again[-1]["instruction"].tolist() == [INSTRUCTIONS[seed % 4] for seed in seeds]


def test_a_start_of_pusht_is_exact_although_the_block_turns_about_its_centre_of_gravity(gym_pusht):
    state = np.array([[300.0, 200.0, 220.0, 260.0, 2.5]])
    env = PushTConfig(n_envs=1).create()
    assert np.array_equal(reset_to(env, {"state": state})["state"], state.astype(np.float32))
    own = env.envs[0].reset(seed=0, options={"reset_to_state": state[0]})[0]
    assert np.abs(own[2:4] - state[0, 2:4]).max() > 10, "gym-pusht's own way is another start"


def test_an_episode_of_the_toy_is_the_same_from_its_seed_and_from_its_recorded_state():
    env, seeds, actions = (
        ToyConfig(n_envs=4).create(),
        [1, 2, 3, 4],
        np.random.default_rng(0).uniform(-1, 1, (12, 4, 2)),
    )
    first, again = replayed(env, seeds, lambda: env.reset(seeds), actions)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_allclose(one["agent_pos"], other["agent_pos"], atol=1e-6)


def test_fewer_episodes_than_rows_may_start():
    obs = reset_to(ToyConfig(n_envs=4).create(), {"agent_pos": np.zeros((2, 2)), "goal": np.ones((2, 2))})
    assert obs["goal"].shape == (2, 2)


def test_a_gymnasium_environment_begins_at_a_seed_or_as_its_own_options_say():
    gymnasium = pytest.importorskip("gymnasium")

    class Placed(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
        given = None

        def __init__(self, render_mode=None):
            self.render_mode = render_mode

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            Placed.given = seed, options
            return self.np_random.uniform(size=2) if options is None else np.asarray(options["place"]), {}

        def step(self, action):
            return action, 0.0, False, False, {}

    gymnasium.register("Placed-v0", Placed, max_episode_steps=5)
    try:
        env = GymConfig(id="Placed-v0", n_envs=2).create()
        seeds = np.array([3, 4])
        assert np.array_equal(reset_to(env, {"seed": seeds})["state"], env.reset([3, 4])["state"])
        place = np.array([[1.0, 2.0], [3.0, 4.0]])
        assert np.array_equal(reset_to(env, {"place": place, "seed": seeds})["state"], place.astype(np.float32))
        assert Placed.given[0] == 4 and np.array_equal(Placed.given[1]["place"], place[1])
        reset_to(env, {"place": place})
        assert Placed.given[0] is None
    finally:
        del gymnasium.registry["Placed-v0"]


def test_meta_world_begins_at_a_seed_alone(metaworld):
    env = MetaWorldConfig(task="reach-v3", n_envs=1).create()
    assert start_keys(env) == ("seed",)
    np.testing.assert_array_equal(reset_to(env, {"seed": np.array([7])})["state"], env.reset([7])["state"])
    with pytest.raises(ValueError, match=naming("seed", "state")):
        reset_to(env, {"state": np.zeros((1, 39))})


def test_an_environment_without_the_protocol_begins_at_a_seed_alone():
    class Bare:
        def reset(self, seeds):
            return {"seeds": np.array(seeds)}

    assert start_keys(Bare()) == ("seed",)
    assert reset_to(Bare(), {"seed": np.array([7, 8])})["seeds"].tolist() == [7, 8]
    with pytest.raises(ValueError, match=naming("reset_to", "state", "docs/environments.md")):
        reset_to(Bare(), {"state": np.zeros((1, 2))})


def test_a_start_that_says_too_little_or_too_much_is_refused():
    check_starts(["state"], ("state",))
    check_starts(["state", "seed"], ("state",))
    for given, needed in [([], ("state",)), (["goal"], ("state",)), (["state"], ("state", "seed"))]:
        with pytest.raises(ValueError, match=naming(*needed)):
            check_starts(given, needed)
    with pytest.raises(ValueError, match=naming("agent_pos", "goal", "state")):
        reset_to(ToyConfig(n_envs=1).create(), {"state": np.zeros((1, 4))})
