"""Meta-World tasks: the simulator's own numbers, decided by the seed alone."""

import json
import pickle
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.envs.vector import reset_to
from dp_prior.envs.workers import Workers, is_divisible
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior_worlds.metaworld import MetaWorldConfig, SeededTask
from dp_prior_worlds.metaworld_demonstrations import demonstrate
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS
from dp_prior_worlds.renderers.metaworld import SCENE, MetaWorldRendererConfig
from tests.messages import naming, told
from tests.plugins.dp_prior_worlds.drawing import drawn_states
from tests.tiny import assert_equal, rows, state, tiny, train, train_and_die, write


def played(env, seeds, actions):
    """Observations (steps + 1, n, 39) of some episodes under the same actions (steps, 4)."""
    return np.stack(
        [env.reset(seeds)["state"]] + [env.step(np.tile(action, (len(seeds), 1))).obs["state"] for action in actions]
    )


ACTIONS = np.random.default_rng(0).uniform(-1, 1, (12, 4))


@pytest.fixture
def drawn(metaworld, monkeypatch):
    return drawn_states(monkeypatch, MetaWorldRendererConfig)


@pytest.mark.slow
def test_an_episode_depends_on_its_seed_alone(metaworld):
    """Not on the episodes beside it, those before it, or the state of numpy's global generator."""
    several, one = (
        MetaWorldConfig(task="push-v3", n_envs=3).create(),
        MetaWorldConfig(task="push-v3", n_envs=1).create(),
    )
    beside = played(several, [4, 9, 10**9], ACTIONS)
    np.random.seed(1)
    again = played(several, [9, 4], ACTIONS[::-1]), played(several, [9, 4], ACTIONS)
    alone = np.concatenate([played(one, [seed], ACTIONS) for seed in (4, 9)], axis=1)
    np.testing.assert_array_equal(beside[:, :2], alone)
    np.testing.assert_array_equal(again[1][:, ::-1], alone)
    assert (again[0][1:, ::-1] != alone[1:]).any() and (alone[0, 0] != alone[0, 1]).any()


