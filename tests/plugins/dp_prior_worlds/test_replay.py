"""Every field of a replay changes what is played, compared or reported; what cannot be replayed is refused."""

import json

import numpy as np
import pytest

from dp_prior.checkpoints.clock import Cadence
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.selection import ActionConfig
from dp_prior.data.split_data import SplitData
from dp_prior.envs.toy import ToyConfig, demonstrations
from dp_prior.run.config import TrainConfig
from dp_prior_worlds.metaworld import MetaWorldConfig
from dp_prior_worlds.metaworld_demonstrations import demonstrate, demonstrate_told
from dp_prior_worlds.pusht import PushTConfig
from dp_prior_worlds.pusht_goals import PushTGoalsConfig, write_goal_demonstrations
from dp_prior_worlds.replay import ReplayConfig
from tests.evaluation.fakes import NOW
from tests.messages import naming
from tests.plugins.dp_prior_worlds.replays import EPISODES, OBS, recorded, replay
from tests.tiny import tiny, train, write


def followed(found):
    return found.measure().metrics["replay/followed"]


def test_name_is_part_of_every_metric_and_of_the_report(tmp_path):
    record = ReplayConfig(env=ToyConfig(), name="ceiling")
    found = record.create(recorded(tmp_path).create(4, 2, 2), tmp_path / "media").run({}, None, NOW)
    assert list(found.metrics) == record.metric_names() and record.metric_names()[0] == "ceiling/score"
    assert [path.name for path in (tmp_path / "media").iterdir()] == ["ceiling_00000100.json"]


def test_every_is_the_cadence_of_the_evaluator(tmp_path):
    assert replay(recorded(tmp_path), every=Cadence(steps=3)).every == Cadence(steps=3)


def test_env_is_the_environment(tmp_path):
    assert followed(replay(recorded(tmp_path), env=ToyConfig(speed=0.05))) == 0.0


def test_n_episodes_are_spread_over_the_data(tmp_path):
    table = replay(recorded(tmp_path), n_episodes=4).measure().tables["replay/by_episode"]
    assert [row["episode"] for row in table] == [0, 2, 4, 6]
    assert len(replay(recorded(tmp_path), n_episodes=99).measure().tables["replay/by_episode"]) == EPISODES


