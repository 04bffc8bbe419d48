"""Translates errors of pydantic into lines for the author of the file: JSON path, finding, remedy."""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter

from dp_prior.config.annotations import Record, can_be_joined, child, families_in, kinds_in, record_for, records_in
from dp_prior.config.errors import key_text, short
from dp_prior.config.origins import unknown_type
from dp_prior.files.entry_points import missing_plugins
from dp_prior.files.json_text import readable_json


def describe(cls: type[Record], data: Any, problem: Any, origins: dict[str, str]) -> tuple[list[str | int], list[str]]:
    """The path of a pydantic error, and the message, usually one line: JSON path, problem and remedy.

    Args:
        origins: origin of each type of another package, see `ORIGINS`.
    """
    keys, annotation, record = _place(cls, data, problem)
    path = [key_text(part) for part in keys]
    at = [*keys, "type"] if problem["type"] == "union_tag_invalid" else keys
    return at, _lines(cls, problem, path, annotation, record, origins)


def _place(cls: type[Record], data: Any, problem: Any) -> tuple[list[str | int], Any, type[Record] | None]:
    """Where a pydantic error lies: path, annotation there, and enclosing record."""
    kind, location = problem["type"], problem["loc"]
    annotation, value, record, keys = cls, data, None, []
    for depth, part in enumerate(location):
        if isinstance(value, dict):
            if part == value.get("type") and (families_in(annotation) or len(records_in(annotation)) > 1):
                annotation = record_for(annotation, value)  # pydantic names the union member; the file does not
                continue
            if part not in value and not (kind == "missing" and depth == len(location) - 1):
                continue
        elif not (isinstance(value, list) and isinstance(part, int)):
            continue
        record = record_for(annotation, value)
        annotation = child(record if record is not None else annotation, part)
        keys.append(part)
        value = value.get(part) if isinstance(value, dict) else next(iter(value[part : part + 1]), None)
    return keys, annotation, record


def _lines(
    cls: type[Record],
    problem: Any,
    path: list[str],
    annotation: Any,
    record: type[Record] | None,
    origins: dict[str, str],
) -> list[str]:
    kind, value = problem["type"], problem.get("input")
    where, value_text = ".".join(path) or "the file", json_text(value)
    if kind == "value_error":
        lines = str(problem["ctx"]["error"]).splitlines()
        return [f"{where}: {line}" if path else line for line in lines]
    if kind == "extra_forbidden":
        return [f"{where}: unknown key. {_nearest(cls, record, path)}"]
    if kind == "missing":
        remedy = f"Another type clears the other fields of its object: add --set {where}=VALUE, or write it in the file"
        is_cleared = isinstance(value, dict) and [*value] == ["type"]
        return [f"{where}: missing; it has no default{f'. {remedy}' if is_cleared else ''}"]
    if kind == "union_tag_not_found":
        return [f"{where}: missing key 'type'; expected one of {_tags(annotation)}"]
    if kind == "union_tag_invalid":
        tag = value.get("type") if isinstance(value, dict) else value
        advice = f"{json_text(tag)} is not known; expected one of {_tags(annotation)}{_hint(tag, annotation)}"
        return [f"{where}.type: {unknown_type(tag, origins) or advice}"]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return [f"{where}: input should be an object; found {value_text}{_meant(annotation, where, value)}"]
    if kind in ("literal_error", "bool_type", "bool_parsing") and (values := _values(problem, annotation)):
        listed = " or ".join(map(readable_json, values))
        return [f"{where}: input should be {listed}; found {value_text}{_nearest_value(value, values)}"]
    return [f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}; found {value_text}"]


def _values(problem: Any, annotation: Any) -> list[Any]:
    """The values that a setting admits, of which pydantic lists literals as Python text, "'a', 'b' or False"; an empty
    list for members of an Enum."""
    first, _, last = problem.get("ctx", {}).get("expected", "True or False").rpartition(" or ")
    try:
        values = ast.literal_eval(f"[{first}, {last}]" if first else f"[{last}]")
    except SyntaxError:
        return []
    admitted = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return [*values, None] if type(None) in get_args(admitted) else values


def _nearest_value(value: Any, values: Sequence[Any]) -> str:
    """A hint at the listed value that resembles a value; empty if none does."""
    texts = {readable_json(listed).strip('"'): readable_json(listed) for listed in values}
    text = json_text(value).strip('"')
    close = [name for name in texts if is_misspelled(text, name)] or difflib.get_close_matches(text, texts, 1, 0.5)
    return f". Did you mean {texts[close[0]]}?" if close else ""


def _meant(annotation: Any, where: str, value: Any) -> str:
    """A hint for a value in place of an object: the object of this type, or its first field if that fits."""
    records = records_in(annotation)
    if isinstance(value, str):
        is_type = all("type" in record.model_fields for record in records) and value in kinds_in(annotation)
        return f'. Did you mean {{"type": "{value}"}}?' if is_type else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fields = [(name, field) for name, field in records[0].model_fields.items() if name != "type"] if records else []
    if is_number and fields:
        name, field = fields[0]
        with contextlib.suppress(ValueError):
            TypeAdapter(field.rebuild_annotation()).validate_python(value, strict=True)
            return f". Did you mean {where}.{name} = {json_text(value)}?"
    return ""


def _tags(annotation: Any) -> str:
    return ", ".join(map(readable_json, kinds_in(annotation)))


def _hint(tag: Any, annotation: Any) -> str:
    """A hint at the type that resembles an unknown one, or at --import: perhaps the user's own, not imported."""
    if remedy := missing_plugins():
        return f". {remedy}"
    kinds = kinds_in(annotation)
    is_own = can_be_joined(annotation) and not any(is_misspelled(str(tag), kind) for kind in kinds)
    own = "; a part of your own needs --import MODULE" if is_own else ""
    is_close = not own or difflib.get_close_matches(str(tag), kinds, n=1)
    return f"{own}{_nearest_value(tag, kinds) if is_close else ''}"


def json_text(value: Any) -> str:
    """Write a value as in the file, cut where it is long; a value that JSON lacks as Python does."""
    try:
        text = readable_json(value)
    except (TypeError, ValueError):
        return short(value)
    return text if len(text) <= 80 else f"{text[:60]} ... ({len(text)} characters)"


def _nearest(cls: type[Record], record: type[Record] | None, path: list[str]) -> str:
    """A hint for an unknown key: the record's own, another library's counterpart, a misspelled key, or all keys."""
    fields, key = list(record.model_fields) if record is not None else [], path[-1]
    hint = record.hint([key]) if record is not None and record is not cls else None
    required = [name for name in fields if record.model_fields[name].is_required() and name == key.split("_")[0]]
    hint = hint or (f"Did you mean {required[0]!r}?" if required else cls.hint(path))
    if hint:
        return hint
    close = [name for name in fields if is_misspelled(key, name)]
    return f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(fields)}"


def is_misspelled(key: str, name: str) -> bool:
    """Whether a key differs from a name in one letter, two neighbours exchanged, or capitals and hyphens alone.

    A key that merely resembles a name, such as `val_every` and `save_every`, means something else.
    """
    a, b = (text.replace("-", "").replace("_", "").lower() for text in (key, name))
    if a == b:
        return True
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    swapped = a[1:2] + a[:1] + a[2:]
    return len(key) > 2 and (a[1:] == b or a == b[1:] or a[1:] == b[1:] or swapped == b)
