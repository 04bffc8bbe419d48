"""Fields that name files and machines outside of the file that they stand in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dp_prior.config.annotations import Outside, Record
from dp_prior.config.errors import ConfigError, short

_IN_PATHS = "/\\.~:"
"""Each path or URL among arguments has one of these characters; names of robots and controllers have none."""


def outside_names(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a record, and of records inside, that name something outside, with their values.

    Defaults are left out, since no file chose them.

    Args:
        path: of the value in its file, such as `data`.
    """
    if isinstance(value, Path):
        yield path, value
    elif isinstance(value, Record):
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            if inner == field.get_default(call_default_factory=True):
                continue
            if any(isinstance(mark, Outside) for mark in field.metadata):
                if isinstance(inner, str) or any(set(text) & {*_IN_PATHS} for text in _texts(inner)):
                    yield f"{path}.{name}", inner
            else:
                yield from outside_names(inner, f"{path}.{name}")
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from outside_names(inner, f"{path}.{key}")


def _texts(arguments: Any) -> Iterator[str]:
    """The texts among arguments, also in maps and lists."""
    if isinstance(arguments, str):
        yield arguments
    elif isinstance(arguments, (dict, list, tuple)):
        for inner in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _texts(inner)


def check_named(source: str, parts: dict[str, Any], overrides: Iterable[str] = (), remedy: str = "") -> None:
    """Refuse another person's configuration that names files or machines, unless the user names these as well.

    Args:
        source: of the configuration, for the error.
        parts: of the configuration, by their paths in its file.
        overrides: of the user, KEY=VALUE.
        remedy: what else to do, as a sentence; empty where an override is enough.

    Raises:
        ConfigError: lists them, each with the override that repeats it.
    """
    by_user = [override.partition("=")[0].strip() for override in overrides]
    problems = []
    for start, part in parts.items():
        for path, value in outside_names(part, start):
            if not any(f"{path}.".startswith(f"{name}.") for name in by_user):
                problems.append(f"{path} is {short(str(value))}")
    if problems:
        rule = "a downloaded configuration names no file and no machine by itself"
        raise ConfigError(source, [f"{problem}; {rule}. {remedy}" for problem in problems])
