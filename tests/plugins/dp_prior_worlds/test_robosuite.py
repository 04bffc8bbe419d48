"""The environment of robosuite's tasks: fields, what robomimic's files say of it, poses as actions, errors."""

import sys

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.envs.fingerprint import versions
from dp_prior.envs.workers import Workers, is_divisible
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior_worlds.robosuite import RobosuiteConfig
from tests.messages import naming


def test_without_robosuite_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(ImportError, match=naming('pip install "dp_prior[robosuite]"')):
        RobosuiteConfig(task="Lift").create()
    said = CliRunner().invoke(main, ["make-demonstrations", "--task", "Lift", "--out", str(tmp_path / "x.npz")])
    assert said.exit_code == 64 and 'pip install "dp_prior[robosuite]"' in said.output and not list(tmp_path.iterdir())


def test_arguments_of_renderers_cameras_and_rewards_in_robomimic_s_files_are_left_out():
    ours = {"has_renderer": True, "camera_heights": 84, "ignore_done": False, "reward_scale": None}
    given = {"robots": ["Panda"], "control_freq": 10, **ours}
    record = RobosuiteConfig(task="Lift", make_arguments=given)
    assert record.make_arguments == {"robots": ["Panda"], "control_freq": 10}
    assert RobosuiteConfig.from_json(record.to_json()) == record


@pytest.fixture(scope="module")
def lift(robosuite):
    """One world, shared: to make it takes seconds."""
    env = RobosuiteConfig(task="Lift", n_envs=1).create()
    yield env
    env.close()


@pytest.mark.slow
def test_observations_have_robomimic_s_names_and_the_state_is_what_its_policies_see(lift):
    obs = {key: value[0] for key, value in lift.reset([0]).items()}
    assert {key: value.shape for key, value in obs.items()} == lift.obs_shapes and lift.action_dim == 7
    assert lift.fps == 20 and all(value.dtype == np.float32 for value in obs.values())
    keys = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
    np.testing.assert_array_equal(obs["state"], np.concatenate([obs[key] for key in keys]))
    np.testing.assert_array_equal(obs["object"][:3], obs["cube_pos"])
    others = ("joint_pos", "joint_pos_cos", "joint_pos_sin", "joint_vel", "eef_vel_lin", "eef_vel_ang", "gripper_qvel")
    assert {f"robot0_{name}" for name in others} <= obs.keys()
    np.testing.assert_allclose(np.cos(obs["robot0_joint_pos"]), obs["robot0_joint_pos_cos"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "arms"),
    [({}, ("robot0_", "robot1_")), ({"robots": "Baxter"}, ("robot0_right_", "robot0_left_"))],
)
def test_tasks_of_two_arms_have_two_and_the_state_holds_both(robosuite, arguments, arms):
    env = RobosuiteConfig(task="TwoArmLift", n_envs=1, make_arguments=arguments).create()
    obs = {key: value[0] for key, value in env.reset([0]).items()}
    own = [obs[f"{arm}{name}"] for arm in arms for name in ("eef_pos", "eef_quat", "gripper_qpos")]
    np.testing.assert_array_equal(obs["state"], np.concatenate([obs["object"], *own]))
    assert env.action_dim == 14
    env.close()


@pytest.mark.slow
def test_actions_are_limited_unless_they_are_poses(lift, robosuite):
    assert abs(lift.envs[0].action_space.high).max() == 1.0
    controller = robosuite.load_controller_config(default_controller="OSC_POSE") | {"control_delta": False}
    for poses in ({"absolute_actions": True}, {"make_arguments": {"controller_configs": controller}}):
        world = RobosuiteConfig(task="Lift", **poses)._world()
        assert np.isinf(world.action_space.high).all(), poses
        world.close()


@pytest.mark.slow
def test_poses_move_the_arm_like_the_differences_that_lead_to_them(lift):
    """Diffusion Policy's absolute actions: the goals of the controller, whose rotation is a rotation vector."""
    from scipy.spatial.transform import Rotation

    poses = RobosuiteConfig(task="Lift", n_envs=1, absolute_actions=True).create()
    random, seen = np.random.default_rng(0), []
    lift.reset([4])
    goals = []
    for action in random.uniform(-1, 1, (12, 7)) * [1, 1, 1, 0.4, 0.4, 0.4, 1]:
        seen.append(lift.step(action[None]).obs)
        controller = lift.envs[0]._env.robots[0].controller
        turn = Rotation.from_matrix(controller.goal_ori).as_rotvec()
        goals.append([*controller.goal_pos, *turn, action[6]])
    poses.reset([4])
    for expected, goal in zip(seen, goals, strict=True):
        found = poses.step(np.array([goal])).obs
        for key in ("robot0_eef_pos", "robot0_gripper_qpos", "object"):
            np.testing.assert_allclose(found[key], expected[key], atol=1e-5, err_msg=key)
    poses.close()


