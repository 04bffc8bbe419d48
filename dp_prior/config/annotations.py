"""`Record`: frozen, checked fields; and their annotations: the records a field admits, and the meaning of a change."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

Kind = Literal["harmless", "schedule-changing", "architecture", "data"]


class Record(BaseModel):
    """Frozen fields without unknown keys, and the contradictions between them; `Config` reads and writes them."""

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def hint(cls, path: Sequence[str | int]) -> str | None:
        """Say where an unknown key belongs, in whole sentences; None if nothing is known of such a key.

        Args:
            path: the key with its path; relative to a record that is asked about one of its own keys.
        """
        return None

    @classmethod
    def other_file(cls, data: dict[str, Any], source: str) -> str | None:
        """Recognise an invalid file of another kind, in a sentence for its author; None by default.

        Args:
            source: name of the file.
        """
        return None

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Fill in, in place, omitted keys whose default depends on other keys; does nothing by default."""

    def faults(self) -> Iterable[str]:
        """Contradictions between fields that are each valid, one line per fault; none by default.

        The lines of all records are reported together. Called only if all fields, nested records included, are valid,
        so `faults` may rely on valid fields.
        """
        return ()

    @model_validator(mode="after")
    def _has_no_faults(self) -> Self:
        lines = list(self.faults())
        if lines:
            raise ValueError("\n".join(lines))
        return self

    def arguments(self) -> dict[str, Any]:
        """The fields by name without the discriminator `type`: keyword arguments for the class this record makes."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "type"}


@dataclass(frozen=True)
class Change:
    """What changing a field means for a run that resumes: `Annotated[int, Change("harmless")]`.

    Also holds for fields inside without a `Change` of their own; see `dp_prior.run.changes`.

    Attributes:
        inside: kinds of fields of the record inside, where only the field around the record can tell.
    """

    kind: Kind
    inside: Mapping[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True)
class Outside:
    """Marks a field whose text is a path, a URL or a repository, or whose map holds arguments of other code, which may
    be paths: `Annotated[str, Outside()]`. A field of type `Path` needs no mark."""


def change_of(annotation: Any) -> Change | None:
    """The `Change` in the metadata of an annotation."""
    return next((part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Change)), None)


class Members(ABC):
    """Metadata of an annotation whose records are listed elsewhere and may be added to; see `family`."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """The types of all records, ours first; imports none of ours."""

    @property
    @abstractmethod
    def records(self) -> dict[str, type[Record]]:
        """The records by their type; imports all."""

    @abstractmethod
    def record(self, kind: Any) -> type[Record] | None:
        """Import the record of a type, and no other record of ours; None for an unknown type."""


class Placed(ABC):
    """Metadata of an annotation whose record is imported late; see `late`."""

    @property
    @abstractmethod
    def record(self) -> type[Record]:
        """The record; imports its module."""


def families_in(annotation: Any) -> list[Members]:
    """The families that an annotation admits, also inside Annotated, unions and optionals."""
    families = [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Members)]
    if families or get_origin(annotation) not in (Annotated, Union, types.UnionType):
        return families
    for part in get_args(annotation):
        families += families_in(part)
    return families


def kinds_in(annotation: Any) -> list[str]:
    """The types of the records that an annotation admits; imports no member of ours."""
    families = families_in(annotation)
    return [*chain.from_iterable(family.kinds for family in families)] or list(members(annotation))


def records_in(annotation: Any) -> list[type[Record]]:
    """The record classes that an annotation admits, also inside Annotated, unions and optionals."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return [annotation]
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Members):
            return list(part.records.values())
        if isinstance(part, Placed):
            return [part.record]
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return [*chain.from_iterable(map(records_in, get_args(annotation)))]
    return []


def is_placed(annotation: Any) -> bool:
    """Whether an annotation admits a record that is imported late, also inside Annotated, unions and optionals."""
    if any(isinstance(part, Placed) for part in getattr(annotation, "__metadata__", ())):
        return True
    return get_origin(annotation) in (Annotated, Union, types.UnionType) and any(map(is_placed, get_args(annotation)))


def can_be_joined(annotation: Any) -> bool:
    """Whether other packages can add records to an annotation."""
    parts = (*getattr(annotation, "__metadata__", ()), *get_args(annotation))
    return any(isinstance(part, Members) or can_be_joined(part) for part in parts if part is not annotation)


def members(annotation: Any) -> dict[str, type[Record]]:
    """The records of a family by their type, a literal with or without a default."""
    records: dict[str, type[Record]] = {}
    for record in records_in(annotation):
        records |= dict.fromkeys(get_args(record.model_fields["type"].annotation), record)
    return records


def record_for(annotation: Any, value: Any) -> type[Record] | None:
    """The record class that describes `value`, selected by the key `type` among several."""
    tag = value.get("type") if isinstance(value, dict) else None
    for family in families_in(annotation):
        record = family.record(tag)
        if record is not None:
            return record
    records = records_in(annotation)
    tagged = [r for r in records if "type" in r.model_fields and r.model_fields["type"].default == tag]
    return (tagged or (records if len(records) == 1 else [None]))[0]


def child(annotation: Any, key: str | int) -> Any:
    """The annotation one level below, for a field name, a key or an index; None if there is nothing below."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        declared = annotation.model_fields.get(str(key))
        if declared is None:
            return None
        return Annotated[(declared.annotation, *declared.metadata)] if declared.metadata else declared.annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, types.UnionType):
        arguments = records_in(annotation) or arguments
        return next((below for part in arguments if (below := child(part, key)) is not None), None)
    if origin is dict:
        return arguments[1]
    if origin in (list, tuple) and str(key).isdecimal():
        return arguments[min(int(key), len(arguments) - 1)] if Ellipsis not in arguments else arguments[0]
    return None
