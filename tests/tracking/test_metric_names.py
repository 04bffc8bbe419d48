"""Every number that a run logs is described by what measures it, once, and is on the page."""

import itertools

import pytest

from dp_prior.config import members
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.tracking.jsonl import read_rows
from dp_prior.tracking.metric_names import PLACEHOLDERS, find_metric
from dp_prior.training.training_config import METRICS as OF_TRAINING
from tests.reference import metric_groups, metrics_page
from tests.tiny import experiment, tiny

CLOCK = {"step", "samples_seen", "nonfinite"}
ENV = {"type": "toy", "n_envs": 2}
EVALUATORS = {  # the least that each needs besides its type
    "loss": {},
    "action_error": {"eval_timesteps": [2]},
    "body_error": {"data_set": "arm"},
    "rollout": {"env": ENV, "n_episodes": 2, "videos": 0},
    "replay": {"env": ENV, "n_episodes": 2},
    "body_rollouts": {"worlds": {"arm": {"env": ENV, "n_episodes": 2, "videos": 0}}},
}
OF_BODIES = {"body_error", "body_rollouts"}
"""Evaluators of a network for several bodies."""
METRICS = list(dict.fromkeys(metric for group in metric_groups().values() for metric in group))


def evaluators():
    """One of each kind there is; one that this file does not know is made from its type alone."""
    return [{"type": kind, **EVALUATORS.get(kind, {})} for kind in members(EvaluatorConfig)]


def test_a_run_with_all_evaluators_logs_documented_names_only(tmp_path):
    kinds = [one for one in evaluators() if one["type"] in EVALUATORS.keys() - OF_BODIES]
    variance = {"type": "learned_range"}
    experiment(tiny(tmp_path, train__steps=4, evaluate=kinds, task__diffusion__variance=variance)).run()
    names = {name for row in read_rows(tmp_path / "run") for name in row} - CLOCK
    assert not sorted(name for name in names if find_metric(name, METRICS) is None), "describe it"
    prefixes = {name.split("/")[0] for name in names}
    assert prefixes == {"train", "validation", "action_error", "rollout", "replay"}


@pytest.mark.parametrize("evaluator", evaluators(), ids=lambda one: one["type"])
def test_what_an_evaluator_announces_is_documented(evaluator):
    record = members(EvaluatorConfig)[evaluator["type"]].model_validate(evaluator)
    for name in record.metric_names():
        assert find_metric(name, record.metrics) is not None, f"{name} is not described in {type(record).__name__}"
        assert find_metric(name, OF_TRAINING) is None


def test_a_made_up_name_is_not_found():
    for name in ("train/made_up", "validation", "a/b/c/loss", "action_error/ema/mse[steps=x]", "train/loss_q4"):
        assert find_metric(name, METRICS) is None


def test_no_two_entries_mean_the_same_name():
    """Of the entries that a name fits, the first is meant; a name made of one entry alone must find it."""
    values = {"name": "validation", "model": "ema", "average": "ema", "quarter": "0", "steps": "16"}
    values |= {"base": "text", "end": "low", "k": "5", "features": "pixels"}
    for metric in METRICS:
        name = metric.name
        for key in PLACEHOLDERS:
            name = name.replace(f"<{key}>", values[key])
        assert find_metric(name, METRICS) is metric, name
    for one, other in itertools.combinations(METRICS, 2):
        assert one.name != other.name


def test_every_entry_says_something_and_is_on_the_page():
    text = metrics_page(metric_groups())
    for metric in METRICS:
        assert metric.unit and metric.meaning.endswith(".") and metric.better in (None, "lower", "higher")
        assert f"| `{metric.name}` |" in text
