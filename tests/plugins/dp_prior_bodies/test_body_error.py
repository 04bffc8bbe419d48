"""Action errors of each body: those that the body's own policy has on the body's own data."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.inference.load import load_policy
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tracking.jsonl import read_rows
from dp_prior_bodies.body_error import BodyErrorConfig
from tests.messages import naming
from tests.plugins.dp_prior_bodies.two_bodies import JOINTS, bodies_run, saved
from tests.tiny import train


def errors():
    """An evaluator of each body."""
    shared = {"type": "body_error", "every": {"steps": 100}, "eval_timesteps": [2], "draws": 2}
    return [{**shared, "name": f"error_{name}", "data_set": name} for name in JOINTS]


def test_the_error_of_a_body_is_that_of_its_policy_on_its_data(tmp_path):
    config = saved(tmp_path, evaluate=[{"type": "loss", "every": {"steps": 100}}, *errors()])
    assert train(config).exit_code == 0
    row = [row for row in read_rows(tmp_path / "run") if "error_long/ema/mse[steps=2]" in row][-1]
    data = TrainConfig.from_json(config.read_text()).data
    for name in JOINTS:
        alone = data.set_config(name).create(4, 2, 2)
        alone.build_caches(lambda line: None)
        policy = load_policy(tmp_path / "run@latest", body=name)
        evaluator = ActionErrorConfig(eval_timesteps=(2,), shown=0).create(alone)
        expected = evaluator.run({"ema": policy}, None, None).metrics
        assert len(expected) == 5
        for metric, value in expected.items():
            assert row[metric.replace("action_error", f"error_{name}")] == pytest.approx(value, rel=1e-5)


def test_all_settings_are_those_of_the_action_error(tmp_path):
    assert train(saved(tmp_path)).exit_code == 0
    settings = {"eval_timesteps": (2, 3), "n_samples": 7, "seed": 4, "batch_size": 3, "split": "train", "shown": 0}
    config = TrainConfig.from_json((tmp_path / "config.json").read_text())
    data = config.open_data()
    data.build_caches(lambda line: None)
    alone = config.data.set_config("long").create(4, 2, 2)
    record = BodyErrorConfig(data_set="long", name="long", **settings)
    plain = {name: value for name, value in record.arguments().items() if name not in ("type", "data_set")}
    policy, network = load_policy(tmp_path / "run", body="long"), DiffusionPolicy.from_pretrained(tmp_path / "run")
    expected = ActionErrorConfig(**plain).create(alone).run({"ema": policy}, None, None).metrics
    assert record.create(data).run({"ema": network}, None, None).metrics == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_one_body_can_be_measured(tmp_path):
    losses = [{"type": "loss", "every": {"steps": 100}}]
    losses += [{**losses[0], "name": f"loss_{name}", "data_set": name} for name in JOINTS]
    assert train(saved(tmp_path, evaluate=losses)).exit_code == 0
    row = read_rows(tmp_path / "run")[-1]
    parts = [row[f"loss_{name}/ema/loss"] for name in JOINTS]
    assert min(parts) < row["validation/ema/loss"] < max(parts)


def test_evaluators_of_one_robot_and_unknown_bodies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=naming("action_error", "bodies")):
        TrainConfig.from_json(json.dumps(bodies_run(tmp_path, evaluate=[{"type": "action_error"}])))
    config = bodies_run(tmp_path)
    config["evaluate"] += [{**errors()[0], "data_set": "tall"}]
    config = TrainConfig.from_json(json.dumps(config))
    with pytest.raises(ConfigError, match=naming("tall", "long", "short")):
        config.evaluate[1].create(config.open_data())
