"""Registered gymnasium environments as VectorEnvs."""

import numpy as np
import pytest

from tests.messages import naming

gymnasium = pytest.importorskip("gymnasium")

from dp_prior.config import ConfigError  # noqa: E402
from dp_prior.envs.gym import GymConfig  # noqa: E402


class Counter(gymnasium.Env):
    """Observes its step count; rewards the sum of its action; terminates at step 4, truncates by its limit."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = gymnasium.spaces.Dict(
        {
            "count": gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64),
            "image": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8),
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode=None, offset=0.0, terminates=True, picture=(4, 4, 3), rewards=()):
        self.render_mode, self.offset, self.terminates, self.closed = render_mode, offset, terminates, False
        self.picture, self.rewards = picture, rewards

    def _obs(self):
        return {"count": np.array([self.count + self.offset]), "image": np.full((2, 2, 3), self.count % 256, np.uint8)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(100)) * 10
        self.first = self.count
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        age = self.count - self.first
        reward = self.rewards[age - 1] if self.rewards else float(action.sum())
        return self._obs(), reward, self.terminates and age == 4, False, self.news(age)

    def news(self, age):
        return {"is_success": age == 2}

    def render(self):
        return None if self.picture is None else np.full(self.picture, self.count % 256, np.uint8)

    def close(self):
        self.closed = True


class Refusing(Counter):
    observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Discrete(3)})


class Talking(Counter):
    """Observes words besides, says nothing of success, and knows no frame rate."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": None}
    observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(3), **Counter.observation_space.spaces})

    def _obs(self):
        return {"word": "a", **super()._obs()}

    def news(self, age):
        return {}


class Lying(Counter):
    """Observes something else than it says."""

    def __init__(self, seen, **more):
        super().__init__(**more)
        self.seen = seen

    def _obs(self):
        return self.seen


class Old(Counter):
    """Has the methods of gym 0.21."""

    def reset(self):
        return super().reset(seed=0)[0]


class HalfOld(Counter):
    """Takes a seed, but returns the observation alone."""

    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Plain(Counter):
    """Knows of no rendering, and gives no info."""

    metadata = {}

    def __init__(self):
        super().__init__()

    def news(self, age):
        return None


class Boasting(Counter):
    """Speaks of success only where there is one: for seeds whose count starts high."""

    def news(self, age):
        return {"success": True} if self.first >= 500 else {}


