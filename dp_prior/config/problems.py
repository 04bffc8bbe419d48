"""Translates errors of pydantic into lines for the author of the file: JSON path, finding, remedy."""

from __future__ import annotations

import difflib
from typing import Any

from dp_prior.config.annotations import can_be_joined, child, members, record_for, records_in
from dp_prior.config.errors import key_text, short
from dp_prior.config.fields import Record
from dp_prior.config.origins import unknown_type


def describe(cls: type[Record], data: Any, problem: Any, origins: dict[str, str]) -> tuple[list[str | int], list[str]]:
    """The path of a pydantic error, and the message, usually one line: JSON path, problem and remedy.

    Args:
        origins: origin of each type of another package, see `ORIGINS`.
    """
    keys, annotation, record = _place(cls, data, problem)
    path = [key_text(part) for part in keys]
    at = [*keys, "type"] if problem["type"] == "union_tag_invalid" else keys
    return at, _lines(problem, path, annotation, record, origins)


def _place(cls: type[Record], data: Any, problem: Any) -> tuple[list[str | int], Any, type[Record] | None]:
    """Where a pydantic error lies: path, annotation there, and enclosing record."""
    kind, location = problem["type"], problem["loc"]
    annotation, value, record, keys = cls, data, None, []
    for depth, part in enumerate(location):
        if isinstance(value, dict):
            if len(records_in(annotation)) > 1 and part == value.get("type"):
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
    problem: Any, path: list[str], annotation: Any, record: type[Record] | None, origins: dict[str, str]
) -> list[str]:
    kind, found = problem["type"], problem.get("input")
    where = ".".join(path) or "the file"
    if kind == "value_error":
        lines = str(problem["ctx"]["error"]).splitlines()
        return [f"{where}: {line}" if path else line for line in lines]
    if kind == "extra_forbidden":
        return [f"{where}: unknown key.{_nearest(record, path[-1])}"]
    if kind == "missing":
        return [f"{where}: missing; it has no default"]
    if kind == "union_tag_not_found":
        return [f"{where}: missing key 'type'; expected one of {_tags(annotation)}"]
    if kind == "union_tag_invalid":
        tag = found.get("type") if isinstance(found, dict) else found
        advice = f"{short(tag)} is not known; expected one of {_tags(annotation)}{_remark_on_import(tag, annotation)}"
        return [f"{where}.type: {unknown_type(tag, origins) or advice}"]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return [f"{where}: input should be an object; found {short(found)}"]
    return [f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}; found {short(found)}"]


def _tags(annotation: Any) -> str:
    return ", ".join(map(repr, members(annotation)))


def _remark_on_import(tag: Any, annotation: Any) -> str:
    """A hint about --import, for a type that resembles none of ours: perhaps the user's own, not imported."""
    is_typo = difflib.get_close_matches(str(tag), members(annotation), n=1)
    return "; a part of your own needs --import MODULE" if can_be_joined(annotation) and not is_typo else ""


def _nearest(record: type[Record] | None, key: str) -> str:
    """A hint for an unknown key: the equivalent of another library's key, the closest known key, or all known keys."""
    if record is not None and key in record.replaced:
        return f" {record.replaced[key]}"
    known = list(record.model_fields) if record is not None else []
    close = difflib.get_close_matches(key, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known keys: {', '.join(known)}"
