"""What the parts of a configuration must have in common: refused with path and remedy, all problems in one report."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import MissingError
from dp_prior.evaluation.loss import LossConfig
from dp_prior.run.config import TrainConfig
from tests import test_prior
from tests.messages import naming, told, told_each
from tests.tiny import tiny

SECTIONS = {"type": "ddim", "steps": None, "spacing": [2, 1]}


def problems(place, **change):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json(json.dumps(tiny(place, **change)))
    return caught.value.problems


@pytest.mark.parametrize("part", ["evaluate", "test"])
def test_number_of_steps_that_the_sections_of_the_sampler_do_not_give_is_refused(part, tmp_path):
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [2, 3]}]
    change = {"evaluate": measured} if part == "evaluate" else {"test": measured[1:]}
    where = f"{part}.{int(part == 'evaluate')}.eval_timesteps"
    found = problems(tmp_path, task__sampler=SECTIONS, **change)
    assert told_each(found, (where, "has 2", "task.sampler", "steps is 2", "spacing", 3, "'trailing'"))


def test_number_of_steps_that_are_those_of_the_sections_is_taken(tmp_path):
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [3]}]
    TrainConfig.from_json(json.dumps(tiny(tmp_path, task__sampler=SECTIONS, evaluate=measured)))


def test_number_of_steps_that_the_spacing_cannot_give_is_refused(tmp_path):
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [5, 6]}]
    (problem,) = problems(tmp_path, task__sampler={"type": "ddim", "steps": 5, "spacing": "ddim"}, evaluate=measured)
    assert told(problem, "evaluate.1.eval_timesteps", 6, "task.sampler", "spacing 'ddim'")


def test_all_problems_of_the_parts_are_reported_at_once(tmp_path):
    found = problems(
        tmp_path,
        evaluate=[{"type": "loss", "models": ["x"], "split": "test"}, {"type": "similarity"}],
        test=[{"type": "loss", "models": ["x"]}],
        train__monitor={"metric": "nope", "mode": "max"},
    )
    expected = [
        ("evaluate.0", "['x']", "['ema', 'slow', 'online']"),
        ("evaluate.0", "test split", "`test`"),
        ("evaluate.1", "'similarity'", "'policy'"),
        ("test.0", "['x']", "['ema', 'slow', 'online']"),
        ("test.0", "'validation/x/loss'", "name"),
        ("train.monitor.metric", "'nope'", "`evaluate`"),
    ]
    assert [sum(told(line, *parts) for line in found) for parts in expected] == [1] * len(expected)
    assert len(found) == len(expected)


def test_metric_that_is_better_when_lower_is_not_monitored_for_its_maximum(tmp_path):
    (problem,) = problems(tmp_path, train__monitor={"metric": "validation/ema/loss", "mode": "max"})
    assert told(problem, "train.monitor.mode", "'max'", "'validation/ema/loss'", "'min'")


EACH_BY_ITSELF = {  # independent faults between fields: change, where it is reported, parts of the line
    "chunk": ({"task__n_action_steps": 9}, ("task", "n_action_steps", 9)),
    "sampler": ({"task__sampler": {"type": "ddim", "steps": 99}}, ("task", "sampler", "diffusion.schedule", 99)),
    "data units": (
        {"task__encoders": {"goal": {"type": "angle"}}, "task__normalizer": {"goal": {"type": "limits"}}},
        ("task", "normalizer.goal", "'limits'"),
    ),
    "budget": ({"train__epochs": 2}, ("train", "exactly one", "samples, epochs, steps")),
    "rolling back": ({"train__divergence": "roll back"}, ("train", "divergence", "'roll back'", "rollback", 0)),
    "cadence": (
        {"checkpoints": {}, "evaluate__0__every": {"steps": 1, "samples": 8}},
        ("evaluate.0.every", "exactly one", "steps, samples, epochs, minutes"),
    ),
    "split": ({"data__split": {"train": 0.5, "val": 0.1}}, ("data.split", "train 0.5", "val 0.1")),
    "names": (
        {"data__embeddings": {"goal": {"folder": {"path": "x"}}}},
        ("data", "obs, embeddings, images, depth, points", "['goal']", "twice"),
    ),
    "metadata": (
        {"data__embeddings__goal__folder": {"path": "x", "format": "parquet_npy"}},
        ("data.embeddings.goal.folder", "'parquet_npy'", "metadata"),
    ),
    "loggers": ({"tracker__log": [{"type": "csv"}, {"type": "csv"}]}, ("tracker", "logger 'csv'", "2 times")),
    "savers": (
        {"tracker__save": [{"type": "fsspec", "url": "memory://a"}] * 2},
        ("tracker", "two savers", "fsspec memory://a"),
    ),
}


@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in EACH_BY_ITSELF),
        *(("chunk", "sampler"), ("chunk", "data units"), ("chunk", "sampler", "data units")),
        *(("budget", "rolling back"), ("loggers", "savers"), ("split", "metadata", "cadence")),
        *(("chunk", "budget", "loggers"), ("split", "rolling back", "savers"), ("names", "sampler", "cadence")),
        ("chunk", "sampler", "data units", "budget", "rolling back", "names", "loggers", "savers"),
    ],
    ids=" and ".join,
)
def test_independent_faults_are_each_reported_once(names, tmp_path):
    """In one record and in several. A record is asked once its parts have no fault, since it may rest on them."""
    found = problems(tmp_path, **{key: value for name in names for key, value in EACH_BY_ITSELF[name][0].items()})
    expected = [EACH_BY_ITSELF[name][1] for name in names]
    assert [sum(told(line, *parts) for line in found) for parts in expected] == [1] * len(expected), found
    assert len(found) == len(expected)


def test_a_configuration_made_in_python_has_the_types_that_json_may_omit(tmp_path):
    """Also where a record stands for the task, whose usual data are meant then."""
    given = tiny(tmp_path, train__optimizer={"betas": [0.5, 0.5]})
    config = TrainConfig.from_json(json.dumps(given))
    assert TrainConfig(**given) == TrainConfig(**{**given, "task": config.task}) == config
    prior = test_prior.tiny(tmp_path)
    config = TrainConfig.from_json(json.dumps(prior))
    prior["data"].pop("type", None)
    assert TrainConfig(**{**prior, "task": config.task}) == config
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{**given, "task": {"horizn": 4}, "evaluat": []})
    assert told_each(
        caught.value.problems, ("task.horizn", "unknown key", "'horizon'"), ("evaluat", "unknown key", "'evaluate'")
    )


def test_evaluators_that_declare_no_metric_are_told_how_to_declare_one(tmp_path, monkeypatch):
    monkeypatch.setattr(LossConfig, "metric_names", lambda self: [])
    (problem,) = problems(tmp_path)
    assert told(problem, "train.monitor.metric", "`evaluate`", "`metrics`", "docs/extending.md")


def test_a_misspelt_path_of_data_is_told_the_nearest(tmp_path):
    config = TrainConfig.from_json(json.dumps(tiny(tmp_path, data__episodes__path=str(tmp_path / "tpy.npz"))))
    with pytest.raises(MissingError, match=naming("tpy.npz", "data.episodes.path", f"mean {tmp_path / 'toy.npz'}?")):
        config.open_data()