def test_numbers_and_success_are_those_of_the_simulator(metaworld):
    """The same start set by Meta-World's own `set_task`, with the actions of its scripted policy."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.policies import ENV_POLICY_MAP
    from metaworld.types import Task

    env = MetaWorldConfig(task="reach-v3", n_envs=1).create()
    obs = env.reset([3])["state"]
    kind, expert = ALL_V3_ENVIRONMENTS["reach-v3"], ENV_POLICY_MAP["reach-v3"]()
    theirs = kind()
    start = {"rand_vec": env.envs[0]._env._last_rand_vec, "env_cls": kind, "partially_observable": False}
    theirs.set_task(Task("reach-v3", pickle.dumps(start)))
    expected, _ = theirs.reset()
    np.testing.assert_array_equal(obs[0], expected.astype(np.float32))
    for _ in range(200):
        action = np.clip(expert.get_action(expected), -1, 1).astype(np.float32)
        obs, _, done, info = env.step(action[None])
        expected, reward, _, _, says = theirs.step(action)
        np.testing.assert_array_equal(obs["state"][0], expected.astype(np.float32))
        assert info["success"][0] == info["score"][0] == says["success"] == done[0]
        if done[0]:
            break
    last = env.step(-action[None])  # over: it is not stepped again
    assert last.done[0] and last.info["success"][0] == 1 and (last.obs["state"] == obs["state"]).all()


@pytest.mark.slow
def test_actions_outside_the_bounds_are_clipped_as_the_simulator_does(metaworld):
    env, theirs = MetaWorldConfig(task="push-v3", n_envs=1).create(), SeededTask("push-v3")
    env.reset([5]), theirs.reset(5)
    for action in np.float32([[3, -2, 0.5, 9], [-7, 1, -1.5, -4]] * 4):
        found, expected = env.step(action[None]), theirs.step(action)
        np.testing.assert_array_equal(found.obs["state"][0], expected[0]["state"].astype(np.float32))
    with pytest.raises(ValueError, match=naming("row 0", "nan")):
        env.step(np.full((1, 4), np.nan))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"task": "reach-v3"}, lambda env: env.reset([0])["state"].tobytes()),
        ({"n_envs": 2}, lambda env: env.n_envs),
        ({"max_steps": 2}, lambda env: [env.reset([0]), *(env.step(ACTIONS[:1]).done[0] for _ in range(2))][1:]),
        ({"cameras": {"topview": (16, 20)}}, lambda env: env.obs_shapes),
        ({"render_size": 32}, lambda env: env.reset([0]) and env.render([0]).shape),
    ],
)
def test_every_field_changes_the_environment(change, effect, drawn):
    base = {"task": "push-v3", "n_envs": 1}
    assert effect(MetaWorldConfig(**{**base, **change}).create()) != effect(MetaWorldConfig(**base).create())


@pytest.mark.slow
def test_an_episode_of_several_tasks_is_that_of_the_task_its_seed_chooses_and_is_told(metaworld):
    """Bit for bit, whichever tasks a row has had before; nothing else is observed."""
    tasks = ("reach-v3", "drawer-open-v3", "push-v3")
    env = MetaWorldConfig(task=tasks, n_envs=2).create()
    alone = {task: MetaWorldConfig(task=task, n_envs=1).create() for task in tasks}
    assert env.obs_shapes == {"state": (39,), "hand": (4,), "scene": (SCENE,), "instruction": ()}
    for one in alone.values():
        assert one.obs_shapes == {"state": (39,), "hand": (4,), "scene": (SCENE,)}
        obs = one.reset([0])
        assert set(obs) == set(one.obs_shapes) and (obs["hand"] == obs["state"][:, :4]).all()
    for seeds in ([3, 4], [5, 3], [10**9, 4]):
        chosen = [tasks[seed % 3] for seed in seeds]
        expected = [played(alone[task], [seed], ACTIONS[:4]) for task, seed in zip(chosen, seeds, strict=True)]
        np.testing.assert_array_equal(played(env, seeds, ACTIONS[:4]), np.concatenate(expected, axis=1))
        texts = [INSTRUCTIONS[task] for task in chosen]
        found = env.reset(seeds), reset_to(env, {"seed": np.array(seeds)}), env.step(np.zeros((2, 4))).obs
        assert all(set(obs) == set(env.obs_shapes) and obs["instruction"].tolist() == texts for obs in found)
        assert [list(INSTRUCTIONS)[int(one[0])] for one in found[0]["scene"]] == chosen


@pytest.mark.slow
@pytest.mark.parametrize("task", ["push-v3", ("push-v3", "reach-v3")])
def test_a_camera_is_drawn_when_it_is_looked_at_and_not_before(task, drawn):
    env = MetaWorldConfig(task=task, n_envs=2, cameras={"topview": (16, 20)}).create()
    first = env.reset([0, 1])
    assert len(drawn) == 2 and first["topview"].shape == (2, 16, 20, 3) and env.obs_shapes["topview"] == (16, 20, 3)
    env.is_watched = False
    for action in ACTIONS[:3]:
        unseen = env.step(np.tile(action, (2, 1)))
    assert len(drawn) == 2
    env.is_watched = True
    seen = env.step(np.tile(ACTIONS[3], (2, 1)))
    assert len(drawn) == 4 and (seen.obs["scene"] != unseen.obs["scene"]).any()
    np.testing.assert_array_equal(drawn[2:], seen.obs["scene"])
    assert env.render([1]).shape == (1, 256, 256, 3)
    np.testing.assert_array_equal(drawn[4:], seen.obs["scene"][1:])


@pytest.mark.slow
def test_shadows_are_the_renderer_s(metaworld, monkeypatch):
    asked = []
    monkeypatch.setattr(MetaWorldRendererConfig, "create", lambda config, *given: asked.append((config.shadows, given)))
    for shadows in (False, True):
        MetaWorldConfig(task="push-v3", n_envs=3, shadows=shadows).create()
    assert asked == [(False, ((256, 256), 3)), (True, ((256, 256), 3))]  # rows, whose tasks stay open


def test_the_record_of_a_task_is_what_it_was_and_a_list_comes_back_from_json():
    one = MetaWorldConfig(task="push-v3")
    assert json.loads(one.to_json())["task"] == "push-v3"
    several = MetaWorldConfig.from_json('{"task": ["push-v3", "reach-v3"]}')
    assert several.task == ("push-v3", "reach-v3") and MetaWorldConfig.from_json(several.to_json()) == several
    with pytest.raises(ConfigError, match=naming("task")):
        MetaWorldConfig.from_json('{"task": []}')


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ("mt10", ["'mt10'", "'MT10'"]),
        (("push-v3", "pusk-v3"), ["'pusk-v3'", "'push-v3'"]),
        (("MT10", "push-v3"), ["'MT10'", "alone"]),
        (("push-v3", "reach-v3", "push-v3"), ["'push-v3'", "twice", "once"]),
    ],
)
def test_wrong_names_among_several_are_hinted_at(task, named, metaworld):
    with pytest.raises(ValueError, match=naming(*named)):
        MetaWorldConfig(task=task).create()


def test_limit_beyond_that_of_the_simulator_is_refused():
    with pytest.raises(ConfigError, match=naming("max_steps", 500, 501)):
        MetaWorldConfig.from_json('{"task": "push-v3", "max_steps": 501}')


def test_an_expert_that_takes_over_may_act_beyond_the_limit_of_the_simulator(metaworld):
    env = MetaWorldConfig(task=["push-v3", "reach-v3"], n_envs=1).model_copy(update={"max_steps": 502}).create()
    env.reset([5])
    done = [bool(env.step(np.zeros((1, 4))).done[0]) for _ in range(502)]
    assert done.index(True) == 501


def test_unknown_task_names_the_nearest_ones_in_one_line(metaworld, tmp_path):
    rollout = RolloutConfig(env=MetaWorldConfig(task="pushh-v3"), videos=0)
    with pytest.raises(ConfigError) as error:
        rollout.create()
    (line,) = error.value.problems
    assert told(line, "'pushh-v3'", "'push-v3'")
    said = CliRunner().invoke(main, ["make-demonstrations", "--task", "reach", "--out", str(tmp_path / "x.npz")])
    assert said.exit_code == 64 and told(said.output, "'reach'", "'reach-v3'")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=naming("'zzz'", "assembly-v3", "basketball-v3", "window-close-v3")):
        SeededTask("zzz")


def test_without_metaworld_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(ImportError, match=naming('pip install "dp_prior[metaworld]"')):
        MetaWorldConfig(task="push-v3").create()
    said = CliRunner().invoke(main, ["make-demonstrations", "--task", "push-v3", "--out", str(tmp_path / "x.npz")])
    assert said.exit_code == 64 and told(said.output, "Meta-World", 'pip install "dp_prior[metaworld]"')


def test_an_environment_that_cannot_be_rendered_says_what_to_do(metaworld, monkeypatch):
    env = MetaWorldConfig(task="push-v3", n_envs=1).create()

    env.reset([0])

    def no_context(*arguments):
        raise RuntimeError("no context")

    monkeypatch.setattr("dp_prior_worlds.opengl._find_display", lambda: None)
    monkeypatch.setattr("mujoco.Renderer", no_context)
    with pytest.raises(ValueError, match=naming("no context", "MUJOCO_GL", "egl", "osmesa", "videos 0")):
        env.render([0])


@pytest.mark.slow
def test_a_killed_run_repeats_its_rollouts(metaworld, tmp_path):
    places = [tmp_path / "whole", tmp_path / "killed"]
    for place in places:
        place.mkdir()
        states, actions, *_ = demonstrate(0, "reach-v3")
        ends = np.array([len(states), 2 * len(states)])
        np.savez(place / "reach.npz", state=np.tile(states, (2, 1)), action=np.tile(actions, (2, 1)), episode_ends=ends)
    configs = [
        write(
            place,
            task=tiny(place)["task"],
            data__episodes__path=str(place / "reach.npz"),
            data__obs={"state": {"key": "state"}},
            train__steps=12,
            train__monitor={"metric": "rollout/score", "mode": "max"},
            evaluate=[
                {
                    "type": "rollout", "every": {"steps": 6}, "n_episodes": 3, "videos": 0,
                    "env": {"type": "metaworld", "task": "reach-v3", "n_envs": 2, "max_steps": 8},
                }
            ],
        )
        for place in places
    ]  # fmt: skip
    ended = train(configs[0])
    assert ended.exit_code == 0, ended.output
    assert train_and_die(configs[1], "step", 8) == -9
    assert train(configs[1]).exit_code == 0
    runs = [place / "run" for place in places]
    assert_equal(state(runs[1]), state(runs[0]))
    assert rows(runs[1]) == rows(runs[0]) and any("rollout/success_rate" in row for row in rows(runs[0]))
    reports = [sorted((run / "media").glob("rollout_*.json")) for run in runs]
    assert len(reports[0]) == 2


@pytest.mark.slow
def test_worker_processes_give_the_same_episodes(metaworld):
    record = MetaWorldConfig(task="push-v3", n_envs=3)
    assert is_divisible(record)
    workers = Workers(record, 2)
    try:
        np.testing.assert_array_equal(played(workers, [1, 2, 3], ACTIONS), played(record.create(), [1, 2, 3], ACTIONS))
    finally:
        workers.close()


@pytest.mark.slow
def test_every_task_repeats_and_has_an_expert(metaworld):
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    for task in ALL_V3_ENVIRONMENTS:
        first, again = demonstrate(5, task), demonstrate(5, task)
        np.testing.assert_array_equal(first[0], again[0], err_msg=task)
        assert first[0].shape[1] == 39
        np.testing.assert_array_equal(
            first[0][0], SeededTask(task).reset(5)[0]["state"].astype(np.float32), err_msg=task
        )
