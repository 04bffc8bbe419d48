"""A fault is a line with the path in the file, the value found and the remedy."""

import json

import pytest

from dp_prior.config import ConfigError
from dp_prior.config.problems import is_misspelled
from dp_prior.run.config import TrainConfig
from tests.config.records import MINIMAL, problems
from tests.messages import told, told_each


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({**MINIMAL, "lerning_rate": 1}, ("lerning_rate", "unknown key", "'learning_rate'")),
        ({"task": {"horizon": 16, "horizn": 1}}, ("task.horizn", "unknown key", "'horizon'")),
        (
            {"task": {"horizon": 16, "schedule": {"type": "linear", "bta": 1}}},
            ("task.schedule.bta", "unknown key", "'beta'"),
        ),
        (
            {"task": {"horizon": 16, "encoders": {"arm": {"type": "linear", "stps": 1}}}},
            ("task.encoders.arm.stps", "unknown key", "'steps'"),
        ),
        (
            {**MINIMAL, "evaluate": [{}, {"every": {"stesp": 3, "epochs": 1}}]},
            ("evaluate.1.every.stesp", "unknown key", "'steps'"),
        ),
        ({**MINIMAL, "qqqq": 1}, ("qqqq", "unknown key", "description, task, evaluate, learning_rate, use_ema")),
        (
            {**MINIMAL, "extra_schedule": {"type": "linear", "linear": 1}},
            ("extra_schedule.linear", "unknown key", "type, steps, beta"),
        ),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_key(data, expected):
    assert told_each(problems(data), expected)


@pytest.mark.promise("I1")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, ("task", "missing", "no default")),
        ({"task": {}}, ("task.horizon", "missing", "no default")),
        ({"task": {"horizon": "16"}}, ("task.horizon", "integer", "'16'")),
        ({"task": {"horizon": 16.0}}, ("task.horizon", "integer", 16.0)),
        ({"task": {"horizon": True}}, ("task.horizon", "integer", "true")),
        ({"task": {"horizon": None}}, ("task.horizon", "integer", "null")),
        ({"task": 3}, ("task", "object", 3)),
        ({"task": {"horizon": 4, "down_dims": 3}}, ("task.down_dims", "array", 3)),
        (
            {"task": {"horizon": 4, "down_dims": [1, "2"]}},
            ("task.down_dims.1", "integer", "'2'"),
        ),
        ({**MINIMAL, "use_ema": 1}, ("use_ema", "true", "false", 1)),
        ({**MINIMAL, "learning_rate": "1e-4"}, ("learning_rate", "number", "'1e-4'")),
        (
            {"task": {"horizon": 4, "schedule": {"type": "cosine", "steps": 0}}},
            ("task.schedule.steps", 1, 0),
        ),
        (
            {"task": {"horizon": 4, "schedule": {"type": "cosin"}}},
            ("task.schedule.type", "'cosin'", "'cosine', 'linear'"),
        ),
        (
            {"task": {"horizon": 4, "encoders": {"arm": {"steps": 3}}}},
            ("task.encoders.arm", "missing", "'type'", "'cosine', 'linear'"),
        ),
        ({"task": {"horizon": 4, "schedule": "cosine"}}, ("task.schedule", "object", "'cosine'")),
        ({**MINIMAL, "evaluate": [{"every": {}}]}, ("evaluate.0.every", "steps, epochs")),
        (
            {**MINIMAL, "extra_schedule": {"type": "linear", "beta": "x"}},
            ("extra_schedule.beta", "number", "'x'"),
        ),
    ],
)
def test_a_wrong_value_is_not_coerced_and_is_named_with_its_path(data, expected):
    assert told_each(problems(data), expected)


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
    for wrong, parts in (
        (
            {"train": {"lr": 1e-4}},
            ("train.lr", "object", 0.0001, "train.lr.peak = 0.0001?"),
        ),
        ({"train": {"save_every": 5}}, ("train.save_every.steps = 5?",)),
        ({"train": {"optimizer": "muon"}}, ('{"type": "muon"}?',)),
        ({"train": {"lr": -1}}, ("train.lr", "object", -1)),  # no peak
        ({"train": {"lr": True}}, ("train.lr", "true")),
        ({"data": {"split": 3}}, ("data.split", "object", 3)),  # which of its fields?
    ):
        with pytest.raises(ConfigError) as found:
            TrainConfig(**wrong)
        line = next(line for line in str(found.value).splitlines() if told(line, *parts))
        assert line.endswith("?") is str(parts[-1]).endswith("?"), line


def test_fields_that_another_type_clears_are_told_with_the_override_that_sets_them(tmp_path):
    stored = {"task": {"horizon": 8}, "data": {"type": "trajectories", "episodes": {"type": "npz", "path": "a.npz"}}}
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json(json.dumps(stored), ["data.episodes.type=zarr"])
    assert told(str(caught.value), "data.episodes.path", "--set data.episodes.path=VALUE", "type")
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json(json.dumps({"task": {"horizon": 8}, "data": {"type": "trajectories"}}), [])
    assert told(str(caught.value), "data.episodes", "no default")
