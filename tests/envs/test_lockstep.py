"""Environments in lockstep are the environments alone, and scores follow their rule."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_prior.envs.lockstep import Lockstep
from tests.messages import naming, told

MAX_STEPS = 6


class Countdown:
    """Starts at its seed, falls by one and by the action, rewards the action, and ends below zero."""

    action_space = SimpleNamespace(shape=(1,), low=np.array([-1.0]), high=np.array([1.0]), dtype=np.dtype(np.float32))
    rewards = None
    news = staticmethod(lambda age: {})
    closed = False

    def reset(self, seed):
        self.age, self.value = 0, float(seed)
        return self.value, {}

    def step(self, action):
        assert action.dtype == np.float32
        self.age += 1
        self.value -= 1 + float(action[0])
        reward = float(action[0]) if self.rewards is None else self.rewards[self.age - 1]
        return self.value, reward, self.value < 0, False, self.news(self.age)

    def close(self):
        self.closed = True


def lockstep(n=1, score="sum", success_score=None, **fields):
    envs = [Countdown() for _ in range(n)]
    for env in envs:
        vars(env).update(fields)
    shapes = {"value": (1,)}
    return Lockstep(
        envs,
        max_steps=MAX_STEPS,
        fps=10,
        obs_shapes=shapes,
        read_obs=lambda value: {"value": np.array([value])},
        draw=lambda value: {"picture": np.full((2, 2, 3), max(value, 0), np.uint8)},
        score=score,
        success_score=success_score,
    )


def episode(env, seeds, actions):
    """Observation, reward, done, score and success of each step, (steps, rows)."""
    first = env.reset(seeds)["value"][:, 0]
    steps = [env.step(action) for action in actions]
    parts = [(step.obs["value"][:, 0], step.reward, step.done, *step.info.values()) for step in steps]
    return first, [np.stack(part) for part in zip(*parts, strict=True)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.sampled_from(["sum", "max", "last"]), st.integers(0, 99))
def test_every_row_is_the_episode_of_its_seed_and_actions_alone(seeds, rule, noise):
    actions = np.random.default_rng(noise).uniform(-2, 2, (MAX_STEPS + 1, len(seeds), 1))
    first, together = episode(lockstep(4, rule), seeds, actions)
    for row, seed in enumerate(seeds):
        alone_first, alone = episode(lockstep(1, rule), [seed], actions[:, row : row + 1])
        assert first[row] == alone_first[0] == seed
        for ours, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(ours[:, row], one[:, 0])


@pytest.mark.parametrize(("seed", "end"), [(0, 1), (2, 3), (5, 6), (9, MAX_STEPS)])
def test_an_episode_ends_by_itself_or_at_its_limit_and_then_rests(seed, end):
    _, parts = episode(lockstep(rewards=[1.0] * 8), [seed], np.zeros((8, 1, 1)))
    value, reward, done, score, _ = (part[:, 0] for part in parts)
    ages = np.arange(1, 9)
    assert done.tolist() == (ages >= end).tolist() and reward.tolist() == (ages <= end).tolist()
    np.testing.assert_array_equal(score, np.minimum(ages, end))
    np.testing.assert_array_equal(value, seed - np.minimum(ages, end))


def test_pictures_are_drawn_where_they_are_watched_and_numbers_are_always_read():
    env = lockstep(2)
    seen = [env.reset([50, 90])]
    for env.is_watched in (False, False, True, False):
        seen.append(env.step(np.zeros((2, 1))).obs)
    assert [one["value"][:, 0].tolist() for one in seen] == [[50 - age, 90 - age] for age in range(5)]
    assert [one["picture"][:, 0, 0, 0].tolist() for one in seen] == [[50, 90]] * 3 + [[47, 87]] * 2
    env.is_watched = False
    assert set(env.reset([50, 90])) == {"value"} and set(env.step(np.zeros((2, 1))).obs) == {"value"}
    env.is_watched = True
    assert env.step(np.zeros((2, 1))).obs["picture"][:, 0, 0, 0].tolist() == [48, 88]


def test_filmed_rows_are_drawn_at_every_step_and_others_where_they_are_watched():
    env = lockstep(3)
    env.reset([50, 70, 90])
    drawn = []
    for env.is_watched, env.n_filmed in ((False, 1), (False, 2), (True, 0), (False, 0)):
        drawn.append(env.step(np.zeros((3, 1))).obs["picture"][:, 0, 0, 0].tolist())
    assert drawn == [[49, 70, 90], [48, 68, 90], [47, 67, 87], [47, 67, 87]]


RULES = {"sum": np.cumsum, "max": np.maximum.accumulate, "last": np.asarray}


@pytest.mark.parametrize("rule", RULES)
def test_the_score_is_its_rule_over_the_rewards_so_far(rule):
    rewards = [0.5, -1.0, 2.0, 0.25, 2.5, -3.0]
    _, (_, reward, _, score, success) = episode(lockstep(score=rule, rewards=rewards), [9], np.zeros((6, 1, 1)))
    assert reward[:, 0].tolist() == rewards
    np.testing.assert_array_equal(score[:, 0], RULES[rule](rewards))
    assert np.isnan(success).all()  # the environment says nothing
    solved = episode(lockstep(score=rule, rewards=rewards, success_score=2.0), [9], np.zeros((6, 1, 1)))[1][-1]
    np.testing.assert_array_equal(solved[:, 0], np.maximum.accumulate(score[:, 0] >= 2.0))


@pytest.mark.parametrize("rule", RULES)
def test_a_reward_that_is_no_number_leaves_no_score_for_the_rest_of_the_episode(rule):
    rewards = [1.0, np.nan, 1.0, 1.0, 1.0, 1.0]
    _, (_, _, _, score, _) = episode(lockstep(score=rule, rewards=rewards), [9], np.zeros((6, 1, 1)))
    assert score[0] == 1.0 and np.isnan(score[1:]).all()


@pytest.mark.parametrize("word", ["success", "is_success"])
def test_an_episode_stays_solved_and_success_may_be_the_score(word):
    news = {"news": lambda age: {word: age == 2}}
    _, (_, _, _, score, success) = episode(lockstep(score="success", **news), [9], np.zeros((4, 1, 1)))
    assert score[:, 0].tolist() == success[:, 0].tolist() == [0, 1, 1, 1]


def test_a_success_of_nan_says_nothing():
    for score, expected in (("success", 0.0), ("sum", 1.0)):
        env = lockstep(score=score, rewards=[1.0], news=lambda age: {"is_success": np.nan})
        _, (_, _, _, scores, success) = episode(env, [9], np.zeros((1, 1, 1)))
        assert scores.item() == expected and np.isnan(success).all()


def test_a_reward_may_be_an_array_of_one_number_and_what_is_none_is_named():
    for reward in (np.array([0.5]), np.array([[0.5]]), np.float32(0.5)):
        _, (_, found, _, _, _) = episode(lockstep(rewards=[reward]), [9], np.zeros((1, 1, 1)))
        assert found.item() == 0.5
    for reward, named in ((None, "None"), ("1", "'1'"), ({"a": 1.0}, "'a'"), ([1.0, 2.0], "float64"), ([], "(0,)")):
        env = lockstep(rewards=[reward])
        env.reset([9])
        with pytest.raises(ValueError, match=naming("reward", named, "step")):
            env.step(np.zeros((1, 1)))


@pytest.mark.parametrize("score", ["sum", "success"])
@pytest.mark.parametrize(
    ("success", "named"), [({"task": False}, "'task'"), ("False", "'False'"), (np.array([True, False]), "bool")]
)
def test_a_success_that_is_no_number_is_named_and_counts_for_nothing(score, success, named):
    """robomimic's environments answer {"task": False}, which is true in Python."""
    env = lockstep(score=score, rewards=[1.0], news=lambda age: {"is_success": success})
    env.reset([9])
    with pytest.raises(ValueError, match=naming("success", named, "number")):
        env.step(np.zeros((1, 1)))


