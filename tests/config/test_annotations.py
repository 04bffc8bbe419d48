"""The annotation found on the way to a value is the one that the value was checked by."""

import json
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

from dp_prior.config import Config, family
from dp_prior.config.annotations import Change, can_be_joined, change_of, child, record_for, records_in
from tests.config.records import MINIMAL, Cosine, Inside, Linear, Run, Schedule, read


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
