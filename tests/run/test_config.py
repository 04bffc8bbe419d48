"""What the parts of a configuration must have in common: refused with path and remedy, all problems in one report."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.run.config import TrainConfig
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
    assert problems(tmp_path, task__sampler=SECTIONS, **change) == [
        f"{where} is [2, 3], but the sections of task.sampler.spacing add up to 3 steps; "
        f"measure with [3], or set task.sampler.spacing to a name such as 'trailing'"
    ]


def test_number_of_steps_that_are_those_of_the_sections_is_taken(tmp_path):
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [3]}]
    TrainConfig.from_json(json.dumps(tiny(tmp_path, task__sampler=SECTIONS, evaluate=measured)))


def test_number_of_steps_that_the_spacing_cannot_give_is_refused(tmp_path):
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [5, 6]}]
    (problem,) = problems(tmp_path, task__sampler={"type": "ddim", "steps": 5, "spacing": "ddim"}, evaluate=measured)
    assert problem.startswith("evaluate.1.eval_timesteps has 6, which task.sampler cannot take: spacing 'ddim' needs")


def test_all_problems_of_the_parts_are_reported_at_once(tmp_path):
    found = problems(
        tmp_path,
        evaluate=[{"type": "loss", "models": ["x"], "split": "test"}, {"type": "similarity"}],
        test=[{"type": "loss", "models": ["x"]}],
        train__monitor={"metric": "nope", "mode": "max"},
    )
    expected = [
        "evaluate.0 measures ['x'], but the run has",
        "evaluate.0 measures on the test split; move it to `test`",
        "evaluate.1 is of type 'similarity', which measures prior tasks; the task is 'policy'",
        "test.0 measures ['x'], but the run has",
        "test.0 would measure 'validation/x/loss' a second time; give it a name",
        "train.monitor.metric is 'nope', which no evaluator in `evaluate` measures",
    ]
    assert [sum(line.startswith(text) for line in found) for text in expected] == [1] * len(expected)
    assert len(found) == len(expected)


def test_metric_that_is_better_when_lower_is_not_monitored_for_its_maximum(tmp_path):
    (problem,) = problems(tmp_path, train__monitor={"metric": "validation/ema/loss", "mode": "max"})
    assert problem.startswith("train.monitor.mode is 'max', which would select the worst checkpoint")