gymnasium.register("dp_prior_tests/Counter-v0", Counter, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Endless-v0", Counter)
gymnasium.register("dp_prior_tests/Refusing-v0", Refusing, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Talking-v0", Talking, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Lying-v0", Lying, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Old-v0", Old, max_episode_steps=6)
gymnasium.register("dp_prior_tests/HalfOld-v0", HalfOld, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Plain-v0", Plain, max_episode_steps=6)
gymnasium.register("dp_prior_tests/Boasting-v0", Boasting, max_episode_steps=6)
gymnasium.register(
    "dp_prior_tests/NoNumber-v0", Counter, max_episode_steps=6, kwargs={"rewards": [1.0, float("nan"), 1.0]}
)
ID = "dp_prior_tests/Counter-v0"
UP = np.array([[0.5, 0.25], [1.0, 2.0]])  # the second is beyond the Box and counts as (1, 1)


def scores(**fields):
    """Scores and successes after each of 6 steps."""
    env = GymConfig(id=ID, n_envs=2, **fields).create()
    env.reset([0, 1])
    steps = [env.step(UP * sign) for sign in (1, 1, -1, 1, 1, 1)]
    return np.stack([s.info["score"] for s in steps]), np.stack([s.info["success"] for s in steps]), steps


def test_dict_observations_keep_their_keys_and_images_their_bytes():
    env = GymConfig(id=ID, n_envs=3).create()
    obs = env.reset([4, 5, 4])
    assert env.obs_shapes == {"count": (1,), "image": (2, 2, 3)} and env.fps == 7 and env.max_steps == 6
    assert obs["count"].shape == (3, 1) and obs["count"].dtype == np.float32
    assert obs["image"].shape == (3, 2, 2, 3) and obs["image"].dtype == np.uint8
    assert obs["count"][0] == obs["count"][2]


def test_nothing_resets_by_itself():
    _, _, steps = scores()
    count = np.stack([s.obs["count"][:, 0] for s in steps])
    np.testing.assert_array_equal(np.diff(count, axis=0), [[1, 1]] * 3 + [[0, 0]] * 2)
    assert [s.done.all() for s in steps] == [False] * 3 + [True] * 3
    assert all((s.reward == 0).all() for s in steps[4:])


def test_score_rules_on_clipped_actions():
    total, success, _ = scores()
    np.testing.assert_allclose(total[:, 0], [0.75, 1.5, 0.75, 1.5, 1.5, 1.5])
    np.testing.assert_allclose(total[:, 1], [2, 4, 2, 4, 4, 4])
    assert success[:, 0].tolist() == [False, True, True, True, True, True]
    np.testing.assert_allclose(scores(score="max")[0][:, 0], [0.75] * 6)
    np.testing.assert_allclose(scores(score="last")[0][:, 0], [0.75, 0.75, -0.75, 0.75, 0.75, 0.75])
    np.testing.assert_allclose(scores(score="success")[0][:, 0], [0, 1, 1, 1, 1, 1])


def test_success_is_unknown_until_the_environment_speaks_of_it():
    def success(name, **fields):
        env = GymConfig(id=f"dp_prior_tests/{name}-v0", n_envs=8, **fields).create()
        obs = env.reset(range(8))
        return env.step(np.zeros((8, 2))).info["success"], obs["count"][:, 0] >= 500

    assert np.isnan(success("Talking")[0]).all()
    assert success("Talking", success_score=1.0)[0].tolist() == [0.0] * 8
    found, expected = success("Boasting")
    assert (found == 1).tolist() == expected.tolist() and np.isnan(found[~expected]).all() and 0 < expected.sum() < 8


@pytest.mark.parametrize("rule", ["sum", "max", "last"])
def test_reward_that_is_no_number_leaves_no_score(rule):
    env = GymConfig(id="dp_prior_tests/NoNumber-v0", n_envs=1, score=rule).create()
    env.reset([0])
    scores = [env.step(np.zeros((1, 2))).info["score"][0] for _ in range(3)]
    assert scores[0] == 1.0 and np.isnan(scores[1:]).all()


def test_observations_that_are_no_boxes_are_left_out():
    env = GymConfig(id="dp_prior_tests/Talking-v0", n_envs=1).create()
    assert env.obs_shapes == {"count": (1,), "image": (2, 2, 3)} and set(env.reset([0])) == {"count", "image"}
    assert env.fps == 30


def test_success_score_replaces_what_the_environment_says():
    assert scores(success_score=3.0)[1].tolist() == [[False, False]] + [[False, True]] * 5


def test_plain_array_gets_the_configured_key():
    env = GymConfig(id="Pendulum-v1", n_envs=2, obs_key="angle", max_steps=5).create()
    obs = env.reset([0, 1])
    assert env.obs_shapes == {"angle": (3,)} and obs["angle"].shape == (2, 3)
    for _ in range(5):
        obs, _, done, _ = env.step(np.zeros((2, 1)))
    assert done.all()


def test_pictures_and_close():
    env = GymConfig(id=ID, n_envs=2).create()
    env.reset([0, 1])
    assert env.render([1]).shape == (1, 4, 4, 3)
    env.close()
    assert all(single.unwrapped.closed for single in env.envs)


@pytest.mark.parametrize("picture", [(4, 4), (4, 4, 1), (4, 4, 4)])
def test_grey_and_transparent_pictures_become_rgb(picture):
    env = GymConfig(id=ID, n_envs=1, make_arguments={"picture": list(picture)}).create()
    count = env.reset([3])["count"].item()
    assert (env.render([0]) == np.full((1, 4, 4, 3), count % 256)).all()


@pytest.mark.parametrize(("picture", "found"), [(None, "None"), ([1, 4, 3], "(1, 4, 3)"), ([4], "(4,)")])
def test_what_is_no_picture_says_what_to_do(picture, found):
    env = GymConfig(id=ID, n_envs=1, make_arguments={"picture": picture}).create()
    env.reset([0])
    with pytest.raises(ValueError, match=naming(found, "uint8 (height, width, 3)", "videos to 0")):
        env.render([0])


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"id": "Pendulum-v1"}, lambda env: tuple(env.obs_shapes)),
        ({"n_envs": 3}, lambda env: env.n_envs),
        ({"max_steps": 2}, lambda env: env.max_steps),
        ({"make_arguments": {"offset": 0.5}}, lambda env: env.reset([0])["count"].item()),
    ],
)
def test_every_other_knob_changes_the_environment(change, effect):
    base = {"id": ID, "n_envs": 1}
    assert effect(GymConfig(**{**base, **change}).create()) != effect(GymConfig(**base).create())


