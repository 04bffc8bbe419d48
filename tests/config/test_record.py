"""A configuration is refused with every fault named, or it is exactly what the file says."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.config import MOST_PROBLEMS, ConfigError
from tests.cases import every
from tests.config.records import MINIMAL, Cosine, Evaluator, Run, Task, problems, read
from tests.messages import told


def test_a_minimal_file_gets_the_defaults_of_the_records():
    run = read(MINIMAL)
    assert run.task.schedule == Cosine(steps=100) and run.task.down_dims == (256, 512)
    assert run.evaluate == [Evaluator()]


@pytest.mark.promise("I4")
def test_a_record_written_out_reads_back_equal():
    run = read(MINIMAL, "path=a/b", "extra_schedule.type=linear", "task.seed_or_name=seven", "learning_rate=1e-300")
    assert Run.from_json(run.to_json()) == run
    assert Run.from_json(run.to_json()).digest() == run.digest()
    assert run.to_document() == json.loads(run.to_json())
    assert run.to_document()["extra_schedule"] == {"type": "linear", "steps": 50, "beta": 0.5}


def test_the_digest_ignores_order_and_spelled_out_defaults_but_no_value():
    data = {"task": {"horizon": 16, "encoders": {"a": {"type": "linear"}, "b": {"type": "cosine"}}}, "use_ema": True}
    shuffled = {
        "use_ema": True,
        "task": {"encoders": {"b": {"type": "cosine"}, "a": {"type": "linear"}}, "horizon": 16},
    }
    assert read(data).digest() == read(shuffled).digest() == read({**shuffled, "learning_rate": 1e-4}).digest()
    digests = {read(data, change).digest() for change in ("use_ema=false", "task.horizon=17", "task.schedule.steps=1")}
    assert len(digests | {read(data).digest()}) == 4


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
    "unknown keys": lambda: json.dumps({f"k{i}": 0 for i in range(20_000)}),
    "unknown keys inside": lambda: json.dumps({"data": "x", "task": {f"k{i}": 0 for i in range(20_000)}}),
    "a million keys": lambda: json.dumps({f"k{i:07}": 0 for i in range(1_000_000)}),
    "a long key": lambda: json.dumps({"k" * 3_000_000: 0}),
    "long keys": lambda: json.dumps({"task": {f"{i}{'k' * 10_000}": 0 for i in range(300)}}),
    "a long value": lambda: json.dumps({"task": {"type": "k" * 3_000_000}}),
    "keys written twice": lambda: "{" + ",".join(f'"k{i % 10_000}":0' for i in range(20_000)) + "}",
    "digits": lambda: '{"seed":' + "1" * 1_000_000 + "}",
    "nested lists": lambda: "[" * 1_000_000,
    "nested objects": lambda: '{"a":' * 500_000 + "1" + "}" * 500_000,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "a million keys" else name for name in HUGE]
)
def test_absurd_text_is_refused_in_bounded_time_with_a_bounded_report(name):
    text = HUGE[name]()
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        Run.from_json(text)
    assert time.process_time() - began < 10  # a second; quadratic work takes minutes
    assert len(str(caught.value)) < 20_000 and len(caught.value.problems) <= MOST_PROBLEMS + 1


# In Python


def test_a_record_made_in_python_takes_what_json_takes():
    data = {**MINIMAL, "evaluate": [{"every": {"steps": 2}}], "extra_schedule": {"type": "linear"}, "path": "a/b"}
    before = json.dumps(data)
    assert Run(**data) == Run(**{**data, "task": Task(horizon=16), "path": Path("a/b")}) == read(data)
    assert Run(**{"$schema": "x.json", "$parts": {}, **data}) == read(data)
    assert json.dumps(data) == before


@every(
    data=[
        {"lerning_rate": 1, "task": {"horizon": 16, "horizn": 1}},
        {"task": {"schedule": {"type": "linear", "bta": 1}, "encoders": {"arm": {"type": "line"}}}},
        {"task": {"horizon": 16, "encoders": {"arm": {"steps": 3}}, "schedule": "cosine"}},
        {**MINIMAL, "evaluate": [{}, {"every": {"stesp": 3, "epochs": 1}}, {"every": {}}]},
        {"task": 3, "qqqq": 1},
    ]
)
def test_a_record_made_in_python_is_refused_in_the_words_for_json(data):
    with pytest.raises(ConfigError) as caught:
        Run(**data)
    assert caught.value.source == "Run" and caught.value.problems == problems(data)


def test_a_record_inside_json_is_checked_strictly():
    """pydantic would call a constructor of ours for it, which is not strict."""
    (problem,) = problems({"task": {"horizon": "16"}})
    assert told(problem, "task.horizon", "integer", "'16'")
    assert problems({**MINIMAL, "evaluate": [{"every": {"steps": "2"}}]})[0].startswith("evaluate.0.every.steps: input")
