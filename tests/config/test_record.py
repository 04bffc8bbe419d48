"""A configuration is refused with every fault named, or it is exactly what the file says."""

import json
import re
import time
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError, create_model, model_validator

from dp_prior.config import MOST_PROBLEMS, Config, ConfigError, PartError, family, member_of, members


class Cosine(Config):
    type: Literal["cosine"] = "cosine"
    steps: int = Field(default=100, ge=1)
    """Timesteps."""


class Linear(Config):
    type: Literal["linear"] = "linear"
    steps: int = 50
    beta: float = 0.5


Schedule = Annotated[Cosine | Linear, Field(discriminator="type")]


class Every(Config):
    steps: int | None = None
    epochs: float | None = None

    @model_validator(mode="after")
    def _one(self) -> "Every":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps, epochs")
        return self


class Evaluator(Config):
    every: Every = Every(epochs=1)
    name: str = "loss"


class Task(Config):
    horizon: int
    down_dims: tuple[int, ...] = (256, 512)
    schedule: Schedule = Cosine()
    encoders: dict[str, Schedule] = {"left": Linear(), "right": Cosine()}
    seed_or_name: int | str = 0


class Run(Config):
    description: str = ""
    task: Task
    evaluate: list[Evaluator] = [Evaluator()]
    learning_rate: float = 1e-4
    use_ema: bool = True
    path: Path | None = None
    extra_schedule: Schedule | None = None


MINIMAL = {"task": {"horizon": 16}}


def read(data: Any, *overrides: str) -> Run:
    return Run.from_json(data if isinstance(data, str) else json.dumps(data), overrides)


def problems(data: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(data, *overrides)
    assert str(caught.value).splitlines()[1:] == [f"  {problem}" for problem in caught.value.problems]
    assert all(len(problem) < 400 for problem in caught.value.problems)
    return caught.value.problems


# Reading


def test_a_minimal_file_gets_the_defaults_of_the_records():
    run = read(MINIMAL)
    assert run.task.schedule == Cosine(steps=100) and run.task.down_dims == (256, 512)
    assert run.evaluate == [Evaluator()]


@pytest.mark.promise("I4")
def test_a_record_written_out_reads_back_equal():
    run = read(MINIMAL, "path=a/b", "extra_schedule.type=linear", "task.seed_or_name=seven", "learning_rate=1e-300")
    assert Run.from_json(run.to_json()) == run
    assert Run.from_json(run.to_json()).digest() == run.digest()
    assert json.loads(run.to_json())["extra_schedule"] == {"type": "linear", "steps": 50, "beta": 0.5}


def test_the_digest_ignores_order_and_spelled_out_defaults_but_no_value():
    data = {"task": {"horizon": 16, "encoders": {"a": {"type": "linear"}, "b": {"type": "cosine"}}}, "use_ema": True}
    shuffled = {
        "use_ema": True,
        "task": {"encoders": {"b": {"type": "cosine"}, "a": {"type": "linear"}}, "horizon": 16},
    }
    assert read(data).digest() == read(shuffled).digest() == read({**shuffled, "learning_rate": 1e-4}).digest()
    digests = {read(data, change).digest() for change in ("use_ema=false", "task.horizon=17", "task.schedule.steps=1")}
    assert len(digests | {read(data).digest()}) == 4


def test_a_file_with_a_byte_order_mark_and_a_schema_line_reads(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"$schema": "train_config.schema.json", **MINIMAL}), encoding="utf-8-sig")
    assert Run.from_json_path(path) == read(MINIMAL)
    assert Run.from_json_path(str(path), ["use_ema=false"]).use_ema is False


def test_records_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        read(MINIMAL).use_ema = False


def test_arguments_are_the_fields_without_the_discriminator():
    assert Linear().arguments() == {"steps": 50, "beta": 0.5}


# Refusing


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


def test_the_report_counts_the_problems_and_names_the_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"task": {}, "usema": 1}')
    with pytest.raises(ConfigError) as caught:
        Run.from_json_path(path)
    assert str(caught.value).startswith(f"{path}: 2 problems\n  task.horizon: missing")
    with pytest.raises(ConfigError, match="1 problem\n"):
        read({})


