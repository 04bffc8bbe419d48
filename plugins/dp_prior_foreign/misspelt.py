"""Refuses misspelt keys of a configuration, and values that are no numbers, by the stored JSON Schema, before torch and
the records are imported."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dp_prior
from dp_prior.config.problems import is_misspelled, json_text
from dp_prior.config.read import Layers
from dp_prior.files.entry_points import entry_points, families
from dp_prior.run.configurations import stored_schema

Unknown = tuple[tuple[str, ...], list[str]]
"""The path of a key that no record there has, and the names of the fields that records have there; none for the path of
a value that is no number where only a number fits."""


def misspelt(
    layers: Layers,
    unknown: Sequence[Unknown],
    documents: Sequence[Any],
    hint: Callable[[Sequence[str]], str | None],
) -> list[str] | None:
    """A line for each unknown key, or for the one value that is no number, as the records would write; None unless all
    keys are misspelt fields for certain.

    The records judge if a key belongs to another library or resembles no field, if another package has parts, if the
    source knows a field of this name, which a schema that was not written anew may lack, and if a value does not fit
    the schema either: all faults are told together.

    Args:
        layers: the files that were merged.
        documents: what they hold, and each override as a document of its own.
        hint: says where a key of another library belongs.
    """
    lines, wrong = [], {path for path, names in unknown if not names}
    if wrong and len(unknown) > 1:
        return None
    for path, names in unknown:
        if not names:
            lines.append(_no_number(path, documents, layers))
            continue
        close = [name for name in names if is_misspelled(path[-1], name)]
        if not close or hint(path) is not None:
            return None
        lines.append(f"{'.'.join(path)}: unknown key. Did you mean {close[0]!r}?{layers.remark(path)}")
    modules = {entry.module for entry in itertools.chain.from_iterable(map(entry_points, families()))}
    is_ours = all(module.startswith("dp_prior") for module in modules)
    schema = stored_schema()
    is_alone = is_ours and all(_fits(_without(document, wrong), schema, schema) for document in documents)
    misspelt_names = {path[-1] for path, names in unknown if names}
    is_known = bool(misspelt_names) and _fields(misspelt_names)
    return list(dict.fromkeys(lines)) if is_alone and not is_known else None


def _no_number(path: tuple[str, ...], documents: Sequence[Any], layers: Layers) -> str:
    """The line of the records for a value that is no number; the last document that has the path decides."""
    schema, rooms = stored_schema(), [stored_schema()]
    values = itertools.chain.from_iterable(_values(document, path) for document in reversed(documents))
    value = next(values)
    for key in path:
        rooms = [*itertools.chain.from_iterable(_inside(room, key, schema) for room in rooms)]
    choices = itertools.chain.from_iterable(_choices(room, schema) for room in rooms)
    kinds = {choice["type"] for choice in choices if "type" in choice}
    noun = "integer" if kinds == {"integer"} else "number"
    return f"{'.'.join(path)}: input should be a valid {noun}; found {json_text(value)}{layers.remark(path)}"


def _values(document: Any, path: Sequence[str]) -> Iterator[Any]:
    """The value at a path, if a document has one; a part of a list is named by its number."""
    for key in path:
        if isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return
    yield document


def _without(document: Any, paths: set[tuple[str, ...]], at: tuple[str, ...] = ()) -> Any:
    """A document without the values at some paths."""
    if isinstance(document, dict):
        inside = {key: (*at, str(key)) for key in document}
        return {key: _without(document[key], paths, path) for key, path in inside.items() if path not in paths}
    if isinstance(document, list):
        return [_without(inner, paths, (*at, str(number))) for number, inner in enumerate(document)]
    return document


def _choices(room: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all that it names for the same value."""
    yield room
    references = [schema["$defs"][room["$ref"].rpartition("/")[2]]] if "$ref" in room else []
    for choice in (*references, *room.get("anyOf", ()), *room.get("oneOf", ())):
        yield from _choices(choice, schema)


def _inside(room: dict[str, Any], key: str, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that a value at a key of an object, or of a list, may fulfil."""
    for choice in _choices(room, schema):
        fields = choice.get("properties", {})
        rooms = [fields[key]] if key in fields else [choice.get(name) for name in ("items", "additionalProperties")]
        yield from (inner for inner in rooms if isinstance(inner, dict))


def _fits(value: Any, room: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a value has the type and the bounds that a JSON Schema states; unknown keys and missing ones fit.

    An object without `type` has that of the default. An object whose keys are numbers is a part of a list, as overrides
    name such parts.
    """
    if "$ref" in room:
        return _fits(value, schema["$defs"][room["$ref"].rpartition("/")[2]], schema)
    if isinstance(value, dict) and isinstance(room.get("default"), dict):
        value = {key: room["default"][key] for key in {"type"} & room["default"].keys()} | value
    if isinstance(value, dict) and value and all(key.isdecimal() for key in value):
        value = list(value.values())
    choices = room.get("anyOf") or room.get("oneOf")
    if choices and not any(_fits(value, choice, schema) for choice in choices):
        return False
    if value not in room.get("enum", [value]) or value != room.get("const", value):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_within = room.get("minimum", value) <= value <= room.get("maximum", value)
        is_inside = room.get("exclusiveMinimum", value - 1) < value < room.get("exclusiveMaximum", value + 1)
        return room.get("type") in (None, "number", *["integer"] * isinstance(value, int)) and is_within and is_inside
    if isinstance(value, dict):
        fields, others = room.get("properties", {}), room.get("additionalProperties")
        rooms = {key: fields.get(key, others) for key in value}
        inside = (_fits(value[key], inner, schema) for key, inner in rooms.items() if isinstance(inner, dict))
        return room.get("type") in (None, "object") and all(inside)
    if isinstance(value, list):
        items = room.get("items", {})
        return room.get("type") in (None, "array") and all(_fits(element, items, schema) for element in value)
    return room.get("type") in (None, {str: "string", bool: "boolean", type(None): "null"}[type(value)])


def _fields(keys: set[str]) -> bool:
    """Whether the source of the package or of its plug-ins declares a field under any of these keys."""
    declared = re.compile(rf"^    (?:{'|'.join(map(re.escape, keys))}): ", re.MULTILINE)
    packages = [Path(dp_prior.__file__).parent, *Path(__file__).parents[1].glob("dp_prior_*")]
    files = (file for package in packages for file in package.rglob("*.py"))
    return any(declared.search(file.read_text(encoding="utf-8", errors="replace")) for file in files)