def test_configuration_cannot_import_a_module():
    with pytest.raises(ConfigError, match=naming("'os:Evil-v0'", "'Evil-v0'", "--import", "docs/environments.md")):
        GymConfig.from_json('{"id": "os:Evil-v0"}')


def test_what_the_loop_decides_is_no_argument_of_the_environment():
    with pytest.raises(ConfigError, match=naming("make_arguments", "'max_episode_steps'", "max_steps")):
        GymConfig.from_json('{"id": "Pendulum-v1", "make_arguments": {"max_episode_steps": 3}}')


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "NoSuchThing-v3"}, ("'NoSuchThing-v3'", "--import", "docs/environments.md")),
        ({"id": ID, "make_arguments": {"colour": 1}}, ("'dp_prior_tests/Counter-v0'", "'colour'")),
        ({"id": "CartPole-v1"}, ("'CartPole-v1'", "Discrete(2)", "Box")),
        (
            {"id": "dp_prior_tests/Refusing-v0"},
            ("'dp_prior_tests/Refusing-v0'", "'word'", "Discrete(3)", "gymnasium.wrappers.FlattenObservation"),
        ),
        ({"id": "dp_prior_tests/Old-v0"}, ("'dp_prior_tests/Old-v0'", "seed", "GymV21CompatibilityV0")),
        ({"id": "dp_prior_tests/Endless-v0"}, ("max_steps", "'dp_prior_tests/Endless-v0'")),
    ],
)
def test_unusable_environments_say_why(fields, message):
    with pytest.raises(ValueError, match=naming(*message)):
        GymConfig(**fields).create()


def test_an_environment_needs_neither_rendering_nor_info():
    env = GymConfig(id="dp_prior_tests/Plain-v0", n_envs=1).create()
    first = env.reset([3])
    step = env.step(UP[:1])
    assert step.obs["count"] == first["count"] + 1 and np.isnan(step.info["success"]).all()


def test_a_reset_that_returns_the_observation_alone_is_named():
    env = GymConfig(id="dp_prior_tests/HalfOld-v0", n_envs=1).create()
    with pytest.raises(ValueError, match=naming("dict", "GymV21CompatibilityV0")):
        env.reset([0])


@pytest.mark.parametrize(
    ("seen", "named"),
    [({"image": 0}, "'count'"), ({"count": {"x": 1}, "image": 0}, "'image'"), ([0, 1], "list"), (None, "NoneType")],
)
def test_an_observation_that_is_not_of_the_observation_space_is_named(seen, named):
    env = GymConfig(id="dp_prior_tests/Lying-v0", n_envs=1, make_arguments={"seen": seen}).create()
    with pytest.raises(ValueError, match=naming("dp_prior_tests/Lying-v0", named, "observation_space")):
        env.reset([0])
