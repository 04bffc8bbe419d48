"""Records: JSON in, frozen and fully checked objects out.

Every part of the package is described by a `Config`. Unknown keys and wrong types are refused, and all problems of a
file are reported together, each with its JSON path. A family of interchangeable parts is a union told apart by `type`.
"""

import difflib
import functools
import hashlib
import importlib.metadata
import json
import math
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError, model_validator
from pydantic_core import CoreSchema, to_jsonable_python

from dp_prior.layers import Layers

MOST_PROBLEMS = 50
"""A report shows this many problems and counts the others."""


EXTENDS = "extends"
"""Key of a configuration file: the file that it is laid over, relative to its own directory."""

MOST_CHARACTERS = 4_000_000
"""Maximum length of a configuration; checking one with that many unknown keys takes seconds."""

PARTS = "$parts"
"""Key of a written record: the package, version and module of each `type` in it that another package adds. Only error
messages and comparisons use it; nothing is imported because a file names it."""


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` holds one line per fault, the first `MOST_PROBLEMS` of them."""

    def __init__(self, source: str, problems: list[str], more: int = 0):
        """Args: more: number of faults beyond `problems`."""
        total = len(problems) + more
        self.source = source
        self.problems = problems[:MOST_PROBLEMS]
        if total > len(self.problems):
            self.problems.append(f"and {total - len(self.problems)} more")
        count = f"{total} problem" + ("s" if total != 1 else "")
        super().__init__("\n".join([f"{source}: {count}", *(f"  {problem}" for problem in self.problems)]))


class PartError(TypeError):
    """A record that cannot be a member of a family; the message is one line."""


class Config(BaseModel):
    """A frozen record that refuses unknown keys. Subclasses give the fields, their defaults and their meaning."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)

    replaced: ClassVar[Mapping[str, str]] = {}
    """Keys of other libraries that a file may hold by mistake, and what replaces them here."""

    @classmethod
    def from_json_path(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a record from a JSON file, with dotted overrides such as `train.lr.peak=3e-4` applied first.

        `"extends": "base.json"`, relative to the file, lays it over another one, as `Layers` does.

        Raises:
            ConfigError: a file is missing, is not plain JSON, or they do not describe this record.
        """
        (base, data), *others = reversed(_files(Path(path)))
        layers = Layers(data, str(base))
        for file, given in others:
            cls.complete(layers.data)
            layers.lay(given, str(file))
        return cls._of(layers, overrides)

    @classmethod
    def from_json(cls, text: str, overrides: Iterable[str] = (), source: str = "config") -> Self:
        """Read a record from JSON text; see `from_json_path`. A `$schema` line, which editors read, is allowed."""
        data = _parse_object(text, source)
        if EXTENDS in data:
            raise ConfigError(source, [f"{EXTENDS}: only a file that is read from its path can extend another"])
        return cls._of(Layers(data, source), overrides)

    @classmethod
    def _of(cls, layers: Layers, overrides: Iterable[str]) -> Self:
        data, source = layers.data, layers.top
        origins = data.pop(PARTS, {})
        if not isinstance(origins, dict):
            raise ConfigError(source, [f"{PARTS}: expected an object; found {_short(origins)}"])
        cls.complete(data)
        problems = []
        for override in sorted(overrides, key=_rank_of_override):
            try:
                layers.replaced(_apply_override(cls, data, override))
            except ConfigError as error:
                problems += [f"{error.source}: {problem}" for problem in error.problems]
        cls.complete(data)
        try:
            record = cls.model_validate_json(json.dumps(data, ensure_ascii=False).encode(), strict=True)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            if faults[0]["type"] == "json_invalid":  # Python parsed it, so it is pydantic's depth limit
                raise ConfigError(source, [_TOO_DEEP]) from None
            lines = []
            for fault in faults[:MOST_PROBLEMS]:
                path, found = _describe(cls, data, fault, origins)
                lines += [line + layers.remark(path) for line in found]
            raise ConfigError(source, problems + lines, more=max(0, len(faults) - MOST_PROBLEMS)) from None
        except UnicodeEncodeError:
            raise ConfigError(source, ["holds text that is not Unicode: half of a surrogate pair"]) from None
        except RecursionError:
            raise ConfigError(source, [_TOO_DEEP]) from None
        if problems:
            raise ConfigError(source, problems)
        return record

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Fill in, in place, omitted keys whose default depends on other keys; nothing by default."""

    def faults(self) -> Iterable[str]:
        """Contradictions between fields that are each valid, one line per fault; none by default.

        The lines of all records are reported together. A record is asked only if its fields, records among them, are
        valid, since its lines may depend on them.
        """
        return ()

    @model_validator(mode="after")
    def _has_no_faults(self) -> Self:
        lines = list(self.faults())
        if lines:
            raise ValueError("\n".join(lines))
        return self

    def to_json(self) -> str:
        """The resolved record, defaults included, as indented JSON, with `PARTS` if other packages have parts in it."""
        text, origins = self.model_dump_json(indent=2), _origins(self)
        return (json.dumps({PARTS: origins, **json.loads(text)}, indent=2) if origins else text) + "\n"

    def digest(self) -> str:
        """SHA-256 of the resolved record, independent of the order of keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def arguments(self) -> dict[str, Any]:
        """The fields by name without the discriminator `type`: keyword arguments for the class this record makes."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "type"}


_TOO_DEEP = "is nested too deeply to be a configuration"


def _files(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A file and those that it extends, each with its object; the last one extends nothing."""
    found: list[tuple[Path, dict[str, Any]]] = []
    asked = ""
    while True:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path that no file can have
            raise ConfigError(str(path), [f"cannot be read{asked}: {error}"]) from None
        data = _parse_object(text, str(path))
        base = data.pop(EXTENDS, None)
        found.append((path, data))
        if base is None:
            return found
        if not isinstance(base, str) or not base:
            raise ConfigError(str(path), [f"{EXTENDS}: expected the path of a file; found {_short(base)}"])
        asked, path = f", which {path} extends", path.parent / base
        if path.resolve() in [file.resolve() for file, _ in found]:
            circle = " extends ".join(str(file) for file in [*(file for file, _ in found), path])
            raise ConfigError(str(found[0][0]), [f"{EXTENDS}: a circle: {circle}"])


def _parse_object(text: str, source: str) -> dict[str, Any]:
    """A JSON object without its `$schema`."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(source, [f"holds {len(text):,} characters; at most {MOST_CHARACTERS:,} are read"])
    data = _parse_json(text, source)
    if not isinstance(data, dict):
        raise ConfigError(source, [f"holds {an(type(data).__name__)}; expected an object {{...}}"])
    data.pop("$schema", None)
    return data


def _parse_json(text: str, source: str) -> Any:
    """Any JSON value; stricter than `json.loads`, which takes repeated keys, NaN and 1e999."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated = sorted(key for key in found if counts[key] > 1)
            lines = [f"key {_short(key)} is written twice in one object; keep one" for key in repeated]
            raise ConfigError(source, lines)
        return found

    def refuse_constant(name: str) -> float:
        raise ConfigError(source, [f"{name} is not a JSON number; write a finite number or null"])

    def finite(digits: str) -> float:
        if math.isinf(float(digits)):
            raise ConfigError(source, [f"{_short(digits)} is too large for a number"])
        return float(digits)

    hooks = {"object_pairs_hook": refuse_duplicates, "parse_constant": refuse_constant, "parse_float": finite}
    try:
        return json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        raise ConfigError(source, [f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"]) from None
    except RecursionError:
        raise ConfigError(source, [_TOO_DEEP]) from None
    except ConfigError:
        raise
    except ValueError:  # Python's limit on integers, 4300 digits
        raise ConfigError(source, ["an integer has too many digits"]) from None


def _rank_of_override(override: str) -> float:
    """Sort key: an object before its fields and `type` before its siblings, so that no override undoes another."""
    keys = override.partition("=")[0].split(".")
    return len(keys) - 0.5 * (keys[-1] == "type")


def _apply_override(cls: type[Config], data: dict[str, Any], override: str) -> tuple[str, ...]:
    """Set `a.b.c=value` in place; returns the path of what is replaced.

    Parts that the file omits start from their default; changing a `type` resets that part to its defaults.
    """
    source = f"--set {override if len(override) <= 200 else _short(override)}"
    path, equals, text = override.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise ConfigError(source, ["expected KEY.KEY=VALUE, for example train.lr.peak=3e-4"])
    annotation: Any = cls
    here: Any = data
    for depth, key in enumerate(keys):
        if not isinstance(here, (dict, list)):
            where = ".".join(map(_key, keys[:depth]))
            raise ConfigError(source, [f"{where} is {_short(here)}, which has no key {_short(key)}"])
        record = _record_for(annotation, here)
        annotation = child(record if record is not None else annotation, key)
        place: Any = key
        if isinstance(here, list):
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(here)):
                raise ConfigError(source, [f"{_short(key)} is no index into a list of {len(here)}"])
            place = int(key)
        elif depth < len(keys) - 1 and here.get(key) is None:
            here[key] = _default_of(record, key)
        if depth < len(keys) - 1:
            here = here[place]
    value = _typed(text, annotation, source)
    is_other = place == "type" and here.get("type") not in (None, value)
    if is_other:
        here.clear()
    here[place] = value
    return tuple(keys[:-1] if is_other else keys)


def _typed(text: str, annotation: Any, source: str) -> Any:
    """The value of an override: parsed as JSON, or the text itself where only text is valid."""
    try:
        value = _parse_json(text, source)
    except ConfigError as error:
        if "not JSON: " in str(error):
            return text
        raise
    if annotation is None or isinstance(value, str):
        return value
    for candidate in (value, text):
        try:
            TypeAdapter(annotation).validate_json(json.dumps(candidate), strict=True)
        except ValidationError:
            continue
        return candidate
    return value


def _default_of(record: type[Config] | None, key: str) -> Any:
    """The default of a field as mutable JSON; {} if it has none."""
    if record is None or key not in record.model_fields or record.model_fields[key].is_required():
        return {}
    default = to_jsonable_python(record.model_fields[key].get_default(call_default_factory=True))
    return {} if default is None else default


def family(name: str, *members: type[Config], needs: tuple[str, ...] = ("create",)) -> Any:
    """The union of interchangeable records, told apart by their `type`: ours, and those of other packages.

    A package adds a record with `member_of`, once its module is imported, or by an entry point in its own metadata; a
    configuration can only name what was added:

        [project.entry-points."dp_prior.backbones"]
        wavenet = "my_package.wavenet:WaveNetConfig"

    Args:
        name: of the family, in the plural; the entry points are those of group `dp_prior.<name>`.
        needs: attributes and fields that every member has.

    When a record that holds it is first checked, it raises ImportError for an installed record that cannot be imported,
    and PartError for one that is no record of a new type.
    """
    return Annotated[Config, _Family(name, members, needs)]


R = TypeVar("R", bound=type[Config])


def member_of(family: Any) -> Callable[[R], R]:
    """Class decorator that adds a record to a family, such as `EncoderConfig`, before a configuration is read.

    Raises:
        PartError: a configuration was read already, the type is taken, or the record lacks what every member has.
    """
    found = [part for part in getattr(family, "__metadata__", ()) if isinstance(part, _Family)]
    if not found:
        raise PartError(f"{_short(family)} is no family; expected one such as dp_prior.networks.encoders.EncoderConfig")

    def add(record: R) -> R:
        found[0].add(record)
        return record

    return add


class _Family:
    """The members of a family. Installed ones are imported when a record is first checked, not when the family is
    made: they import our modules, in which families are made."""

    def __init__(self, name: str, members: tuple[type[Config], ...], needs: tuple[str, ...]):
        self._name = name
        self._needs = needs
        self._ours = {member.model_fields["type"].default: member for member in members}
        self._added = dict(self._ours)

    @functools.cached_property
    def records(self) -> dict[str, type[Config]]:
        """The records by their type; see `family` for the errors."""
        found = dict(self._ours)
        for source, record in _installed_members(self._name):
            self._admit(found, source, record)
        for record in self._added.values():  # after the above, whose modules may add some
            self._admit(found, _name_of(record), record)
        return found

    def add(self, record: Any) -> None:
        """See `member_of`."""
        if "records" in vars(self):
            if record not in self.records.values():
                raise PartError(
                    f"{_name_of(record)} joins the family {self._name!r} after a configuration was read; import its "
                    f"module before: with --import, or first in your program"
                )
            return
        self._admit(self._added, _name_of(record), record)

    def _admit(self, known: dict[str, type[Config]], source: str, record: Any) -> None:
        is_record = isinstance(record, type) and issubclass(record, Config) and "type" in record.model_fields
        kind = record.model_fields["type"].default if is_record else None
        if not isinstance(kind, str):
            raise PartError(f'{source} is {record!r}; expected a Config with a field `type: Literal["..."] = "..."`')
        if known.get(kind) is record:
            return
        if kind in known:
            raise PartError(f"{source} has the type {kind!r}, which {known[kind].__name__} has already; rename it")
        missing = [name for name in self._needs if name not in record.model_fields and not hasattr(record, name)]
        if missing:
            raise PartError(f"{source} is no member of the family {self._name!r}: it has no {', no '.join(missing)}")
        known[kind] = record

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = Union[tuple(self.records.values())]  # noqa: UP007 (made at run time)
        return handler.generate_schema(Annotated[union, Field(discriminator="type")])


def members(annotation: Any) -> dict[str, type[Config]]:
    """The records of a family by their type."""
    return {record.model_fields["type"].default: record for record in records_in(annotation)}


def _name_of(record: Any) -> str:
    return f"{record.__module__}.{record.__qualname__}" if isinstance(record, type) else _short(record)


def _origins(value: Any) -> dict[str, str]:
    """Package, version and module of every record in a value that is not ours, by type."""
    if isinstance(value, Config):
        inside, record = value.arguments(), type(value)
        top = record.__module__.partition(".")[0]
        own = {} if top == __package__ or "type" not in record.model_fields else {value.type: _origin(record, top)}
    elif isinstance(value, (dict, list, tuple)):
        inside, own = value if isinstance(value, dict) else dict(enumerate(value)), {}
    else:
        return {}
    return own | {kind: origin for part in inside.values() for kind, origin in _origins(part).items()}


@functools.cache  # reading the metadata of all installed packages takes 100 ms
def _origin(record: type[Config], top: str) -> str:
    """Args: top: the first part of the record's module."""
    for package in importlib.metadata.packages_distributions().get(top, ()):
        return f"{package} {importlib.metadata.version(package)}, module {record.__module__}"
    version = vars(sys.modules[top]).get("__version__", "without __version__")
    return f"{top} {version}, module {record.__module__}"


def _installed_members(family_name: str) -> list[tuple[str, Any]]:
    found, group = [], f"dp_prior.{family_name}"
    for entry in sorted(_entry_points().select(group=group)):
        source = f"entry point {entry.name!r} of group {group!r} ({entry.value})"
        try:
            found.append((source, entry.load()))
        except (Exception, SystemExit) as error:
            raise ImportError(f"{source} cannot be imported: {error!r}. Repair or uninstall the package") from error
    return found


@functools.cache  # reading the metadata of all installed packages takes 10 ms
def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points()


Kind = Literal["harmless", "schedule-changing", "architecture", "data"]


@dataclass(frozen=True)
class Change:
    """What a change of a setting means for a run that resumes; `Annotated[int, Change("harmless")]` on its field.

    It holds for everything inside the field that says nothing else; see `dp_prior.run_files.changes`.

    Attributes:
        inside: kinds of some fields of the record that the field holds, where only this holder can tell.
    """

    kind: Kind
    inside: Mapping[str, Kind] = field(default_factory=dict)


def change_of(annotation: Any) -> Change | None:
    """The `Change` in the metadata of an annotation."""
    return next((part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Change)), None)


def records_in(annotation: Any) -> list[type[Config]]:
    """The record classes an annotation admits, through Annotated, unions and optionals."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    families = [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, _Family)]
    if families:
        return list(families[0].records.values())
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return [record for part in get_args(annotation) for record in records_in(part)]
    return []


def _record_for(annotation: Any, value: Any) -> type[Config] | None:
    """The record class that describes `value`, by its `type` where there are several."""
    records = records_in(annotation)
    tag = value.get("type") if isinstance(value, dict) else None
    tagged = [r for r in records if "type" in r.model_fields and r.model_fields["type"].default == tag]
    return (tagged or (records if len(records) == 1 else [None]))[0]


def child(annotation: Any, key: str | int) -> Any:
    """The annotation one level below, for a field name, a key or an index; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        found = annotation.model_fields.get(str(key))
        if found is None:
            return None
        return Annotated[(found.annotation, *found.metadata)] if found.metadata else found.annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, types.UnionType):
        arguments = records_in(annotation) or arguments
        return next((below for part in arguments if (below := child(part, key)) is not None), None)
    if origin is dict:
        return arguments[1]
    if origin in (list, tuple) and str(key).isdecimal():
        return arguments[min(int(key), len(arguments) - 1)] if Ellipsis not in arguments else arguments[0]
    return None


def _describe(cls: type[Config], data: Any, problem: Any, origins: dict[str, str]) -> tuple[list[str | int], list[str]]:
    """The path of a pydantic error, and its lines, usually one: JSON path, problem and remedy.

    Args:
        origins: of types that other packages add.
    """
    keys, annotation, record = _place(cls, data, problem)
    path = [_key(part) for part in keys]
    at = [*keys, "type"] if problem["type"] == "union_tag_invalid" else keys
    return at, _lines(problem, path, annotation, record, origins)


def _place(cls: type[Config], data: Any, problem: Any) -> tuple[list[str | int], Any, type[Config] | None]:
    """Where a pydantic error lies: its path, the annotation there, and the record around it."""
    kind, location = problem["type"], problem["loc"]
    annotation, value, record, keys = cls, data, None, []
    for depth, part in enumerate(location):
        if isinstance(value, dict):
            if len(records_in(annotation)) > 1 and part == value.get("type"):
                annotation = _record_for(annotation, value)  # pydantic names the union member; the file does not
                continue
            if part not in value and not (kind == "missing" and depth == len(location) - 1):
                continue
        elif not (isinstance(value, list) and isinstance(part, int)):
            continue
        record = _record_for(annotation, value)
        annotation = child(record if record is not None else annotation, part)
        keys.append(part)
        value = value.get(part) if isinstance(value, dict) else next(iter(value[part : part + 1]), None)
    return keys, annotation, record


def _lines(
    problem: Any, path: list[str], annotation: Any, record: type[Config] | None, origins: dict[str, str]
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
        advice = unknown_type(tag, origins) or f"{_short(tag)} is not known; expected one of {_tags(annotation)}"
        return [f"{where}.type: {advice}"]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return [f"{where}: input should be an object; found {_short(found)}"]
    return [f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}; found {_short(found)}"]


def unknown_type(kind: Any, origins: dict[str, str]) -> str | None:
    """What to do about a type that is not known but, as its file says, is of another package; None if it does not."""
    if not isinstance(kind, str) or kind not in origins:
        return None
    return (
        f"{_short(kind)} is of another package: {_short(origins[kind])}. Install that, or import that module first: "
        f"--import MODULE or DP_PRIOR_IMPORT on the command line, `import MODULE` in Python. Nothing that a file names "
        f"is imported by itself"
    )


def an(name: str) -> str:
    """A name with its indefinite article, for messages: an image, a policy."""
    return f"{'an' if name[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {name}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} ... ({len(text)} characters)"


def _key(part: str | int) -> str:
    """A part of a JSON path for a message."""
    text = str(part)
    return text if 0 < len(text) <= 80 else '""' if not text else _short(text)


def _tags(annotation: Any) -> str:
    return ", ".join(map(repr, members(annotation)))


def _nearest(record: type[Config] | None, key: str) -> str:
    """A hint: what replaces a key of another library, the closest known key, or all known keys."""
    if record is not None and key in record.replaced:
        return f" {record.replaced[key]}"
    known = list(record.model_fields) if record is not None else []
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else f" Known keys: {', '.join(known)}"
