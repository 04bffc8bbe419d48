"""Families of interchangeable records, which other packages can join."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, Union

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from dp_prior.config.annotations import Members
from dp_prior.config.errors import PartError, short
from dp_prior.config.record import Config


def family(name: str, *members: type[Config], needs: tuple[str, ...] = ("create",)) -> Any:
    """The union of interchangeable records, ours and other packages', told apart by `type`.

    A package adds a record by `member_of`, which runs when the module is imported, or by an entry point in the
    package's metadata. A configuration can only name records that were added:

        [project.entry-points."dp_prior.backbones"]
        wavenet = "my_package.wavenet:WaveNetConfig"

    Args:
        name: plural name of the family; the entry points belong to group `dp_prior.<name>`.
        needs: attributes and fields that every member has.

    The first check of a record with a field of the family raises ImportError if an installed member cannot be imported,
    and PartError if a member is no record or its type is taken.
    """
    return Annotated[Config, _Family(name, members, needs)]


R = TypeVar("R", bound=type[Config])


def member_of(family: Any) -> Callable[[R], R]:
    """Class decorator that adds a record to a family, such as `EncoderConfig`, before a configuration is read.

    Raises:
        PartError: a configuration was read already, the type is taken, or the record lacks a required attribute.
    """
    found = [part for part in getattr(family, "__metadata__", ()) if isinstance(part, _Family)]
    if not found:
        raise PartError(f"{short(family)} is no family; expected one of those in docs/extending.md")

    def add(record: R) -> R:
        found[0].add(record)
        return record

    return add


class _Family(Members):
    """The members of a family. Installed members are imported when a record is first checked, not when the family is
    made: their modules import ours, which are still being imported while families are made."""

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
        for record in self._added.values():  # last, since importing the installed members may have added records
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
            raise PartError(
                f"{source} is no member of the family {self._name!r}: it has no {', no '.join(missing)}"
                f"{self._remedy(missing)}"
            )
        known[kind] = record

    def _remedy(self, missing: list[str]) -> str:
        """The class to extend: the nearest base of all our members, where it has a missing attribute."""
        ours = list(self._ours.values())
        for base in ours[0].__mro__[1:] if ours else ():
            if all(issubclass(member, base) for member in ours) and any(hasattr(base, name) for name in missing):
                return f"; extend {_name_of(base)}"
        return ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = Union[tuple(self.records.values())]  # noqa: UP007 (made at run time)
        return handler.generate_schema(Annotated[union, Field(discriminator="type")])


def _name_of(record: Any) -> str:
    return f"{record.__module__}.{record.__qualname__}" if isinstance(record, type) else short(record)


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
