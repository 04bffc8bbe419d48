"""Dotted keys: overrides of a configuration from the command line, such as `train.lr.peak=3e-4`, and flat settings."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from dp_prior.config.annotations import Record, child, record_for
from dp_prior.config.errors import ConfigError, key_text, short
from dp_prior.config.read import EXTENDS, parse_json

_WORDS = {"True": True, "False": False, "None": None}


def rank_of_override(override: str) -> float:
    """Sort key: an object before its fields and `type` before its siblings, so that no override undoes another."""
    keys = override.partition("=")[0].split(".")
    return len(keys) - 0.5 * (keys[-1] == "type")


def apply_override(cls: type[Record], data: dict[str, Any], override: str) -> tuple[str, ...]:
    """Set `a.b.c=value` in place; returns the path of the replaced value.

    Objects that the file omits start from their defaults; changing a `type` resets the object to the new defaults.
    """
    source = f"--set {override if len(override) <= 200 else short(override)}"
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(source, ["expected KEY.KEY=VALUE, for example train.lr.peak=3e-4"])
    if keys[0] == EXTENDS:
        raise ConfigError(source, ['only a file can extend another, by "extends": "base.json"; --set comes last'])
    annotation: Any = cls
    container: Any = data
    for depth, key in enumerate(keys):
        if not isinstance(container, (dict, list)):
            where = ".".join(map(key_text, keys[:depth]))
            raise ConfigError(source, [f"{where} is {short(container)}, which has no key {short(key)}"])
        record = record_for(annotation, container)
        annotation = child(record if record is not None else annotation, key)
        place: Any = key
        if isinstance(container, list):
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(container)):
                raise ConfigError(source, [f"{short(key)} is no index into a list of {len(container)}"])
            place = int(key)
        elif depth < len(keys) - 1 and container.get(key) is None:
            container[key] = _default_of(record, key)
        if depth < len(keys) - 1:
            container = container[place]
    value = _typed(text, annotation, source)
    is_other = place == "type" and container.get("type") not in (None, value)
    if is_other:
        container.clear()
    container[place] = value
    return tuple(keys[:-1] if is_other else keys)


def _typed(text: str, annotation: Any, source: str) -> Any:
    """The value of an override: parsed as JSON, or the text itself where only text is valid, or the number or the word
    that it is in Python where nothing else is valid. `null` is always null.

    Raises:
        ConfigError: the text begins like an object or a list, and is neither JSON nor valid as a text.
    """
    try:
        value = parse_json(text, source)
    except ConfigError as error:
        if "not JSON: " not in str(error):
            raise
        if text[:1] in ("{", "[") and not _is_valid(text, annotation):
            example = "--set 'train.lr={\"peak\": 3e-4}'"
            raise ConfigError(source, [f"{error.problems[0]}; write it like {example}"]) from None
        value = text
    if annotation is None or value is None:
        return value
    return next((item for item in (value, text, *_in_python(text)) if _is_valid(item, annotation)), value)


def _in_python(text: str) -> list[Any]:
    """The values of a text that is True, False, None, or a finite number such as .001, 1_000 or, for counts, 1e6."""
    if text in _WORDS:
        return [_WORDS[text]]
    try:
        number = float(text)
    except ValueError:
        return []
    return [int(number), number] if number.is_integer() else [number] * math.isfinite(number)


def _is_valid(value: Any, annotation: Any) -> bool:
    """Whether a field with this annotation accepts the value; an unknown field (None) accepts every value."""
    if annotation is None:
        return True
    try:
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


def _default_of(record: type[Record] | None, key: str) -> Any:
    """The default of a field as mutable JSON; {} without a default or if the default is null."""
    if record is None or key not in record.model_fields or record.model_fields[key].is_required():
        return {}
    default = to_jsonable_python(record.model_fields[key].get_default(call_default_factory=True))
    return {} if default is None else default


def flat(document: Any, prefix: str = "", numbered: bool = False) -> dict[str, Any]:
    """Flatten nested JSON to values by dotted keys.

    Args:
        prefix: path of the document.
        numbered: flatten lists too, with the position of an element as its key, and leave out empty lists and objects;
            by default lists and empty objects are values.
    """
    children = dict(enumerate(document)) if numbered and isinstance(document, list) else document
    if not isinstance(children, dict) or not (children or numbered):
        return {prefix: document}
    settings: dict[str, Any] = {}
    for key, inner in children.items():
        settings |= flat(inner, f"{prefix}.{key}" if prefix else str(key), numbered)
    return settings
