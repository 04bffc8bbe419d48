"""A value that a setting does not list is refused with the listed values and the nearest of them, as JSON spells them.

A law over every setting of every record that a configuration can hold, and a brute force over misspelled values.
"""

import enum
import json
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest

from dp_prior.config import Config, ConfigError, child
from dp_prior.config.annotations import families_in, kinds_in
from dp_prior.config.schema import records
from dp_prior.run.config import TrainConfig
from tests.faults import assert_none
from tests.messages import naming


def listed(annotation: Any) -> list[Any] | None:
    """The values that an annotation lists; None if it admits others."""
    if annotation is bool:
        return [True, False]
    if annotation in (None, type(None)):
        return [None]
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return listed(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [*map(listed, get_args(annotation))]
        return None if None in parts else [value for part in parts for value in part]
    return None


def places(kind: type[Config]) -> Iterator[tuple[str, list[Any], Any]]:
    """Fields of a record that list values: the path of a value, the values, and a function that builds the field."""
    for name in kind.model_fields:
        annotation = child(kind, name)
        if name != "type" and (values := listed(annotation)):
            yield name, values, lambda value: value
        if families_in(annotation):
            yield f"{name}.type", kinds_in(annotation), lambda value: {"type": value}
        parts = get_args(annotation)
        if get_origin(annotation) is tuple and (values := listed(parts[0])):
            yield f"{name}.0", values, lambda value: [value]
        if get_origin(annotation) is dict and (values := listed(parts[1])):
            yield f"{name}.a", values, lambda value: {"a": value}
        if get_origin(annotation) is tuple and families_in(parts[0]):
            yield f"{name}.0.type", kinds_in(parts[0]), lambda value: [{"type": value}]
        if get_origin(annotation) is dict and families_in(parts[1]):
            yield f"{name}.a.type", kinds_in(parts[1]), lambda value: {"a": {"type": value}}


def spelled(value: Any) -> str:
    return json.dumps(value).strip('"')


def distance(first: str, second: str) -> int:
    """Letters to be inserted, deleted or replaced."""
    row = [*range(len(second) + 1)]
    for i, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row[-1]


def problem_of(kind: type[Config], path: str, value: Any) -> str | None:
    """The line about a field; None if the record accepts its value."""
    document = {path.partition(".")[0]: value}
    if "type" in kind.model_fields and (tags := listed(child(kind, "type"))):
        document["type"] = tags[0]
    try:
        kind.from_json(json.dumps(document))
    except ConfigError as error:
        return next((line for line in error.problems if line.startswith(f"{path}: ")), None)
    return None


def faults(kind: type[Config]) -> Iterator[str]:
    for path, values, build in places(kind):
        names = [spelled(value) for value in values]
        for name in names:
            for place in range(len(name)) if len(name) > 2 else ():
                wrong = f"{name[:place]}~{name[place + 1 :]}"
                line = problem_of(kind, path, build(wrong))
                where = f"{kind.__name__}.{path} = {wrong!r}: {line}"
                if line is None:
                    yield f"{where}: not refused"
                    continue
                hint = re.search(r'Did you mean "?(.+?)"?\?', line)
                nearest = min(distance(wrong, other) for other in names)
                if hint is None or distance(wrong, hint[1]) != nearest:
                    yield f"{where}: not the nearest"
                if not all(json.dumps(value) in line for value in values) or json.dumps(wrong) not in line:
                    yield f"{where}: not all values"
        for value in (None, True, False, [None, True], {"a": False}, 7.5):
            line = problem_of(kind, path, build(value))
            if line is not None and re.search(r"\b(True|False|None)\b", line):
                yield f"{kind.__name__}.{path} = {value!r}: {line}: not as JSON"


KINDS = [kind for kind in records(TrainConfig) if any(places(kind))]


def test_every_setting_that_lists_values_names_the_nearest():
    assert len(KINDS) > 60
    assert_none(fault for kind in KINDS for fault in faults(kind))


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("train.shard=modle", '"model"'),
        ("train.shard=flase", "false"),
        ("train.shard=MODEL", '"model"'),
        ("train.requeue=ture", "true"),
        ("train.divergence=rollback", '"roll back"'),
        ('data.split={"parts": {"trian": [1]}}', '"train"'),
    ],
)
def test_overrides_are_refused_in_the_same_way(change, hint):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json("{}", [change])
    key = change.partition("=")[0]
    [line] = [line for line in caught.value.problems if line.startswith(key)]
    assert line.endswith(f"Did you mean {hint}?")


def test_a_value_that_resembles_none_gets_no_hint():
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_json('{"train": {"shard": "zzzz", "divergence": 5}}')
    assert not any("Did you mean" in line for line in caught.value.problems if line.startswith("train."))


def test_members_of_an_enum_are_listed_as_pydantic_does():
    class Colour(enum.Enum):
        RED = 1

    class Painted(Config):
        colour: Literal[Colour.RED]

    with pytest.raises(ConfigError, match=naming("colour", 3)):
        Painted.from_json('{"colour": 3}')
