"""The options of a command that choose recorded episodes: `--episodes`, `--without` and `--where`."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dp_prior.config import ConfigError
from dp_prior.data.formats.choice import ChoiceConfig


def choice_of(episodes: str | None, without: str | None, where: Iterable[str]) -> ChoiceConfig:
    """Read the options: lists with commas, and KEY=VALUE, where VALUE is JSON or otherwise a text.

    Raises:
        ConfigError: an option has another form, or an entry of a list is no choice.
    """
    conditions = {}
    for pair in where:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigError("--where", [f"is {pair!r}; expected KEY=VALUE, such as success=true"])
        try:
            conditions[key] = json.loads(value)
        except ValueError:
            conditions[key] = value
    settings = {"only": _entries(episodes), "leave_out": _entries(without) or [], "where": conditions}
    return ChoiceConfig.from_json(json.dumps(settings), source="--episodes, --without, --where")


def _entries(text: str | None) -> list[int | str] | None:
    """Split a list with commas; decimal entries become integers, and None stays None."""
    if text is None:
        return None
    entries = [entry.strip() for entry in text.split(",")]
    return [int(entry) if entry.isdecimal() else entry for entry in entries]