def test_unknown_tasks_and_cameras_and_refused_arguments_are_told(robosuite):
    with pytest.raises(ValueError, match=naming("'Lft'", "'Lift'")):
        RobosuiteConfig(task="Lft").create()
    with pytest.raises(ValueError, match=naming("'x'", "NutAssemblySquare")):
        RobosuiteConfig(task="x").create()
    with pytest.raises(ValueError, match=naming("'Lift'", "'front'", "agentview, birdview")):
        RobosuiteConfig(task="Lift", cameras={"front": (16, 16)}).create()
    with pytest.raises(ValueError, match=naming(robosuite.__version__, "'Lift'", "'robot'", "env_kwargs")):
        RobosuiteConfig(task="Lift", make_arguments={"robot": "Panda"}).create()
    with pytest.raises(ConfigError, match=naming("'test'", "'Lft'")):
        RolloutConfig(name="test", env=RobosuiteConfig(task="Lft"), videos=0).create()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"task": "Stack"}, lambda env: env.obs_shapes),
        ({"n_envs": 2}, lambda env: env.n_envs),
        ({"max_steps": 2}, lambda env: [env.reset([0]), *(env.step(np.zeros((1, 7))).done[0] for _ in range(2))][1:]),
        ({"make_arguments": {"control_freq": 10}}, lambda env: env.fps),
        ({"cameras": {"agentview": (16, 20)}}, lambda env: env.obs_shapes),
        ({"film_camera": "frontview"}, lambda env: env.envs[0]._film),
        ({"render_size": 32}, lambda env: env.envs[0]._film),
    ],
)
def test_every_field_changes_the_environment(change, effect, robosuite):
    base = {"task": "Lift", "n_envs": 1}
    assert effect(RobosuiteConfig(**{**base, **change}).create()) != effect(RobosuiteConfig(**base).create())


def test_experts_are_those_of_the_demonstrations():
    assert RobosuiteConfig(task="Lift").expert() is not None and RobosuiteConfig(task="ToolHang").expert is None
    for change in ({"absolute_actions": True}, {"make_arguments": {"control_freq": 10}}):
        assert RobosuiteConfig(task="Lift", **change).expert is None


def test_arguments_of_robomimic_s_files_that_are_robosuite_s_own_leave_the_expert(robosuite):
    controller = robosuite.load_controller_config(default_controller="OSC_POSE")
    published = {name.replace("damping_ratio", "damping"): value for name, value in controller.items()}
    for one in (controller, published, [controller], None):
        for robots in ("Panda", ["Panda"]):
            given = {"control_freq": 20, "robots": robots, "controller_configs": one, "camera_heights": 84}
            assert RobosuiteConfig(task="Lift", make_arguments=given).expert is not None, given
    for change in ({"kp": 100}, {"control_delta": False}):
        assert RobosuiteConfig(task="Lift", make_arguments={"controller_configs": controller | change}).expert is None
    for change in ({"robots": ["Sawyer"]}, {"gripper_types": "PandaGripper"}):
        assert RobosuiteConfig(task="Lift", make_arguments=change).expert is None, change


def test_the_fingerprint_names_what_simulates(robosuite):
    assert {name.lower() for name in versions(RobosuiteConfig(task="Lift"))} == {"robosuite", "mujoco"}


@pytest.mark.slow
def test_worker_processes_give_the_same_episodes(robosuite):
    record = RobosuiteConfig(task="Lift", n_envs=2)
    assert is_divisible(record)
    one, several = record.create(), Workers(record, 2)
    try:
        for env in (one, several):
            env.reset([1, 2])
        found, expected = (env.step(np.full((2, 7), 0.1)) for env in (several, one))
        np.testing.assert_array_equal(found.obs["state"], expected.obs["state"])
    finally:
        several.close()
