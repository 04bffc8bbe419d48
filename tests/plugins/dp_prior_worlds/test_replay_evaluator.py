"""Recorded actions lead where they led when they were recorded, and what breaks this is told before training."""

import json
import math

import numpy as np
import pytest

from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.envs.toy import Toy, ToyConfig, demonstrations
from dp_prior.evaluation.interval import mean_interval, share_interval
from dp_prior_studio.pages.evaluation_report import is_fingerprint
from dp_prior_worlds.pusht import PushTConfig
from dp_prior_worlds.replay import ReplayConfig
from tests.evaluation.fakes import NOW, on_ranks
from tests.plugins.dp_prior_worlds.replays import EPISODES, recorded, replay
from tests.plugins.dp_prior_worlds.shipped import SHIPPED

HUMAN = SHIPPED.parents[2] / "shared" / "data" / "pusht" / "pusht_lowdim.npz"


def of_pusht(path, env=None, **data):
    """Some whole episodes of Push-T from a file, replayed."""
    keys = {"obs": {"state": {"key": "state"}}, "action": {"key": "action"}}
    record = {"episodes": {"type": "npz", "path": str(path)}, **keys, **data}
    return ReplayConfig(env=env or PushTConfig(), n_episodes=3).create(
        TrajectoriesConfig.from_json(json.dumps(record)).create(4, 2, 2)
    )


def shortest(place, arrays, count=3):
    """A file with the shortest episodes of a data set alone."""
    ends = arrays["episode_ends"]
    lengths = np.diff(ends, prepend=0)
    chosen = np.argsort(lengths, kind="stable")[:count]
    rows = np.concatenate([np.arange(ends[one] - lengths[one], ends[one]) for one in chosen])
    found = {key: arrays[key][rows] for key in ("state", "action")}
    np.savez(place / "some.npz", **found, episode_ends=np.cumsum(lengths[chosen]))
    return place / "some.npz"


def test_no_picture_is_drawn(gym_pusht, shipped, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "dp_prior_worlds.renderers.pusht.PushTRendererConfig.create",
        lambda config, size: lambda rows: drawn.append(rows) or np.zeros((1, *size, 3), np.uint8),
    )
    found = of_pusht(shortest(tmp_path, shipped, 2), env=PushTConfig(camera=(16, 16)))
    assert found.measure().metrics["replay/followed"] == 1.0
    assert not drawn


def test_the_shipped_demonstrations_of_pusht_replay(gym_pusht, shipped, tmp_path):
    found = of_pusht(shortest(tmp_path, shipped, 6))
    metrics = found.measure().metrics
    assert metrics["replay/success_rate"] == metrics["replay/followed"] == metrics["replay/score"] == 1.0
    assert not found.warnings() and "gym-pusht" in str(found.ceiling())


@pytest.mark.slow
@pytest.mark.long
def test_all_shipped_demonstrations_of_pusht_replay(gym_pusht):
    keys = {"obs": {"state": {"key": "state"}}, "action": {"key": "action"}}
    record = TrajectoriesConfig.from_json(json.dumps({"episodes": {"type": "npz", "path": str(SHIPPED)}, **keys}))
    metrics = ReplayConfig(env=PushTConfig(), n_episodes=900).create(record.create(4, 2, 2)).measure().metrics
    assert metrics["replay/success_rate"] > 0.98 < metrics["replay/followed"] and metrics["replay/episodes"] == 900


@pytest.mark.parametrize("broken", [{"action": {"key": "action", "ahead": 1}}, {"stride": 2}], ids=["shift", "rate"])
def test_a_shift_by_one_step_and_another_control_rate_of_pusht_are_told(broken, gym_pusht, shipped, tmp_path):
    found = of_pusht(shortest(tmp_path, shipped), **broken)
    assert found.measure().metrics["replay/followed"] == 0.0
    assert len(found.warnings()) == 1 and "3 of 3 depart" in found.warnings()[0]


def test_another_version_of_pusht_is_told_with_its_version(gym_pusht, shipped, tmp_path, monkeypatch):
    from gym_pusht.envs.pusht import PushTEnv

    made = PushTEnv._setup

    def setup(self):
        made(self)
        self.k_p *= 1.2

    monkeypatch.setattr(PushTEnv, "_setup", setup)
    (line,) = of_pusht(shortest(tmp_path, shipped)).warnings()
    assert "depart" in line and "pymunk" in line


@pytest.mark.skipif(not HUMAN.is_file(), reason=f"NOT CHECKED: {HUMAN} is not there")
def test_published_human_demonstrations_follow_their_recording_exactly_and_end_unsolved(gym_pusht, tmp_path):
    with np.load(HUMAN) as arrays:
        found = of_pusht(shortest(tmp_path, dict(arrays)))
    metrics = found.measure().metrics
    assert metrics["replay/followed"] == 1.0 and 0.8 < metrics["replay/score"] < 1.0
    (line,) = found.warnings()
    assert "All follow" in line and "ceiling" in line


def test_demonstrations_of_the_toy_replay(tmp_path):
    found = replay(recorded(tmp_path))
    metrics = found.measure().metrics
    assert metrics["replay/success_rate"] == metrics["replay/followed"] == 1.0 and not found.warnings()
    assert metrics["replay/episodes"] == EPISODES


def test_where_no_observation_is_of_the_environment_the_scores_are_the_same_and_nothing_departs(tmp_path):
    arrays, usual = demonstrations(EPISODES, seed=3), replay(recorded(tmp_path)).measure()
    arrays["seed"] = np.random.default_rng(3).integers(2**62, size=EPISODES)  # as `demonstrations` draws them
    unseen = recorded(tmp_path, arrays, obs={"p": {"key": "state", "slice": [0, 2]}})
    found = replay(unseen, start={"seed": "seed"})
    result = found.measure()
    assert math.isnan(result.metrics.pop("replay/followed"))
    assert result.metrics == {name: value for name, value in usual.metrics.items() if name != "replay/followed"}
    for row, other in zip(result.tables["replay/by_episode"], usual.tables["replay/by_episode"], strict=True):
        assert math.isnan(row.pop("departure")) and row.items() <= other.items() and row["departs_at"] is None
    assert not found.warnings()


