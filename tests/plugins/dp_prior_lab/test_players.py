"""A player finds the rollouts of its policy, and players that cannot be compared are told so."""

import json
import shutil

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.envs.toy import ToyConfig
from dp_prior.inference import plans
from dp_prior.inference.load import load_policy
from dp_prior.run.config import TrainConfig
from dp_prior_lab.players import Player, score_limits
from dp_prior_robot.export import graph_cache, onnx_part, onnx_runtime
from dp_prior_robot.export.onnx_network import OnnxNetwork
from dp_prior_robot.export.write import write_export
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_lab.test_compare import ROLLOUTS
from tests.tiny import tiny, train, write


def rollouts(name, **env):
    return {**ROLLOUTS, "name": name, "env": {**ROLLOUTS["env"], **env}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with rollouts of its own, by name of what differs."""
    found = {}
    for name, changes in {
        "short": {"test": [rollouts("toy")]},
        "long": {"test": [rollouts("toy", max_steps=9, n_envs=2)]},
        "two": {"test": [rollouts("one"), rollouts("other")]},
    }.items():
        place = tmp_path_factory.mktemp(name)
        assert train(write(place, train__steps=2, **changes)).exit_code == 0
        found[name] = str(place / "run")
    return found


def player(reference, evaluator=None, given=None):
    return Player(reference, evaluator, given, "cpu")


@pytest.mark.slow
def test_the_rollouts_are_those_of_the_policy_by_name_or_the_only_ones(runs):
    assert player(runs["short"]).record.name == "toy"
    assert player(runs["two"], "other").record.name == "other"
    for evaluator, named in ((None, ()), ("third", ("'third'",))):
        with pytest.raises(ConfigError, match=naming("one, other", "--evaluator", runs["two"], *named)):
            player(runs["two"], evaluator)


def test_a_policy_without_rollouts_names_the_option(trained_policy, tmp_path):
    with pytest.raises(ConfigError, match=naming(trained_policy, "--config_file", "docs/comparing.md#a-real-robot")):
        player(str(trained_policy))
    model = tmp_path / "model"
    load_policy(trained_policy).save_pretrained(model)
    with pytest.raises(ConfigError, match=naming(model, "--config_file")):
        player(str(model))


@pytest.mark.slow
def test_policies_in_different_environments_are_not_compared(runs):
    short, long = player(runs["short"]), player(runs["long"])
    assert score_limits([short, player(runs["short"])]) == (0.0, 1.0)
    told = ("env.max_steps", runs["long"], runs["short"], "--config_file")
    with pytest.raises(ConfigError, match=naming(*told)) as refused:
        score_limits([short, long])
    assert "n_envs" not in str(refused.value)


def test_scores_without_limits_need_success(tmp_path, trained_policy):
    pytest.importorskip("gymnasium")
    test = [{**ROLLOUTS, "env": {"type": "gym", "id": "Pendulum-v1"}}]
    path = tmp_path / "pendulum.json"
    path.write_text(json.dumps(tiny(tmp_path, test=test)), encoding="utf-8")
    one = player(str(trained_policy), given=TrainConfig.from_json_path(path))
    with pytest.raises(ConfigError, match=naming("'gym'", "--measure success")):
        score_limits([one, one])


def test_an_environment_of_which_no_limits_are_known_needs_success(runs, monkeypatch):
    monkeypatch.delattr(ToyConfig, "score_range")  # as docs/extending.md allows
    with pytest.raises(ConfigError, match=naming("'toy'", "--measure success")):
        score_limits([player(runs["short"])] * 2)


def test_other_weights_or_settings_are_another_identity(runs, tmp_path):
    one = player(runs["short"]).identity
    moved = tmp_path / "run"
    shutil.copytree(runs["short"], moved)
    assert player(str(moved)).identity == one
    assert player(runs["long"]).identity["evaluator"] != one["evaluator"]
    assert player(runs["two"], "one").identity["files"] != one["files"]


@pytest.mark.slow
def test_an_export_plays(runs, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "export"
    write_export(load_policy(runs["short"]), folder, "onnx", source="short")
    given = TrainConfig.from_json_path(write(tmp_path, test=[rollouts("toy")]))
    with player(str(folder), given=given).playing(5) as play, player(runs["short"]).playing(5) as original:
        for row, same in zip(play(range(4)), original(range(4)), strict=True):
            assert row["score"] == pytest.approx(same["score"], abs=1e-3)
    other = tmp_path / "other"
    write_export(load_policy(runs["two"]), other, "onnx", source="other")  # other weights, of the same sizes
    assert player(str(other), given=given).identity["files"] != player(str(folder), given=given).identity["files"]


@pytest.mark.slow
def test_a_player_acts_by_the_runtime_of_agents_where_that_is_faster(runs, tmp_path, monkeypatch):
    """Compared policies and blind trials are loaded as a robot's are."""
    needs("onnxscript", "onnx")
    with player(runs["short"]).playing(0) as play:
        expected = play(range(2))
    measured, evaluations = OnnxNetwork._measured, []

    def faster(self, inputs):
        measured(self, inputs)
        run = self._run
        self._run = lambda values: evaluations.append(len(values[0])) or run(values)
        return 1.0, 0.1

    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(onnx_part, "MEASURED_S", 0.0)
    monkeypatch.setattr(graph_cache, "CACHE", tmp_path)
    monkeypatch.setattr(OnnxNetwork, "_measured", faster)
    monkeypatch.setattr(plans, "listeners", lambda event: [onnx_runtime.accelerate] if event == "runtimes" else [])
    with player(runs["short"]).playing(0) as play:
        rows = play(range(2))
    assert evaluations, "the network ran in onnxruntime"
    for row, before in zip(rows, expected, strict=True):
        assert (row["seed"], row["success"]) == (before["seed"], before["success"])
        np.testing.assert_allclose(row["score"], before["score"], atol=1e-4)
