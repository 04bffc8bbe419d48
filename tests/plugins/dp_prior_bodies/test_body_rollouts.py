"""Rollouts of every body while one network is trained: each plays its own world, and a mean over them selects."""

import json
import math

import numpy as np
import pytest

from dp_prior.checkpoints.clock import Progress
from dp_prior.config import ConfigError
from dp_prior.envs.toy import demonstrations
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.inference.load import load_policy
from dp_prior.places.reference import resolve
from dp_prior.run.config import TrainConfig
from dp_prior.tracking.jsonl import read_rows
from dp_prior_bodies.body_rollouts import BodyRolloutsConfig
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_bodies.two_bodies import bodies_run
from tests.tiny import tiny, train

WORLDS = {"slow": {"speed": 0.05, "max_steps": 60}, "fast": {"speed": 0.2, "max_steps": 20}}
"""Toys whose agents move at other speeds, of which `fast` alone sees the goal."""


def toys_run(place, **changes):
    """A configuration of both toys as JSON; see `tiny`."""
    sets = {}
    for seed, name in enumerate(WORLDS):
        np.savez(place / f"{name}.npz", **demonstrations(4, seed=seed))
        sets[name] = {
            "episodes": {"type": "npz", "path": str(place / f"{name}.npz")},
            "obs": {"agent_pos": {"key": "state", "slice": [0, 2]}},
            "action": {"key": "action"},
        }
    sets["fast"]["obs"]["goal"] = {"key": "state", "slice": [2, 4]}
    data = {"type": "bodies", "sets": sets, "split": {"train": 0.75, "val": 0.25}, "batch_size": 8}
    monitor = {"metric": "rollout/mean_score", "mode": "max"}
    settings = {"task__type": "bodies", "data": data, "evaluate": [rollouts()], "train__monitor": monitor}
    return tiny(place, **{**settings, **changes})


def rollouts(**changes):
    """Settings of the evaluator of both toys."""
    worlds = {
        name: {"env": {"type": "toy", "n_envs": 3, **settings}, "n_episodes": 3, "videos": 0}
        for name, settings in WORLDS.items()
    }
    return {"type": "body_rollouts", "every": {"steps": 4}, "worlds": worlds, **changes}


def saved(place, **changes):
    path = place / "config.json"
    path.write_text(json.dumps(toys_run(place, **changes)))
    return path


def test_each_body_plays_its_own_world_as_its_policy_alone_would(tmp_path):
    outcome = train(saved(tmp_path))
    assert outcome.exit_code == 0, outcome.output
    row = [row for row in read_rows(tmp_path / "run") if "rollout/mean_score" in row][-1]
    steps = {}
    for name in WORLDS:
        policy = load_policy(tmp_path / "run@latest", body=name)
        record = RolloutConfig(**rollouts()["worlds"][name])
        alone = record.create(policy).run({record.model: policy}, None, Progress()).tables
        scores = [episode["score"] for episode in alone[f"{record.name}/by_seed"]]
        assert row[f"rollout_{name}/score"] == pytest.approx(math.fsum(scores) / 3, abs=1e-6)
        steps[name] = row[f"rollout_{name}/episode_steps"]
    assert steps["fast"] <= 20 < steps["slow"]  # an untrained agent is not there before its time is over


def test_the_best_weights_are_those_of_the_best_mean_over_bodies(tmp_path):
    assert train(saved(tmp_path, train__lr={"type": "cosine", "peak": 0.02, "warmup_steps": 2})).exit_code == 0
    rows = [row for row in read_rows(tmp_path / "run") if "rollout/mean_score" in row]
    assert len(rows) == 6
    for row in rows:
        for metric in ("score", "success_rate"):
            parts = [row[f"rollout_{name}/{metric}"] for name in WORLDS]
            assert row[f"rollout/mean_{metric}"] == pytest.approx(math.fsum(parts) / 2)
    means = [row["rollout/mean_score"] for row in rows]
    assert len({*means}) > 1
    best = rows[int(np.argmax(means))]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best"]["step"] == best["step"]
    assert resolve(tmp_path / "run", prefer="best").name.endswith(f"{best['step']:08d}")