def test_metrics_follow_from_the_table_of_episodes(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    arrays["action"][: arrays["episode_ends"][2], 0] *= -1
    result = replay(recorded(tmp_path, arrays)).measure()
    table, n = result.tables["replay/by_episode"], EPISODES
    scores = np.array([row["score"] for row in table])
    solved, followed = sum(row["success"] for row in table), sum(row["departs_at"] is None for row in table)
    expected = [
        scores.mean(),
        *mean_interval(scores, limits=(0.0, 1.0)),
        solved / n,
        *share_interval(solved, n),
        followed / n,
        n,
    ]
    assert list(result.metrics.values()) == pytest.approx(expected)
    assert 0 < followed < n and [row["episode"] for row in table] == list(range(n))
    assert all(row["steps"] <= row["recorded_steps"] for row in table)
    assert result.environment is not None and is_fingerprint(result.environment)


BROKEN = {
    "shifted by a step": lambda arrays: {**arrays, "action": np.roll(arrays["action"], 1, axis=0)},
    "of another meaning": lambda arrays: {**arrays, "action": arrays["action"] * [-1, 1]},
    "in other units": lambda arrays: {**arrays, "action": arrays["action"] * 0.1},
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_actions_are_told(how, tmp_path):
    (line,) = replay(recorded(tmp_path, BROKEN[how](demonstrations(EPISODES, seed=3)))).warnings()
    assert "'toy'" in line and "depart" in line


def test_another_control_rate_and_another_version_of_the_simulator_are_told(tmp_path, monkeypatch):
    assert replay(recorded(tmp_path, stride=2)).warnings()
    assert replay(recorded(tmp_path), env=ToyConfig(n_envs=3, speed=0.07)).warnings()
    record, step = recorded(tmp_path), Toy.step
    monkeypatch.setattr(Toy, "step", lambda self, actions: step(self, actions + [0.1, 0.0]))
    (line,) = replay(record).warnings()
    assert "step 1 " in line and "agent_pos[0]" in line


def test_an_environment_that_begins_elsewhere_is_told(tmp_path, monkeypatch):
    record, begin = recorded(tmp_path), Toy.reset_to
    monkeypatch.setattr(Toy, "reset_to", lambda self, starts: begin(self, {**starts, "goal": -starts["goal"]}))
    (line,) = replay(record).warnings()
    assert "step 0 " in line and "`start`" in line


def test_recordings_that_end_too_early_for_the_environment_are_told(tmp_path):
    (line,) = replay(recorded(tmp_path), env=ToyConfig(n_envs=3, max_steps=5)).warnings()
    assert "env.max_steps" in line and f"{EPISODES} are longer" in line


def test_the_departure_is_that_of_the_first_wrong_action(tmp_path):
    arrays = demonstrations(EPISODES, seed=3)
    begin = arrays["episode_ends"][1]
    arrays["action"][begin + 6 :][: arrays["episode_ends"][2] - begin - 6] = arrays["state"][begin, :2]
    table = replay(recorded(tmp_path, arrays)).measure().tables["replay/by_episode"]
    assert [row["departs_at"] for row in table] == [None, None, 7, *[None] * (EPISODES - 3)]
    assert table[2]["departs_in"].startswith("agent_pos") and table[2]["departure"] > 0.1
    assert table[2]["success"] is False and table[0]["departure"] < 1e-6


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_result_is_the_same_bit_for_bit_on_any_number_of_ranks(ranks, tmp_path):
    record = recorded(tmp_path)
    alone = replay(record).measure()
    measured = on_ranks(ranks, lambda models, own: replay(record).run({}, own, NOW), {})
    assert [result for result in measured if isinstance(result, Exception)] == []
    assert all(result.metrics == alone.metrics and result.tables == alone.tables for result in measured)


def test_blocks_do_not_change_the_result(tmp_path):
    results = [replay(recorded(tmp_path), env=ToyConfig(n_envs=n)).measure() for n in (1, 5, 20)]
    assert results[0].tables == results[1].tables == results[2].tables


def test_episodes_are_played_once_and_reported_each_time(tmp_path, monkeypatch):
    data, steps, step = recorded(tmp_path).create(4, 2, 2), [], Toy.step
    monkeypatch.setattr(Toy, "step", lambda self, actions: steps.append(1) or step(self, actions))
    found = ReplayConfig(env=ToyConfig()).create(data, tmp_path / "media")
    found.warnings()
    played = len(steps)
    found.run({}, None, NOW)
    assert len(steps) == played > 0
    report = json.loads((tmp_path / "media" / "replay_00000100.json").read_text())
    assert report["metrics"]["replay/success_rate"] == 1.0 and len(report["tables"]["replay/by_episode"]) == EPISODES
    assert is_fingerprint(report["environment"])


def test_an_environment_that_tells_no_success_is_judged_by_what_follows(tmp_path, monkeypatch):
    step = Toy.step

    def silent(self, actions):
        found = step(self, actions)
        return found._replace(info={**found.info, "success": np.full(len(found.done), np.nan)})

    found = replay(recorded(tmp_path))
    monkeypatch.setattr(Toy, "step", silent)
    assert math.isnan(found.measure().metrics["replay/success_rate"]) and not found.warnings()
    assert replay(recorded(tmp_path, stride=2)).warnings()