@pytest.mark.promise("I3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"task": {"horizon": 1}, "task": {"horizon": 2}}', "key 'task' is written twice in one object; keep one"),
        ('{"learning_rate": NaN}', "NaN is not a JSON number; write a finite number or null"),
        ('{"learning_rate": -Infinity}', "-Infinity is not a JSON number"),
        ('{"learning_rate": 1e999}', "'1e999' is too large for a number"),
        ('{"learning_rate": ' + "1" * 5000 + "}", "an integer has too many digits"),
        ("[1]", "holds a list; expected an object {...}"),
        ("", "line 1, column 1: not JSON: Expecting value"),
        ('{"task": }', "line 1, column 10: not JSON: Expecting value"),
        ("{} {}", "line 1, column 4: not JSON: Extra data"),
        ('{"a":' * 100_000, "is nested too deeply to be a configuration"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "is nested too deeply to be a configuration"),
        ('{"description": "\\ud800"}', "holds text that is not Unicode"),
    ],
)
def test_text_that_is_not_plain_json_is_refused(text, expected):
    assert problems(text)[0].startswith(expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, reason in [(tmp_path / "none.json", "No such file"), (tmp_path, "directory"), ("a\0b", "null")]:
        with pytest.raises(ConfigError, match=f"cannot be read: .*{reason}"):
            Run.from_json_path(path)
    (tmp_path / "latin.json").write_bytes(b'{"description": "\xe9"}')
    with pytest.raises(ConfigError, match="cannot be read: .*utf-8"):
        Run.from_json_path(tmp_path / "latin.json")


def test_a_long_wrong_value_is_shortened():
    assert len(problems({**MINIMAL, "use_ema": "x" * 10_000})[0]) < 200


# Overriding


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


@pytest.mark.parametrize("text", ["3", "true", '"null"', "1e5", "[1]", '"quoted"'])
def test_an_override_of_a_text_field_is_text_whatever_it_looks_like(text):
    expected = text.strip('"')
    assert read(MINIMAL, f"description={text}").description == expected
    assert read(MINIMAL, f"evaluate.0.name={text}").evaluate[0].name == expected


def test_an_override_with_null_is_not_the_text_null():
    assert problems(MINIMAL, "description=null") == ["description: input should be a valid string; found None"]


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
        ("learning_rate", "--set learning_rate: expected KEY.KEY=VALUE, for example train.lr.peak=3e-4"),
        ("task..horizon=1", "--set task..horizon=1: expected KEY.KEY=VALUE"),
        ("extends=base.json", '--set extends=base.json: only a file can extend another, by "extends": "base.json"'),
        ("=1", "--set =1: expected KEY.KEY=VALUE"),
        ("evaluate.3.name=x", "--set evaluate.3.name=x: '3' is no index into a list of 1"),
        ("evaluate.²=x", "--set evaluate.²=x: '²' is no index into a list of 1"),
        ("evaluate.x=1", "--set evaluate.x=1: 'x' is no index into a list of 1"),
        ("use_ema.value=1", "--set use_ema.value=1: use_ema is True, which has no key 'value'"),
        ("task.down_dims.0.x=1", "--set task.down_dims.0.x=1: task.down_dims.0 is 256, which has no key 'x'"),
        ("learning_rate=NaN", "--set learning_rate=NaN: NaN is not a JSON number; write a finite number or null"),
        ('task={"horizon": 1', "--set task={\"horizon\": 1: line 1, column 14: not JSON: Expecting ',' delimiter"),
        ("task.down_dims=[1,2", "--set task.down_dims=[1,2: line 1, column 5: not JSON: Expecting ',' delimiter"),
        ("task={'horizon': 1}", "--set task={'horizon': 1}: line 1, column 2: not JSON: Expecting property name"),
        ("use_ema=maybe", "use_ema: input should be a valid boolean; found 'maybe'"),
        ("task.horizn=1", "task.horizn: unknown key. Did you mean 'horizon'?"),
        ("tsk.horizon=1", "tsk: unknown key. Did you mean 'task'?"),
        ("task.schedule.type=sine", "task.schedule.type: 'sine' is not known; expected one of 'cosine', 'linear'"),
    ],
)
def test_an_override_that_cannot_be_applied_says_why(override, expected):
    assert [line[: len(expected)] for line in problems(MINIMAL, override)] == [expected]