def test_reports_of_each_body_and_of_the_mean(tmp_path):
    assert train(saved(tmp_path, train__steps=4)).exit_code == 0
    media = tmp_path / "run" / "media"
    report = json.loads((media / "rollout_00000004.json").read_text())
    assert [row["body"] for row in report["tables"]["rollout/by_body"]] == [*WORLDS]
    for row in report["tables"]["rollout/by_body"]:
        alone = json.loads((media / f"rollout_{row['body']}_00000004.json").read_text())
        assert alone["metrics"][f"rollout_{row['body']}/score"] == row["score"]
        assert alone["settings"]["type"] == "rollout" and alone["settings"]["every"]["steps"] == 4
        assert len(alone["tables"][f"rollout_{row['body']}/by_seed"]) == 3
        assert alone["environment"]


def test_names_models_and_trials(tmp_path):
    settings = rollouts(name="both", every={"epochs": 2})
    settings["worlds"]["fast"]["model"] = "online"
    record = BodyRolloutsConfig.from_json(json.dumps(settings))
    names = record.metric_names()
    assert names[:2] == ["both/mean_score", "both/mean_success_rate"]
    expected = {f"both_{body}/{metric.name.partition('/')[2]}" for body in WORLDS for metric in RolloutConfig.metrics}
    assert {*names[2:]} == expected
    assert record.measured_models() == ("ema", "online")
    trial = record.trial()
    assert {world.n_episodes for world in trial.worlds.values()} == {2}
    assert record.every.epochs == 2
    assert train(saved(tmp_path), "--check").exit_code == 0


def test_what_no_body_can_play_is_refused_by_name(tmp_path):
    def problem(**changes):
        config = TrainConfig.from_json(json.dumps(toys_run(tmp_path, evaluate=[rollouts(**changes)])))
        with pytest.raises(ConfigError) as error:
            config.evaluate[0].create(config.open_data())
        return str(error.value)

    def faults(evaluator, **changes):
        with pytest.raises(ConfigError) as error:
            TrainConfig.from_json(json.dumps(toys_run(tmp_path, evaluate=[evaluator], **changes)))
        return error.value.problems

    worlds = rollouts()["worlds"]
    assert told_each([problem(worlds={**worlds, "tall": worlds["slow"]})], ("'rollout'", "worlds.tall", "fast", "slow"))
    wrong = {"type": "gym", "id": "Pendulum-v1"}
    misfit = problem(worlds={"slow": {**worlds["slow"], "env": wrong}})
    assert told(misfit, "rollout_slow", "agent_pos")
    assert told_each(faults(rollouts(worlds={})), ("evaluate.0.worlds", "{}"))
    for field, value in (("name", "other"), ("every", {"steps": 3})):
        ineffective = rollouts(worlds={"slow": {**worlds["slow"], field: value}})
        assert told_each(faults(ineffective), (f"evaluate.0: worlds.slow.{field}",))
    longer = rollouts(worlds={"slow": {**worlds["slow"], "n_action_steps": 9}})
    assert told_each(faults(longer), ("evaluate.0.worlds.slow.n_action_steps", 9, "horizon"))
    monitor = {"metric": "rollout/score", "mode": "max"}
    assert told_each(faults(rollouts(), train__monitor=monitor), ("rollout/mean_score",))


def test_rollouts_of_one_robot_are_refused_for_many_and_those_of_many_for_one(tmp_path):
    with pytest.raises(ConfigError, match=naming("body_rollouts", "bodies", "policy")):
        TrainConfig.from_json(json.dumps(tiny(tmp_path, evaluate=[rollouts()])))
    world = rollouts()["worlds"]["slow"]
    with pytest.raises(ConfigError, match=naming("rollout", "bodies")):
        TrainConfig.from_json(json.dumps(bodies_run(tmp_path, evaluate=[{"type": "rollout", **world}])))
