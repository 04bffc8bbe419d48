"""A world of robosuite: physics are robosuite's, starts depend on seed or recorded state."""

import numpy as np
import pytest

from dp_prior_worlds.renderers.robosuite import need_robosuite
from dp_prior_worlds.robosuite import RobosuiteConfig
from dp_prior_worlds.robosuite_expert import EXPERTS
from tests.messages import naming

pytestmark = pytest.mark.slow

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (6, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def world(robosuite):
    """Of the can, whose shape is the same in each episode; shared, since to make it takes seconds."""
    env = RobosuiteConfig(task="PickPlaceCan", n_envs=1).create()
    yield env.envs[0]
    env.close()


def walk(world, actions):
    return [world.observe(), *(world.step(action)[0].observe() for action in actions)]


def assert_same(found, expected, atol=0.0):
    for one, other in zip(found, expected, strict=True):
        for key, value in other.items():
            np.testing.assert_allclose(one[key], value, rtol=0, atol=atol, err_msg=key)


def test_steps_are_those_of_robosuite(world):
    suite = need_robosuite()
    theirs = suite.make(
        "PickPlaceCan",
        robots="Panda",
        controller_configs=suite.load_controller_config(default_controller="OSC_POSE"),
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
    )
    world.reset(5)
    begin = world._env.sim.get_state().flatten()
    theirs.reset()
    for one in (world._env, theirs):  # the same joints, the same start
        one.sim.set_state_from_flattened(begin)
        one.sim.forward()
        one.robots[0].controller.update_initial_joints(one.sim.data.qpos[one.robots[0]._ref_joint_pos_indexes])
    for action in ACTIONS:
        raw, reward, _, _ = theirs.step(action)
        seen, own, solved, _, info = world.step(action)
        assert (own, solved) == (reward, theirs._check_success()) and info == {"success": solved}
        np.testing.assert_allclose(seen.observe()["robot0_eef_pos"], raw["robot0_eef_pos"], atol=1e-6)
        np.testing.assert_allclose(seen.observe()["object"][:3], raw["Can_pos"], atol=1e-6)
    theirs.close()


def test_a_start_depends_on_its_seed_alone_and_disturbs_no_generator(world):
    world.reset(3)
    first = walk(world, ACTIONS)
    np.random.seed(11)
    expected = np.random.random(3)
    np.random.seed(11)
    world.reset(4)
    np.testing.assert_array_equal(np.random.random(3), expected)
    other = walk(world, ACTIONS)
    assert (other[0]["object"] != first[0]["object"]).any()
    world.reset(3)
    assert_same(walk(world, ACTIONS), first)


def test_an_episode_begins_at_a_recorded_state_as_it_began_at_its_seed(world):
    world.reset(8)
    state = world._env.sim.get_state().flatten()
    expected = walk(world, ACTIONS)
    world.begin(state)
    assert_same(walk(world, ACTIONS), expected, atol=1e-6)  # the solver began from another solution
    with pytest.raises(ValueError, match=naming("(3,)", len(state), "make_arguments")):
        world.begin(state[:3])


def test_a_solved_episode_ends_with_a_reward_of_1(robosuite):
    env = RobosuiteConfig(task="Lift", n_envs=1).create()
    obs, done = env.reset([0]), False
    while not done:
        obs, reward, (done,), info = env.step(EXPERTS["Lift"]({key: value[0] for key, value in obs.items()})[None])
    assert (reward[0], info["score"][0], info["success"][0]) == (1.0, 1.0, 1.0)
    env.close()
