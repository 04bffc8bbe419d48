"""Settings of other libraries, translated in a test."""

import functools
import json
from typing import Any

from dp_prior.run.config import TrainConfig
from dp_prior_foreign.translation.foreign_settings import flat
from dp_prior_foreign.translation.library import Library
from dp_prior_foreign.translation.translate import Translation, translate


@functools.lru_cache(512)
def valid(text: str) -> TrainConfig:
    """The configuration, which is valid; many settings are translated alike."""
    return TrainConfig.from_json(text)


@functools.lru_cache(512)
def defaults_filled(text: str) -> dict[str, Any]:
    """The values of a configuration with the defaults here, by path."""
    return dict(flat(json.loads(valid(text).model_dump_json()), "a translation"))


def translated(library: Library, settings: dict) -> Translation:
    """The translation of nested settings, whose configuration is valid."""
    found = translate(library, flat(settings, "a test", library.lists))
    valid(json.dumps(found.config))
    return found


def values(library: Library, settings: dict) -> dict:
    """The translated configuration, flat: values by path."""
    return dict(flat(translated(library, settings).config, "a test"))


def differences(library: Library, settings: dict, others: dict) -> dict:
    """The values that other settings change, by path; None for those that go."""
    before, after = values(library, settings), values(library, others)
    return {path: after.get(path) for path in {**before, **after} if before.get(path) != after.get(path)}


def merged(settings: dict, changes: dict) -> dict:
    """Nested settings with some changed."""
    both = dict(settings)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if inner else value
    return both


def reasons(library: Library, settings: dict) -> dict[str, str]:
    """Why settings were dropped, by their path there."""
    return {line.path: line.text for line in translated(library, settings).lines if line.outcome == "dropped"}


def nested(path: str, value: object) -> dict:
    """Nested settings of which one, at a dotted path, has a value."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value
