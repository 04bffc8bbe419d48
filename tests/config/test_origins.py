"""A stored record names the packages that its parts came from."""

import json

import pytest
from pydantic import create_model

import dp_prior
from dp_prior.config import Config, ConfigError, family, own_version
from tests.config.records import Inside, Outside
from tests.messages import naming


def test_our_own_version_is_that_of_the_package():
    assert own_version() == dp_prior.__version__


def test_stored_record_names_the_package_of_parts_that_are_not_ours_and_reading_it_says_so():
    holder = create_model("Holder", __base__=Config, thing=(family("things", Inside, Outside), ...))
    text = holder(thing=Outside()).to_json()
    assert json.loads(text)["$parts"] == {"outside": f"tests without __version__, module {Outside.__module__}"}
    assert holder.from_json(text).thing == Outside()
    poorer = create_model("Holder", __base__=Config, thing=(family("things", Inside), ...))
    with pytest.raises(ConfigError, match=naming("thing.type", "'outside'", "tests.config.records", "--import MODULE")):
        poorer.from_json(text)
    with pytest.raises(ConfigError, match=naming("$parts", 3)):
        holder.from_json('{"$parts": 3, "thing": {"type": "outside"}}')
