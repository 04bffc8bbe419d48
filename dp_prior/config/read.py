"""Reads JSON more strictly than `json.loads`, follows `extends` from file to file, and merges these."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dp_prior.config.errors import ConfigError, an, short
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import UnfitError, read_small

EXTENDS = "extends"
"""Key of a configuration file: path of the file to lay this file over, relative to this file's directory."""

SCHEMA = "$schema"
"""Key of a configuration that editors read; it is ignored here."""

MOST_EXACT = 2.0**53
"""Largest magnitude up to which floats hold every whole number."""

MOST_CHARACTERS = 4_000_000
"""Maximum length of a configuration; at this length, checking a file of unknown keys takes seconds."""

FROM_YAML = (
    ". A configuration is JSON: `dp-prior translate FILE` translates those of other libraries; others become JSON by "
    "python -c 'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, indent=2)' < FILE > FILE.json"
)
"""What to do with a file that is named as YAML."""

ANY = object()
"""Stands for a `type` that an object or a schema does not state."""

TOO_DEEP = "is nested too deeply to be a configuration"


def files_of(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """A file and the chain of files that `extends` leads to, each with its object; the base comes last."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    asked = ""
    while True:
        data = parse_object(read_text(path, asked), str(path))
        base = data.pop(EXTENDS, None)
        chain.append((path, data))
        if base is None:
            return chain
        if not isinstance(base, str) or not base:
            raise ConfigError(str(path), [f"{EXTENDS}: expected the path of a file; found {short(base)}"])
        asked, path = f", which {path} extends", path.parent / base
        files = [file for file, _ in chain]
        if path.resolve() in [file.resolve() for file in files]:
            circle = " extends ".join(map(str, [*files, path]))
            raise ConfigError(str(files[0]), [f"{EXTENDS}: a circle: {circle}"])


def read_text(path: Path, asked: str = "") -> str:
    """The text of a configuration. Args: asked: who named it, for errors."""
    try:
        return read_small(path, 4 * MOST_CHARACTERS).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path that no file can have
        problem = error.problem if isinstance(error, UnfitError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            problem = f"byte {error.start} is no text in UTF-8, as JSON is"
        elif isinstance(error, FileNotFoundError):
            problem = "there is no such file"
        problem = f"cannot be read{asked}: {problem}{misplaced(path, 'configuration')}"
        raise ConfigError(str(path), [problem]) from None


def parse_object(text: str, source: str) -> dict[str, Any]:
    """A JSON object without its `SCHEMA`."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(source, [f"holds {len(text):,} characters; at most {MOST_CHARACTERS:,} are read"])
    data = parse_json(text, source)
    if not isinstance(data, dict):
        raise ConfigError(source, [f"holds {an(type(data).__name__)}; expected an object {{...}}"])
    data.pop(SCHEMA, None)
    return data


def parse_json(text: str, source: str) -> Any:
    """Parse any JSON value; refuses repeated keys, NaN and 1e999, which `json.loads` accepts, and takes 1e6 for the
    whole number that it is."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated = sorted(key for key in document if counts[key] > 1)
            lines = [f"key {short(key)} is written twice in one object; keep one" for key in repeated]
            raise ConfigError(source, lines)
        return document

    def refuse_constant(name: str) -> float:
        raise ConfigError(source, [f"{name} is not a JSON number; write a finite number or null"])

    def finite(digits: str) -> float | int:
        number = float(digits)
        if math.isinf(number):
            raise ConfigError(source, [f"{short(digits)} is too large for a number"])
        is_whole = "e" in digits.lower() and number.is_integer() and abs(number) <= MOST_EXACT
        return int(number) if is_whole else number

    hooks = {"object_pairs_hook": refuse_duplicates, "parse_constant": refuse_constant, "parse_float": finite}
    try:
        return json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: not JSON: {error.msg if text.strip() else 'it is empty'}"
        is_lax = text[error.pos : error.pos + 1] in ("/", "#", "}", "]")
        if is_lax:
            problem += "; JSON has no comments, and no comma before a bracket that closes"
        raise ConfigError(source, [problem + FROM_YAML * source.endswith((".yaml", ".yml"))]) from None
    except RecursionError:
        raise ConfigError(source, [TOO_DEEP]) from None
    except ConfigError:
        raise
    except ValueError:  # Python's limit on integers, 4300 digits
        raise ConfigError(source, ["an integer has too many digits"]) from None


def unknown_keys(
    value: Any, choices: Sequence[Any], schema: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Find the keys that no record has, by a JSON Schema: the path of each, and the names that records have there; and
    texts, truth values and null where only a number fits: the path, and no names.

    An object without `type` may be of any member of a family, and one of a type that the schema lacks may have any key.

    Args:
        choices: the schemas of which the value fulfils one.
        schema: holds the definitions that `$ref` names.
    """
    alternatives = list(_alternatives(choices, schema))
    composed = {"$ref", "anyOf", "oneOf", "enum", "const"}
    types = {alternative.get("type") for alternative in alternatives if not composed & alternative.keys()}
    if types in ({"number"}, {"integer"}) and (value is None or isinstance(value, str | bool)):
        yield path, []
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        kind = value.get("type", ANY)
        records = [alternative.get("properties", {}) for alternative in alternatives]
        fitting = [fields for fields in records if kind in (ANY, fields.get("type", {}).get("const", ANY))]
        inside = [fields[key] for fields in fitting if key in fields]
        for alternative in alternatives:
            inside += filter(None, (alternative.get("items"), alternative.get("additionalProperties")))
        if inside:
            yield from unknown_keys(inner, inside, schema, (*path, str(key)))
        elif any(fitting):
            yield (*path, str(key)), list(dict.fromkeys(itertools.chain.from_iterable(fitting)))


def _alternatives(choices: Sequence[dict[str, Any]], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """These schemas, then those that they refer to or are composed of."""
    waiting = deque(choices)
    while waiting:
        alternative = waiting.popleft()
        yield alternative
        if "$ref" in alternative:
            waiting.append(schema["$defs"][alternative["$ref"].rpartition("/")[2]])
        waiting += [*alternative.get("anyOf", []), *alternative.get("oneOf", [])]


class Layers:
    """A JSON object merged from layers, lowest first.

    Objects are merged key by key, unless their `type` differs; then, as for lists, null and all other values, the upper
    layer replaces the lower value whole.

    Attributes:
        data: the merged object.
        top: the file of the highest layer.
    """

    def __init__(self, data: dict[str, Any], file: str):
        self.data, self.top = data, file
        self._files: dict[tuple[str, ...], str] = {(): file}  # for a value and everything below without an own entry

    def lay(self, document: dict[str, Any], file: str) -> None:
        """Merge an object as the new top layer."""
        self.top = file
        self._merge(self.data, document, ())

    def _merge(self, below: dict[str, Any], document: dict[str, Any], path: tuple[str, ...]) -> None:
        for key, value in document.items():
            here = below.get(key)
            both = isinstance(here, dict) and isinstance(value, dict)
            if both and ("type" not in value or value["type"] == here.get("type")):
                self._merge(here, value, (*path, key))
            else:
                below[key] = value
                self.replaced((*path, key))

    def replaced(self, path: tuple[str, ...]) -> None:
        """Mark the value at `path` as coming from the top file."""
        self._files = {at: file for at, file in self._files.items() if at[: len(path)] != path}
        self._files[path] = self.top

    def remark(self, path: Sequence[str | int]) -> str:
        """Text for a message naming the files that the value at `path` comes from; "" if only from the top file."""
        place = tuple(map(str, path))
        above = next(self._files[place[:n]] for n in range(len(place), -1, -1) if place[:n] in self._files)
        files = {above: None, **dict.fromkeys(file for at, file in self._files.items() if at[: len(place)] == place)}
        return "" if list(files) == [self.top] or not place else f" (in {' and '.join(files)})"
