"""An override is typed by the record, and no override undoes another."""

import json
import operator

import pytest

from dp_prior.config import ConfigError
from dp_prior.config.overrides import flat
from tests.cases import every
from tests.config.records import MINIMAL, Cosine, Evaluator, Linear, Run, problems, read
from tests.messages import told, told_each


def test_an_override_is_typed_by_the_record():
    run = read(MINIMAL, "learning_rate=3e-4", "use_ema=false", "description=on two lines", "task.down_dims=[8,16]")
    assert (run.learning_rate, run.use_ema, run.description, run.task.down_dims) == (
        3e-4,
        False,
        "on two lines",
        (8, 16),
    )
    assert read(MINIMAL, "description=").description == ""
    assert read(MINIMAL, "description=a=b").description == "a=b"


@every(text=["3", "true", '"null"', "1e5", "[1]", '"quoted"'])
def test_an_override_of_a_text_field_is_text_whatever_it_looks_like(text):
    expected = text.strip('"')
    assert read(MINIMAL, f"description={text}").description == expected
    assert read(MINIMAL, f"evaluate.0.name={text}").evaluate[0].name == expected


@every(
    case=[
        ("learning_rate", ".5", 0.5),
        ("learning_rate", "1_0.", 10.0),
        ("task.horizon", "1e3", 1000),
        ("task.horizon", "1_000", 1000),
        ("use_ema", "False", False),
    ]
)
def test_a_number_or_word_of_python_is_taken_where_nothing_else_is_valid(case):
    key, text, expected = case
    override = f"{key}={text}"
    run = read(MINIMAL, override)
    found = operator.attrgetter(key)(run)
    assert found == expected and type(found) is type(expected)
    assert read(MINIMAL, f"description={text}").description == text
    assert Run.from_json(json.dumps(MINIMAL), override) == run  # a text is one override


@every(override=["task.horizon=1.5", "learning_rate=inf", "learning_rate=nan", "task.horizon=True", "use_ema=1"])
def test_what_is_no_number_or_word_of_a_field_is_refused(override):
    (problem,) = problems(MINIMAL, override)
    assert told(problem, override.partition("=")[0])


def test_an_override_with_null_is_not_the_text_null():
    (problem,) = problems(MINIMAL, "description=null")
    assert told(problem, "description", "string", "null")


def test_an_override_into_a_default_keeps_the_rest_of_the_default():
    run = read(MINIMAL, "task.schedule.steps=7", "task.encoders.left.steps=3", "evaluate.0.name=other")
    assert run.task.schedule == Cosine(steps=7)
    assert run.task.encoders == {"left": Linear(steps=3), "right": Cosine()}
    assert run.evaluate == [Evaluator(name="other")]


def test_a_changed_type_starts_that_part_afresh_and_an_equal_one_does_not():
    data = {"task": {"horizon": 4, "schedule": {"type": "linear", "beta": 0.25, "steps": 3}}}
    assert read(data, "task.schedule.type=cosine").task.schedule == Cosine()
    assert read(data, "task.schedule.type=cosine", "task.schedule.steps=9").task.schedule == Cosine(steps=9)
    assert read(data, "task.schedule.type=linear").task.schedule == Linear(beta=0.25, steps=3)
    assert read(MINIMAL, "task.schedule.type=linear").task.schedule == Linear()
    assert read(MINIMAL, "extra_schedule.type=linear", "extra_schedule.beta=1").extra_schedule == Linear(beta=1)


def test_an_override_adds_a_member_to_a_dictionary_and_replaces_one_of_a_list():
    run = read(MINIMAL, "task.encoders.top.type=cosine", 'evaluate.0={"name": "mine"}', "task.down_dims.1=9")
    assert set(run.task.encoders) == {"left", "right", "top"}
    assert run.evaluate == [Evaluator(name="mine")]
    assert run.task.down_dims == (256, 9)


