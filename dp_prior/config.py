"""Records: JSON in, frozen and fully checked objects out.

Every part of the package is described by a `Config`. Unknown keys and wrong types are refused, and all problems of a
file are reported together, each with its JSON path. A family of interchangeable parts is a union discriminated by `type`.
"""

import difflib
import hashlib
import json
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` holds one line per fault."""

    def __init__(self, source: str, problems: list[str]):
        self.source = source
        self.problems = problems
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        super().__init__("\n".join([f"{source}: {count}", *(f"  {problem}" for problem in problems)]))


class Config(BaseModel):
    """A frozen record that refuses unknown keys. Subclasses give the fields, their defaults and their meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def from_json_path(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a record from a JSON file, with dotted overrides such as `train.lr.peak=3e-4` applied first.

        Raises:
            ConfigError: the file is missing, is not plain JSON, or does not describe this record.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), [f"cannot be read: {error}"]) from None
        return cls.from_json(text, overrides, source=str(path))

    @classmethod
    def from_json(cls, text: str, overrides: Iterable[str] = (), source: str = "config") -> Self:
        """Read a record from JSON text; see `from_json_path`."""
        data = _parse_json(text, source)
        for override in overrides:
            _apply_override(cls, data, override)
        try:
            return cls.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            raise ConfigError(source, [_describe(cls, data, problem) for problem in error.errors()]) from None

    def to_json(self) -> str:
        """The resolved record, defaults included, as indented JSON."""
        return self.model_dump_json(indent=2) + "\n"

    def digest(self) -> str:
        """SHA-256 of the resolved record, independent of the order of keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def arguments(self) -> dict[str, Any]:
        """The fields by name without the discriminator `type`: keyword arguments for the class this record makes."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "type"}


def _parse_json(text: str, source: str) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        if repeated:
            raise ConfigError(source, [f"key {key!r} is written twice in one object; keep one" for key in repeated])
        return dict(pairs)

    def refuse_constant(name: str) -> float:
        raise ConfigError(source, [f"{name} is not a JSON number; write a finite number or null"])

    try:
        data = json.loads(text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(source, [f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"]) from None
    except RecursionError:
        raise ConfigError(source, ["is nested too deeply to be a configuration"]) from None
    if not isinstance(data, dict):
        raise ConfigError(source, [f"holds a {type(data).__name__}; expected an object {{...}}"])
    return data


def _apply_override(cls: type[Config], data: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value` in place. The value is JSON if it parses as JSON, else a string.

    Parts that the file leaves out start from their default; a changed `type` starts that part afresh.
    """
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}", ["expected KEY.KEY=VALUE, for example train.lr.peak=3e-4"])
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    annotation: Any = cls
    here: Any = data
    for depth, key in enumerate(keys[:-1]):
        record = _record_for(annotation, here)
        if isinstance(here, list):
            here = _item(here, key, override)
            annotation = _child(annotation, key)
            continue
        if here.get(key) is None:
            here[key] = _default_of(record, key)
        annotation = _child(record if record is not None else annotation, key)
        here = here[key]
        if not isinstance(here, (dict, list)):
            where = ".".join(keys[: depth + 1])
            raise ConfigError(f"--set {override}", [f"{where} is {here!r}, which has no key {keys[depth + 1]!r}"])
    if isinstance(here, list):
        _item(here, keys[-1], override)
        here[int(keys[-1])] = value
        return
    if keys[-1] == "type" and here.get("type") not in (None, value):
        here.clear()
    here[keys[-1]] = value


def _item(items: list[Any], key: str, override: str) -> Any:
    if not key.isdigit() or int(key) >= len(items):
        raise ConfigError(f"--set {override}", [f"{key!r} is no index into a list of {len(items)}"])
    return items[int(key)]


def _default_of(record: type[Config] | None, key: str) -> Any:
    if record is None or key not in record.model_fields:
        return {}
    default = record.model_fields[key].get_default(call_default_factory=True)
    return default.model_dump(mode="json") if isinstance(default, Config) else {}


def _records(annotation: Any) -> list[type[Config]]:
    """The record classes an annotation admits, through Annotated, unions and optionals."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return [record for part in get_args(annotation) for record in _records(part)]
    return []


def _record_for(annotation: Any, value: Any) -> type[Config] | None:
    """The record class that describes `value`, by its `type` where there are several."""
    records = _records(annotation)
    tag = value.get("type") if isinstance(value, dict) else None
    tagged = [r for r in records if "type" in r.model_fields and r.model_fields["type"].default == tag]
    return (tagged or (records if len(records) == 1 else [None]))[0]


def _child(annotation: Any, key: str | int) -> Any:
    """The annotation one level below, for a field name, a key or an index."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        field = annotation.model_fields.get(str(key))
        return field.annotation if field is not None else None
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, types.UnionType):
        return next((child for part in arguments if (child := _child(part, key)) is not None), None)
    if origin is dict:
        return arguments[1]
    if origin in (list, tuple):
        return arguments[0]
    return None


def _describe(cls: type[Config], data: Any, problem: Any) -> str:
    """One line for one pydantic error: JSON path, what is wrong, and the remedy."""
    annotation, value, path = cls, data, []
    for part in problem["loc"]:
        record = _record_for(annotation, value)
        if isinstance(value, dict) and part not in value and part == value.get("type"):
            annotation = record  # pydantic names the union member; the file does not
            continue
        path.append(str(part))
        annotation = _child(record if record is not None else annotation, part)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
    where = ".".join(path) or "the file"
    kind, found = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"{where}: unknown key.{_nearest(cls, data, path)}"
    if kind == "missing":
        return f"{where}: missing; it has no default"
    if kind == "union_tag_not_found":
        return f"{where}: missing key 'type'; expected one of {_tags(annotation)}"
    if kind == "union_tag_invalid":
        tag = found.get("type") if isinstance(found, dict) else found
        return f"{where}.type: {tag!r} is not known; expected one of {_tags(annotation)}"
    if kind == "value_error":
        message = str(problem["ctx"]["error"])
        return f"{where}: {message}" if path else message
    return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}; found {found!r}"


def _tags(annotation: Any) -> str:
    return ", ".join(repr(record.model_fields["type"].default) for record in _records(annotation))


def _nearest(cls: type[Config], data: Any, path: list[str]) -> str:
    """A hint naming the closest known key beside an unknown one."""
    annotation, value = cls, data
    for part in path[:-1]:
        record = _record_for(annotation, value)
        annotation = _child(record if record is not None else annotation, part)
        value = value[int(part)] if isinstance(value, list) else value[part]
    record = _record_for(annotation, value)
    known = list(record.model_fields) if record is not None else []
    close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else f" Known keys: {', '.join(known)}"
