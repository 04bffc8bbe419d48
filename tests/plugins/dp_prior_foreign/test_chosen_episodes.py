"""Options that choose episodes are the choice of a configuration."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior_foreign.chosen_episodes import choice_of
from tests.messages import naming


def test_options_choose_as_a_configuration_does():
    chosen = ChoiceConfig(only=("0-3", 7, "train"), leave_out=(2,), where={"ok": True, "who": "me"})
    assert choice_of("0-3, 7,train", "2", ["ok=true", "who=me"]) == chosen
    assert choice_of(None, None, []) == ChoiceConfig()


@pytest.mark.parametrize("pair", ["ok", "=true", ""])
def test_a_condition_without_key_or_value_is_refused(pair):
    with pytest.raises(ConfigError, match=naming("--where", repr(pair), "KEY=VALUE")):
        choice_of(None, None, [pair])


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(ConfigError, match=naming("--episodes, --without, --where", "'9-3'", "'3-9'")):
        choice_of("1,9-3", None, [])