def test_overrides_apply_in_order_and_do_not_touch_the_defaults():
    assert read(MINIMAL, "use_ema=false", "use_ema=true").use_ema is True
    read(MINIMAL, "task.encoders.left.steps=1", "evaluate.0.name=x")
    assert read(MINIMAL).task.encoders["left"] == Linear() and read(MINIMAL).evaluate[0].name == "loss"


@pytest.mark.parametrize("type_at", [0, 1, 2])
def test_an_override_of_a_type_or_of_a_whole_undoes_no_override_of_its_parts(type_at):
    parts = ["task.schedule.steps=7", "task.schedule.beta=0.9"]
    for first in ("task.schedule.type=linear", 'task.schedule={"type": "linear"}'):
        given = [*parts[:type_at], first, *parts[type_at:]]
        assert read(MINIMAL, *given).task.schedule == Linear(steps=7, beta=0.9)


def test_an_override_can_give_what_the_file_lacks():
    assert read({}, "task.horizon=8").task.horizon == 8


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learning_rate", ("--set learning_rate", "KEY.KEY=VALUE", "train.lr.peak=3e-4")),
        ("task..horizon=1", ("--set task..horizon=1", "KEY.KEY=VALUE")),
        ("extends=base.json", ("--set extends=base.json", "file", '"extends": "base.json"')),
        ("=1", ("--set =1", "KEY.KEY=VALUE")),
        ("evaluate.3.name=x", ("--set evaluate.3.name=x", "'3'", "index", 1)),
        ("evaluate.²=x", ("--set evaluate.²=x", "'²'", "index", 1)),
        ("evaluate.x=1", ("--set evaluate.x=1", "'x'", "index", 1)),
        ("use_ema.value=1", ("--set use_ema.value=1", "use_ema", True, "'value'")),
        ("task.down_dims.0.x=1", ("--set task.down_dims.0.x=1", "task.down_dims.0", 256, "'x'")),
        ("learning_rate=NaN", ("--set learning_rate=NaN", "NaN", "finite", "null")),
        ('task={"horizon": 1', ('--set task={"horizon": 1', "line 1, column 14", "JSON", "',' delimiter")),
        ("task.down_dims=[1,2", ("--set task.down_dims=[1,2", "line 1, column 5", "JSON", "',' delimiter")),
        ("task={'horizon': 1}", ("--set task={'horizon': 1}", "line 1, column 2", "JSON", "property name")),
        ("use_ema=maybe", ("use_ema", "true", "false", "'maybe'")),
        ("task.horizn=1", ("task.horizn", "unknown key", "'horizon'")),
        ("tsk.horizon=1", ("tsk", "unknown key", "'task'")),
        ("task.schedule.type=sine", ("task.schedule.type", "'sine'", "'cosine', 'linear'")),
    ],
)
def test_an_override_that_cannot_be_applied_says_why(override, expected):
    assert told_each(problems(MINIMAL, override), expected)


def test_all_wrong_overrides_come_in_one_report():
    assert len(problems(MINIMAL, "x", "evaluate.7=1", "task..=1")) == 3


@pytest.mark.parametrize(
    "override",
    ["a." * 20_000 + "b=1", "k" * 1_000_000 + "=1", "x=" + "1" * 1_000_000],
    ids=["deep", "long key", "long value"],
)
def test_absurd_override_is_refused_with_a_bounded_report(override):
    with pytest.raises(ConfigError) as caught:
        Run.from_json("{}", [override])
    assert len(str(caught.value)) < 20_000


def test_a_document_is_flattened_to_dotted_keys_with_lists_whole_or_numbered():
    document = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}, [3]], "f": []}
    assert flat(document) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}, [3]], "f": []}
    assert flat(document, "top", numbered=True) == {"top.a.b": 1, "top.d.0.e": 2, "top.d.1.0": 3}
    assert flat(3, "lr") == {"lr": 3}
