"""The schema of a record says what the record takes, in the words below its fields."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from dp_prior.config import Config, ConfigError, family, member_of
from dp_prior.config.schema import json_schema, records
from tests.messages import naming


class Small(Config):
    """A part."""

    type: Literal["small"] = "small"

    width: int = 1
    """Number of columns."""


class Wide(Small):
    """A part that says more of a field, and has one more."""

    type: Literal["wide"] = "wide"

    height: int | None = None
    """Number of
    rows."""


class Whole(Config):
    """Holds parts in every way."""

    name: str
    """What it is called."""

    one: Small = Small()
    several: list[Annotated[Small | Wide, Field(discriminator="type")]] = []
    by_name: dict[str, Wide | None] = {}


def test_every_record_inside_is_found_once_through_unions_lists_and_dictionaries():
    assert records(Whole) == [Whole, Small, Wide]


def test_fields_are_described_by_the_text_below_them_also_where_they_are_inherited():
    found = json_schema(Whole)
    assert found["properties"]["name"]["description"] == "What it is called."
    for kind in ("Small", "Wide"):
        assert found["$defs"][kind]["properties"]["width"]["description"] == "Number of columns."
    assert found["$defs"]["Wide"]["properties"]["height"]["description"] == "Number of\nrows."
    assert "height" not in found["$defs"]["Small"]["properties"]


def test_a_part_of_another_package_is_in_the_schema_once_it_has_joined():
    parts = family("parts", Small, needs=())
    member_of(parts)(Wide)

    class Holder(Config):
        part: parts

    assert set(json_schema(Holder)["$defs"]) == {"Small", "Wide"}


def test_keys_are_those_that_a_file_may_have_and_a_file_that_extends_may_omit_the_required_ones():
    found = json_schema(Whole)
    assert set(found["properties"]) == {"$schema", "extends", *Whole.model_fields}
    assert found["additionalProperties"] is False
    assert found["anyOf"] == [{"required": ["name"]}, {"required": ["extends"]}] and "required" not in found
    with pytest.raises(ConfigError, match=naming("config", "name", "missing")):
        Whole.from_json("{}")
