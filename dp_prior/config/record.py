"""`Config`, the record that describes every part of the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from dp_prior.config.annotations import Record
from dp_prior.config.errors import MOST_PROBLEMS, ConfigError, short
from dp_prior.config.origins import ORIGINS, origins_of
from dp_prior.config.overrides import apply_override, rank_of_override
from dp_prior.config.read import EXTENDS, SCHEMA, TOO_DEEP, Layers, files_of, parse_object


class Config(Record):
    """A frozen record that refuses unknown keys. Subclasses declare the fields, with defaults and descriptions."""

    def __init__(self, /, **fields: Any):
        """
        Args:
            fields: values as in JSON, where records may stand for objects: `TrainConfig(task={"horizon": 16}, ...)`.

        Raises:
            ConfigError: they do not describe this record.
        """
        data = _plain(fields)
        origins, _ = data.pop(ORIGINS, {}), data.pop(SCHEMA, None)
        self.complete(data)
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise self._refusal(error, Layers(data, type(self).__name__), origins) from None

    __init__.__pydantic_base_init__ = True  # else pydantic also calls it, without `strict`, for records inside JSON

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            remedy = "TrainConfig.from_json(config.to_json(), ['seed=5'])"
            raise ConfigError(name, [f"records are frozen; make another, as by {remedy}"])
        super().__setattr__(name, value)

    @classmethod
    def from_json_path(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a record from a JSON file, with dotted overrides such as `train.lr.peak=3e-4` applied first.

        `"extends": "base.json"` lays the file over another file, as `Layers` does; the path is relative to the file.

        Raises:
            ConfigError: a file is missing or not plain JSON, or the result is no valid record.
        """
        (base, data), *upper_files = reversed(files_of(Path(path)))
        layers = Layers(data, str(base))
        for file, document in upper_files:
            cls.complete(layers.data)
            layers.lay(document, str(file))
        return cls._of(layers, overrides)

    @classmethod
    def from_json(cls, text: str, overrides: Iterable[str] = (), source: str = "config") -> Self:
        """Read a record from JSON text; see `from_json_path`. A `$schema` line, which editors read, is allowed."""
        data = parse_object(text, source)
        if EXTENDS in data:
            raise ConfigError(source, [f"{EXTENDS}: only a file that is read from its path can extend another"])
        return cls._of(Layers(data, source), overrides)

    @classmethod
    def _of(cls, layers: Layers, overrides: Iterable[str]) -> Self:
        data, source = layers.data, layers.top
        origins = data.pop(ORIGINS, {})
        if not isinstance(origins, dict):
            raise ConfigError(source, [f"{ORIGINS}: expected an object; found {short(origins)}"])
        cls.complete(data)
        problems = []
        overrides = [overrides] if isinstance(overrides, str) else overrides  # one, and not its letters
        for override in sorted(overrides, key=rank_of_override):
            try:
                layers.replaced(apply_override(cls, data, override))
            except ConfigError as error:
                problems += [f"{error.source}: {problem}" for problem in error.problems]
        cls.complete(data)
        try:
            record = cls.model_validate_json(json.dumps(data, ensure_ascii=False).encode(), strict=True)
        except ValidationError as error:
            raise cls._refusal(error, layers, origins, problems) from None
        except UnicodeEncodeError as error:
            near = ascii(error.object[max(0, error.start - 60) : error.end])
            finding = f"holds text that is not Unicode: half of a surrogate pair, at the end of {near}"
            raise ConfigError(source, [f"{finding}; rename a path whose name is no UTF-8, or link to it"]) from None
        except RecursionError:
            raise ConfigError(source, [TOO_DEEP]) from None
        if problems:
            raise ConfigError(source, problems)
        return record

    @classmethod
    def _refusal(
        cls, error: ValidationError, layers: Layers, origins: dict[str, str], problems: Sequence[str] = ()
    ) -> ConfigError:
        """The error about an object that is no such record, after problems that are known already."""
        faults = error.errors(include_url=False)
        if faults[0]["type"] == "json_invalid":  # Python parsed the text, so this is pydantic's depth limit
            return ConfigError(layers.top, [TOO_DEEP])
        other = cls.other_file(layers.data, layers.top)
        if other is not None:
            return ConfigError(layers.top, [other])
        from dp_prior.config.problems import describe

        lines = list(problems)
        for fault in faults[:MOST_PROBLEMS]:
            path, descriptions = describe(cls, layers.data, fault, origins)
            lines += [line + layers.remark(path) for line in descriptions]
        return ConfigError(layers.top, lines, more=max(0, len(faults) - MOST_PROBLEMS))

    def to_json(self) -> str:
        """The resolved record, defaults included, as indented JSON; with `ORIGINS` if records are other packages'."""
        text, origins = self.model_dump_json(indent=2), origins_of(self)
        return (json.dumps({ORIGINS: origins, **json.loads(text)}, indent=2) if origins else text) + "\n"

    def to_document(self) -> dict[str, Any]:
        """The values of `to_json`, for checkpoints and comparisons."""
        return json.loads(self.to_json())

    def digest(self) -> str:
        """SHA-256 of the resolved record, independent of the order of keys."""
        return digest_of(self.model_dump(mode="json"))


def digest_of(document: Any) -> str:
    """SHA-256 of the values of a JSON document, independent of the order of keys."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A copy of objects and lists, as JSON has them; other values, such as records, are shared."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
