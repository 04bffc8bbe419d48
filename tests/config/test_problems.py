"""A fault is a line with the path in the file, the value found and the remedy."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.config.problems import is_misspelled
from dp_prior.run.files.config import TrainConfig
from tests.config.records import MINIMAL, problems


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({**MINIMAL, "lerning_rate": 1}, "lerning_rate: unknown key. Did you mean 'learning_rate'?"),
        ({"task": {"horizon": 16, "horizn": 1}}, "task.horizn: unknown key. Did you mean 'horizon'?"),
        (
            {"task": {"horizon": 16, "schedule": {"type": "linear", "bta": 1}}},
            "task.schedule.bta: unknown key. Did you mean 'beta'?",
        ),
        (
            {"task": {"horizon": 16, "encoders": {"arm": {"type": "linear", "stps": 1}}}},
            "task.encoders.arm.stps: unknown key. Did you mean 'steps'?",
        ),
        (
            {**MINIMAL, "evaluate": [{}, {"every": {"stesp": 3, "epochs": 1}}]},
            "evaluate.1.every.stesp: unknown key. Did you mean 'steps'?",
        ),
        ({**MINIMAL, "qqqq": 1}, "qqqq: unknown key. Known keys: description, task, evaluate, learning_rate, use_ema,"),
        (
            {**MINIMAL, "extra_schedule": {"type": "linear", "linear": 1}},
            "extra_schedule.linear: unknown key. Known keys: type, steps, beta",
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_key(data, expected):
    assert [found[: len(expected)] for found in problems(data)] == [expected]


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "task: missing; it has no default"),
        ({"task": {}}, "task.horizon: missing; it has no default"),
        ({"task": {"horizon": "16"}}, "task.horizon: input should be a valid integer; found '16'"),
        ({"task": {"horizon": 16.0}}, "task.horizon: input should be a valid integer; found 16.0"),
        ({"task": {"horizon": True}}, "task.horizon: input should be a valid integer; found True"),
        ({"task": {"horizon": None}}, "task.horizon: input should be a valid integer; found None"),
        ({"task": 3}, "task: input should be an object; found 3"),
        ({"task": {"horizon": 4, "down_dims": 3}}, "task.down_dims: input should be a valid array; found 3"),
        (
            {"task": {"horizon": 4, "down_dims": [1, "2"]}},
            "task.down_dims.1: input should be a valid integer; found '2'",
        ),
        ({**MINIMAL, "use_ema": 1}, "use_ema: input should be a valid boolean; found 1"),
        ({**MINIMAL, "learning_rate": "1e-4"}, "learning_rate: input should be a valid number; found '1e-4'"),
        (
            {"task": {"horizon": 4, "schedule": {"type": "cosine", "steps": 0}}},
            "task.schedule.steps: input should be greater than or equal to 1; found 0",
        ),
        (
            {"task": {"horizon": 4, "schedule": {"type": "cosin"}}},
            "task.schedule.type: 'cosin' is not known; expected one of 'cosine', 'linear'",
        ),
        (
            {"task": {"horizon": 4, "encoders": {"arm": {"steps": 3}}}},
            "task.encoders.arm: missing key 'type'; expected one of 'cosine', 'linear'",
        ),
        ({"task": {"horizon": 4, "schedule": "cosine"}}, "task.schedule: input should be an object; found 'cosine'"),
        ({**MINIMAL, "evaluate": [{"every": {}}]}, "evaluate.0.every: give exactly one of steps, epochs"),
        (
            {**MINIMAL, "extra_schedule": {"type": "linear", "beta": "x"}},
            "extra_schedule.beta: input should be a valid",
        ),
    ],
)
def test_a_wrong_value_is_not_coerced_and_is_named_with_its_path(data, expected):
    assert [found[: len(expected)] for found in problems(data)] == [expected]


def test_no_member_of_a_plain_union_shows_up_in_the_path():
    for wrong in ([1], {"a": 1}, None):
        found = problems({"task": {"horizon": 4, "seed_or_name": wrong}})
        assert [line.split(":")[0] for line in found] == ["task.seed_or_name"] * 2


def test_all_problems_come_in_one_report():
    found = problems({"task": {"horizn": 1, "down_dims": ["x"]}, "use_ema": "yes", "evaluate": [{"nam": 1}]})
    assert [line.split(":")[0] for line in found] == [
        "task.horizon",
        "task.down_dims.0",
        "task.horizn",
        "evaluate.0.nam",
        "use_ema",
    ]


def test_a_key_is_a_misspelling_of_a_name_from_which_one_letter_or_its_form_parts_it():
    names = ["horizon", "batch_size", "log_every", "lr_scale", "seed"]
    for name in names:
        for i in range(len(name)):
            assert is_misspelled(name[:i] + name[i + 1 :], name), "a letter less"
            assert is_misspelled(name[:i] + "x" + name[i:], name), "a letter more"
            assert is_misspelled(name[:i] + "x" + name[i + 1 :], name), "another letter"
            assert is_misspelled(name[:i] + name[i : i + 2][::-1] + name[i + 2 :], name), "two exchanged"
    assert is_misspelled("batchSize", "batch_size") and is_misspelled("batch-size", "batch_size")
    others = [("val_every", "save_every"), ("resume", "requeue"), ("amp", "samples"), ("scale", "sampler"), ("a", "b")]
    assert not any(is_misspelled(key, name) for key, name in [*others, ("dropout", "label_dropout")])


def test_a_value_in_place_of_an_object_is_told_the_field_or_the_object_that_was_meant():
    for wrong, meant in (
        (
            {"train": {"lr": 1e-4}},
            "train.lr: input should be an object; found 0.0001. Did you mean train.lr.peak = 0.0001",
        ),
        ({"train": {"save_every": 5}}, "Did you mean train.save_every.steps = 5?"),
        ({"train": {"optimizer": "muon"}}, 'Did you mean {"type": "muon"}?'),
        ({"train": {"lr": -1}}, "train.lr: input should be an object; found -1"),  # no peak
        ({"train": {"lr": True}}, "found True"),
        ({"data": {"split": 3}}, "data.split: input should be an object; found 3"),  # which of its fields?
    ):
        with pytest.raises(ConfigError) as found:
            TrainConfig(**wrong)
        line = next(line for line in str(found.value).splitlines() if meant in line)
        assert ("Did you mean" in line) is ("Did you mean" in meant), line
