"""The annotation found on the way to a value is the one that the value was checked by."""

import json
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

from dp_prior.config import Config, ConfigError, family
from dp_prior.config.annotations import Change, can_be_joined, change_of, child, record_for, records_in
from tests.config.records import MINIMAL, Cosine, Inside, Linear, Run, Schedule, read
from tests.messages import naming, told


def parts_of(annotation, value, path=()):
    """Path, annotation and value of every part of a JSON value."""
    yield path, annotation, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    record = record_for(annotation, value)
    for key, below in inside:
        yield from parts_of(child(record if record is not None else annotation, key), below, (*path, key))


def test_every_part_of_a_record_is_valid_by_the_annotation_found_for_it():
    run = read(MINIMAL, "extra_schedule.type=linear", "path=a/b")
    found = list(parts_of(Run, json.loads(run.model_dump_json())))
    assert ("task", "encoders", "left", "beta") in [path for path, _, _ in found]
    for path, annotation, value in found:
        assert annotation is not None, path
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize("record", [Cosine(), Linear()])
def test_a_record_is_told_by_its_type_even_inside_an_optional(record):
    for annotation in (Schedule, Schedule | None, Annotated[Schedule | None, "metadata"]):
        assert set(records_in(annotation)) == {Cosine, Linear}
        assert record_for(annotation, record.model_dump()) is type(record)
        assert record_for(annotation, {}) is None  # among several only the type tells


@pytest.mark.parametrize(
    ("annotation", "key"), [(Linear, "no field"), (int, "a"), (list[int], "a"), (tuple[int, str], "²"), (None, 0)]
)
def test_below_what_has_no_parts_there_is_nothing(annotation, key):
    assert child(annotation, key) is None


def test_an_index_past_a_fixed_tuple_finds_its_last_part_and_any_index_the_part_of_a_repeated_one():
    assert [child(tuple[int, str], key) for key in (0, "1", 7)] == [int, str, str]
    assert [child(tuple[int, ...], key) for key in (0, 7)] == [int, int]


def test_the_meaning_of_a_change_comes_with_the_field():
    class Resumed(Config):
        width: Annotated[int, Change("architecture")] = 1
        note: str = ""

    assert change_of(child(Resumed, "width")) == Change("architecture")
    assert change_of(child(Resumed, "note")) is None


def test_only_a_family_can_be_joined_wherever_it_stands():
    things: Any = family("things", Inside, needs=())
    for annotation in (things, things | None, dict[str, things], list[things | None]):
        assert can_be_joined(annotation) and not can_be_joined(Schedule)


def test_records_are_frozen():
    record = read(MINIMAL)
    with pytest.raises(ConfigError, match=naming("use_ema", "TrainConfig.from_json(config.to_json(), ")):
        record.use_ema = False
    assert record.use_ema and type(record).from_json(record.to_json(), ["use_ema=false"]).use_ema is False


def test_arguments_are_the_fields_without_the_discriminator():
    assert Linear().arguments() == {"steps": 50, "beta": 0.5}


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
    *faults, unknown = caught.value.problems
    assert faults == [
        "one: low 5 is above high 1",
        "one: step 1 is longer than the span",
        "other: step 9 is longer than the span",
    ]
    assert told(unknown, "unknown", "integer", "'x'")
    with pytest.raises(ConfigError) as caught:
        Span(low=5)
    heading, *problems = str(caught.value).split("\n  ")
    assert heading == "Span: 2 problems" and problems == caught.value.problems and len(problems) == 2