def test_an_episode_may_end_with_an_array_of_one_truth():
    env = lockstep()
    env.envs[0].step = lambda action: (0.0, 1.0, np.array([False]), np.array([True]), {})
    env.reset([9])
    assert env.step(np.zeros((1, 1))).done.tolist() == [True]


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
def test_any_picture_becomes_rgb(shape):
    picture = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    env = lockstep(2, render=lambda: picture)
    wide = picture if picture.ndim == 3 else picture[..., None]
    expected = wide[..., :3] if wide.shape[2] > 1 else wide.repeat(3, axis=2)
    np.testing.assert_array_equal(env.render([0, 1]), [expected] * 2)


@pytest.mark.parametrize("picture", [None, np.zeros((4, 6, 3)), np.zeros((4, 6, 2), np.uint8), np.zeros(4, np.uint8)])
def test_what_is_no_picture_is_named_with_the_remedy(picture):
    found = "None" if picture is None else f"{picture.dtype} of shape {picture.shape}"
    with pytest.raises(ValueError, match=naming(found, "videos to 0")):
        lockstep(render=lambda: picture).render([0])


@pytest.mark.parametrize(("high", "value"), [(1.0, 12.0), (0.001, -0.5), (1.0, 9.0), (np.inf, 1e6), (0.0, 0.1)])
def test_actions_of_another_unit_are_told_once_with_the_limits(high, value, caplog):
    space = SimpleNamespace(**{**vars(Countdown.action_space), "low": np.array([-high]), "high": np.array([high])})
    env = lockstep(action_space=space)
    env.reset([5])
    for _ in range(2):
        env.step(np.array([[value]]))
    is_far = 0 < 10 * high < abs(value)
    assert [told(record.message, f"{value:g}", f"{high:g}") for record in caplog.records] == [True] * is_far


def test_closing_closes_all():
    env = lockstep(3)
    env.close()
    assert all(one.closed for one in env.envs)


def test_the_stage_that_an_environment_names_is_the_last_one_and_stays():
    env = lockstep(2, news=lambda age: {} if age % 2 else {"stage": f"part {age}"})
    env.reset([9, 1])
    found = [env.step(np.zeros((2, 1))).info.get("stage") for _ in range(5)]
    assert found[0] is None
    assert [stage.tolist() for stage in found[1:]] == [["part 2"] * 2] * 2 + [["part 4", "part 2"]] * 2
    env.reset([9, 9])
    assert "stage" not in env.step(np.zeros((2, 1))).info


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8])
def test_actions_of_whole_numbers_are_rounded_to_the_nearest(dtype):
    """They were cut off: 0.999, predicted for a recorded 1, was executed as 0."""
    executed = []

    def step(action):
        executed.append(action)
        return 5.0, 0.0, False, False, {}

    low, high = np.array([0], dtype), np.array([3], dtype)
    env = lockstep(action_space=SimpleNamespace(shape=(1,), low=low, high=high, dtype=np.dtype(dtype)), step=step)
    episode(env, [5], [[[0.999]], [[0.4]], [[1.6]], [[-9.0]], [[9.0]]])
    assert [one.tolist() for one in executed] == [[1], [0], [2], [0], [3]]
    assert {one.dtype for one in executed} == {np.dtype(dtype)}