def test_all_wrong_overrides_come_in_one_report():
    assert len(problems(MINIMAL, "x", "evaluate.7=1", "task..=1")) == 3


# Whatever comes in, only ConfigError comes out

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
names = st.sampled_from(["task", "horizon", "schedule", "type", "encoders", "evaluate", "every", "steps", "0", ""])
names |= st.text(max_size=3)
documents = st.recursive(
    scalars | st.sampled_from(["linear", "cosine"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
structured = st.fixed_dictionaries(
    {"task": st.fixed_dictionaries({"horizon": st.just(4)}, optional={"schedule": documents, "encoders": documents})},
    optional={"evaluate": documents, "learning_rate": documents, "path": documents, "extra_schedule": documents},
)
paths = st.lists(names | st.just("left"), min_size=1, max_size=4).map(".".join)
override_texts = st.tuples(paths, st.text(max_size=6) | documents.map(json.dumps)).map("=".join) | st.text(max_size=8)


def only_config_errors(text: str, overrides: list[str]) -> None:
    try:
        run = Run.from_json(text, overrides)
    except ConfigError as error:
        assert error.problems
    else:
        assert Run.from_json(run.to_json()) == run


@pytest.mark.promise("I3")
@given(documents | structured, st.lists(override_texts, max_size=3))
@example({"task": {"horizon": 1, "encoders": {"linear": {"type": "linear", "linear": 1}}}}, [])
@example({"task": {"horizon": 1}, "evaluate": [3]}, ["evaluate.0.every.steps=1"])
def test_any_document_is_read_or_refused(document, overrides):
    only_config_errors(json.dumps(document), overrides)


@pytest.mark.promise("I3")
@given(st.text(max_size=30) | st.text(alphabet='{}[]":,0123456789.eE+-\\udNaIn tru', max_size=30))
def test_any_text_is_read_or_refused(text):
    only_config_errors(text, [])


HUGE = {
    "unknown keys": json.dumps({f"k{i}": 0 for i in range(20_000)}),
    "unknown keys inside": json.dumps({"data": "x", "task": {f"k{i}": 0 for i in range(20_000)}}),
    "a million keys": json.dumps({f"k{i:07}": 0 for i in range(1_000_000)}),
    "a long key": json.dumps({"k" * 3_000_000: 0}),
    "long keys": json.dumps({"task": {f"{i}{'k' * 10_000}": 0 for i in range(300)}}),
    "a long value": json.dumps({"task": {"type": "k" * 3_000_000}}),
    "keys written twice": "{" + ",".join(f'"k{i % 10_000}":0' for i in range(20_000)) + "}",
    "digits": '{"seed":' + "1" * 1_000_000 + "}",
    "nested lists": "[" * 1_000_000,
    "nested objects": '{"a":' * 500_000 + "1" + "}" * 500_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_absurd_text_is_refused_in_bounded_time_with_a_bounded_report(name):
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        Run.from_json(HUGE[name])
    assert time.process_time() - began < 10  # a second; quadratic work takes minutes
    assert len(str(caught.value)) < 20_000 and len(caught.value.problems) <= MOST_PROBLEMS + 1


@pytest.mark.parametrize(
    "override",
    ["a." * 20_000 + "b=1", "k" * 1_000_000 + "=1", "x=" + "1" * 1_000_000],
    ids=["deep", "long key", "long value"],
)
def test_absurd_override_is_refused_with_a_bounded_report(override):
    with pytest.raises(ConfigError) as caught:
        Run.from_json("{}", [override])
    assert len(str(caught.value)) < 20_000


def test_many_problems_are_counted_and_the_first_are_shown():
    with pytest.raises(ConfigError) as caught:
        Every.from_json(json.dumps({f"k{i:03}": 0 for i in range(200)}))
    problems = caught.value.problems
    assert len(problems) == MOST_PROBLEMS + 1 and problems[0].startswith("k000: unknown key")
    total = int(re.match(r"config: (\d+) problems", str(caught.value))[1])
    assert total >= 200 and problems[-1] == f"and {total - MOST_PROBLEMS} more"


class Span(Config):
    """A record with rules between its fields."""

    low: int = 0
    high: int = 1
    step: int = 1

    def faults(self):
        if self.low > self.high:
            yield f"low {self.low} is above high {self.high}"
        if self.step > self.high - self.low:
            yield f"step {self.step} is longer than the span"


class Spans(Config):
    """Two of them."""

    one: Span = Span()
    other: Span = Span()
    unknown: int = 0


def test_all_faults_between_fields_of_all_records_are_in_one_report():
    with pytest.raises(ConfigError) as caught:
        Spans.from_json('{"one": {"low": 5}, "other": {"step": 9}, "unknown": "x"}')
    assert caught.value.problems == [
        "one: low 5 is above high 1",
        "one: step 1 is longer than the span",
        "other: step 9 is longer than the span",
        "unknown: input should be a valid integer; found 'x'",
    ]
    with pytest.raises(ConfigError) as caught:
        Span(low=5)
    assert str(caught.value) == "Span: 2 problems\n  low 5 is above high 1\n  step 1 is longer than the span"


# In Python


def test_a_record_made_in_python_takes_what_json_takes():
    data = {**MINIMAL, "evaluate": [{"every": {"steps": 2}}], "extra_schedule": {"type": "linear"}, "path": "a/b"}
    before = json.dumps(data)
    assert Run(**data) == Run(**{**data, "task": Task(horizon=16), "path": Path("a/b")}) == read(data)
    assert Run(**{"$schema": "x.json", "$parts": {}, **data}) == read(data)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    "data",
    [
        {"lerning_rate": 1, "task": {"horizon": 16, "horizn": 1}},
        {"task": {"schedule": {"type": "linear", "bta": 1}, "encoders": {"arm": {"type": "line"}}}},
        {"task": {"horizon": 16, "encoders": {"arm": {"steps": 3}}, "schedule": "cosine"}},
        {**MINIMAL, "evaluate": [{}, {"every": {"stesp": 3, "epochs": 1}}, {"every": {}}]},
        {"task": 3, "qqqq": 1},
    ],
)
def test_a_record_made_in_python_is_refused_in_the_words_for_json(data):
    with pytest.raises(ConfigError) as caught:
        Run(**data)
    assert caught.value.source == "Run" and caught.value.problems == problems(data)


def test_a_record_inside_json_is_checked_strictly():
    """pydantic would call a constructor of ours for it, which is not strict."""
    assert problems({"task": {"horizon": "16"}}) == ["task.horizon: input should be a valid integer; found '16'"]
    assert problems({**MINIMAL, "evaluate": [{"every": {"steps": "2"}}]})[0].startswith("evaluate.0.every.steps: input")


class Outside(Config):
    """A record of an installed package."""

    type: Literal["outside"] = "outside"
    width: int = 3


class SameType(Config):
    """A record whose type is taken."""

    type: Literal["inside"] = "inside"


class Inside(Config):
    """A record of our own."""

    type: Literal["inside"] = "inside"


class Untyped(Config):
    """A record that no file could name."""


def installed(monkeypatch, *names):
    """Pretend that a package names these objects of this file as members of the family `things`."""
    entries = [EntryPoint(name.lower(), f"{__name__}:{name}", "dp_prior.things") for name in names]
    monkeypatch.setattr("dp_prior.config.families._entry_points", lambda: EntryPoints(entries))


def test_family_is_told_apart_by_type_and_takes_installed_members(monkeypatch):
    installed(monkeypatch, "Outside")
    things = family("things", Inside, needs=())
    assert members(things) == {"inside": Inside, "outside": Outside}
    holder = create_model("Holder", __base__=Config, thing=(things, ...))
    assert holder.from_json('{"thing": {"type": "outside"}}', ["thing.width=4"]).thing == Outside(width=4)
    with pytest.raises(ConfigError, match="thing.type: 'other' is not known; expected one of 'inside', 'outside'"):
        holder.from_json('{"thing": {"type": "other"}}')
    with pytest.raises(ConfigError, match="'outside'; a part of your own needs --import MODULE$"):
        holder.from_json('{"thing": {"type": "gru"}}')
    with pytest.raises(ConfigError, match="'inside', 'outside'$"):  # a misspelt name of a known one
        holder.from_json('{"thing": {"type": "insied"}}')
    assert members(family("others", Inside, Outside)) == members(things)


def test_record_joins_a_family_by_its_decorator_before_a_configuration_is_read():
    things = family("things", Inside, needs=("width",))
    member_of(things)(Outside)
    member_of(things)(Outside)  # a module may be imported under two names
    assert members(things) == {"inside": Inside, "outside": Outside}
    member_of(things)(Outside)
    with pytest.raises(PartError, match="Late joins the family 'things' after a configuration was read; import its"):
        member_of(things)(type("Late", (Outside,), {}))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (SameType, "tests.*SameType has the type 'inside', which Inside has already; rename it"),
        (Untyped, r"tests.*Untyped is <class .*expected a Config with a field `type: Literal"),
        (installed, "expected a Config with a field"),
        (Inside, "it has no create, no reads"),
    ],
)
def test_record_that_does_not_fit_a_family_is_refused_at_its_decorator(record, message):
    ours = () if record is Inside else (Inside,)
    with pytest.raises(PartError, match=message) as caught:
        member_of(family("things", *ours, needs=("create", "reads")))(record)
    assert len(str(caught.value).splitlines()) == 1


def test_only_a_family_has_members():
    with pytest.raises(PartError, match="is no family; expected one of those in docs/extending.md"):
        member_of(Schedule)
    with pytest.raises(PartError, match="'encoders' is no family"):
        member_of("encoders")


def test_stored_record_names_the_package_of_parts_that_are_not_ours_and_reading_it_says_so():
    holder = create_model("Holder", __base__=Config, thing=(family("things", Inside, Outside), ...))
    text = holder(thing=Outside()).to_json()
    assert json.loads(text)["$parts"] == {"outside": f"tests without __version__, module {__name__}"}
    assert holder.from_json(text).thing == Outside()
    poorer = create_model("Holder", __base__=Config, thing=(family("things", Inside), ...))
    with pytest.raises(ConfigError, match="thing.type: 'outside' is of another package: 'tests .*--import MODULE"):
        poorer.from_json(text)
    with pytest.raises(ConfigError, match=r"\$parts: expected an object; found 3"):
        holder.from_json('{"$parts": 3, "thing": {"type": "outside"}}')


def test_installed_member_that_ends_the_process_is_refused(monkeypatch):
    def leave(entry):
        raise SystemExit(3)

    installed(monkeypatch, "Outside")
    monkeypatch.setattr(EntryPoint, "load", leave)
    things = family("things", Inside, needs=())
    with pytest.raises(ImportError, match=r"entry point 'outside' .* cannot be imported: SystemExit\(3\)"):
        members(things)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Missing", ImportError, "entry point 'missing' of group 'dp_prior.things' .* cannot be imported: .*Missing"),
        ("Untyped", TypeError, "entry point 'untyped' .*expected a Config with a field `type: Literal"),
        ("installed", TypeError, "entry point 'installed' .*expected a Config"),
        ("SameType", TypeError, "has the type 'inside', which Inside has already; rename it"),
    ],
)
def test_installed_member_that_does_not_fit_is_refused(monkeypatch, name, error, message):
    installed(monkeypatch, name)
    things = family("things", Inside, needs=())
    with pytest.raises(error, match=message):
        members(things)
    with pytest.raises(error, match=message):
        TypeAdapter(things).validate_python({"type": "inside"})