def test_tolerance_decides_what_departs(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    begins = [0, *arrays["episode_ends"][:-1]]
    arrays["state"][:, :2] += np.where(np.isin(np.arange(len(arrays["state"])), begins), 0, 0.01)[:, None]  # of 1.3
    assert followed(replay(recorded(tmp_path, arrays), tolerance=0.002)) == 0.0
    assert followed(replay(recorded(tmp_path, arrays), tolerance=0.1)) == 1.0


def test_executed_actions_are_played_and_others_by_their_name(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    arrays |= {"action": arrays["action"] * 0, "executed": arrays["action"]}
    assert followed(replay(recorded(tmp_path, arrays))) == 1.0
    assert followed(replay(recorded(tmp_path, arrays), action=ActionConfig(key="action"))) == 0.0


def test_start_names_the_keys_of_the_data_that_determine_a_start(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    arrays |= {"here": arrays["state"][:, :2], "x": arrays["state"][:, 2], "y": arrays["state"][:, 3]}
    record = recorded(tmp_path, arrays, obs={"seen": {"key": "state"}})
    with pytest.raises(ConfigError, match=naming("'toy'", "'agent_pos'", "'goal'", "'seed'", "`start`", "here")):
        replay(record)
    found = replay(record, start={"agent_pos": "here", "goal": ("x", "y")})
    assert followed(found) == found.measure().metrics["replay/success_rate"] == 1.0, "starts are compared too"
    with pytest.raises(ConfigError, match=naming("start.goal", "'z'")):
        replay(record, start={"agent_pos": "here", "goal": ("x", "z")})
    with pytest.raises(ConfigError, match=naming("start.goal", "(2,)", "()")):
        replay(record, start={"agent_pos": "here", "goal": "x"})
    with pytest.raises(ConfigError, match=naming("agent_pos", "goal")):
        replay(record, start={"agent_pos": "here"})


def test_a_seed_of_each_episode_is_a_start(tmp_path):
    """Where the data hold no state that determines one; seeds beyond the whole numbers of float32 are exact."""
    env, seeds = ToyConfig(n_envs=1, max_steps=9).create(), 2**40 + np.arange(3)
    states, actions = [], np.random.default_rng(0).uniform(-1, 1, (3, 9, 2)).astype(np.float32)
    for seed, own in zip(seeds, actions, strict=True):
        obs = env.reset([int(seed)])
        for action in own:
            states.append(obs["goal"][0])
            obs = env.step(action[None]).obs
    arrays = {"goal": np.array(states), "action": np.concatenate(actions), "episode_ends": [9, 18, 27], "seed": seeds}
    record = recorded(tmp_path, arrays, obs={"goal": {"key": "goal"}})
    assert followed(replay(record, env=ToyConfig(max_steps=9))) == 1.0
    np.savez(tmp_path / "toy.npz", **{**arrays, "seed": seeds + 1})
    assert followed(replay(record, env=ToyConfig(max_steps=9))) == 0.0


def test_data_set_is_one_of_several(tmp_path):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    arrays = demonstrations(EPISODES, seed=3)
    sets = {
        "good": recorded(tmp_path / "good", arrays),
        "bad": recorded(tmp_path / "bad", {**arrays, "action": arrays["action"] * [-1, 1]}),
    }
    own = {name: json.loads(one.model_dump_json(include={"episodes", "obs", "action"})) for name, one in sets.items()}
    data = MixtureConfig.from_json(json.dumps({"sets": own})).create(4, 2, 2)
    rates = {
        name: ReplayConfig(env=ToyConfig(), data_set=name).create(data).measure().metrics["replay/success_rate"]
        for name in sets
    }
    assert rates["good"] == 1.0 > rates["bad"]
    for name in (None, "other"):
        with pytest.raises(ConfigError, match=naming("data_set", name, "good", "bad")):
            ReplayConfig(env=ToyConfig(), data_set=name).create(data)


def test_what_cannot_be_replayed_is_refused(tmp_path):
    with pytest.raises(DataError, match=naming("samples")):
        ReplayConfig(env=ToyConfig()).create(SplitData())
    wide = demonstrations(EPISODES, seed=3)
    wide["action"] = np.repeat(wide["action"], 2, axis=1)
    with pytest.raises(ConfigError, match=naming("'toy'", "'replay'", 2, "(4,)", "`action`")):
        replay(recorded(tmp_path, wide))


def test_a_policy_with_other_observations_is_compared_in_what_it_shares(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    arrays |= {"agent_pos": arrays["state"][:, :2] + 5, "goal": arrays["state"][:, 2:]}
    seen = {"unlike": {"key": "state"}, "goal": OBS["goal"]}
    table = replay(recorded(tmp_path, arrays, obs=seen)).measure().tables["replay/by_episode"]
    assert {row["departs_at"] for row in table} == {1}, "its positions are those of another place"


def test_a_configuration_has_a_replay_and_check_tells_its_ceiling(tmp_path):
    bad = demonstrations(4, seed=3)
    np.savez(tmp_path / "toy.npz", **{**bad, "action": bad["action"] * [-1, 1]})
    settings = tiny(tmp_path, evaluate=[{"type": "loss"}], test=[{"type": "replay", "env": {"type": "toy"}}])
    assert not list(TrainConfig.from_json(json.dumps(settings)).faults())
    found = train(write(tmp_path, evaluate=[{"type": "loss"}], test=settings["test"]), "--check")
    warning = next(line for line in found.output.splitlines() if "replay" in line and "warning" in line)
    assert "of 4 episodes" in warning and "depart" in warning


def test_demonstrations_of_all_goals_begin_at_a_state_and_at_their_goal(gym_pusht, shipped, tmp_path):
    ends = shipped["episode_ends"]
    shortest = np.diff(ends, prepend=0).argmin()
    rows = np.arange(ends[shortest - 1], ends[shortest])
    one = {"state": shipped["state"][rows], "action": shipped["action"][rows], "episode_ends": [len(rows)]}
    np.savez(tmp_path / "d.npz", **one)
    write_goal_demonstrations(tmp_path / "d.npz", tmp_path / "g.npz")
    with np.load(tmp_path / "g.npz") as arrays:
        goals = {key: arrays[key] for key in ("state", "action", "episode_ends", "goal")}
    record = recorded(tmp_path, goals, obs={"state": {"key": "state"}})
    with pytest.raises(ConfigError, match=naming("'pusht_goals'", "'state'", "'seed'", "`start`")):
        replay(record, env=PushTGoalsConfig())
    found = replay(record, env=PushTGoalsConfig(), start={"state": "state", "seed": "goal"})
    assert found.measure().metrics["replay/success_rate"] == 1.0
    assert replay(record, env=PushTConfig()).measure().metrics["replay/success_rate"] == 0.25, "one goal of four"


@pytest.mark.slow
def test_demonstrations_of_meta_world_replay_by_their_seed_and_executed_actions(metaworld, tmp_path):
    state, action, executed, *_ = demonstrate(1, "button-press-v3")
    arrays = {"state": state, "action": action, "executed": executed, "seed": np.array([1])}
    record = recorded(tmp_path, {**arrays, "episode_ends": [len(state)]}, obs={"state": {"key": "state"}})
    env = MetaWorldConfig(task="button-press-v3", n_envs=1)
    found = replay(record, env=env)
    assert followed(found) == found.measure().metrics["replay/success_rate"] == 1.0
    assert "mujoco" in str(found.ceiling())
    chosen = replay(record, env=env, action=ActionConfig(key="action"))
    assert not np.array_equal(action, executed) and followed(chosen) == 0.0


@pytest.mark.slow
def test_demonstrations_of_several_tasks_replay_each_in_the_task_of_its_seed(metaworld, tmp_path):
    tasks = ("handle-press-v3", "button-press-v3")
    played = [demonstrate_told(seed, tasks) for seed in (5, 2)]
    state, action, executed = (np.concatenate([one[part] for one in played]) for part in range(3))
    ends = np.cumsum([len(one[0]) for one in played])
    arrays = {"state": state, "action": action, "executed": executed, "seed": np.array([5, 2]), "episode_ends": ends}
    record = recorded(tmp_path, arrays, obs={"state": {"key": "state"}})
    found = replay(record, env=MetaWorldConfig(task=tasks, n_envs=2))
    assert followed(found) == found.measure().metrics["replay/success_rate"] == 1.0
    assert followed(replay(record, env=MetaWorldConfig(task=tasks[::-1], n_envs=2))) == 0.0
