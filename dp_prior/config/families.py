"""Families of interchangeable records, which other packages can join."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from dp_prior.config.annotations import Members
from dp_prior.config.errors import PartError, short
from dp_prior.config.late import checked
from dp_prior.config.record import Config
from dp_prior.files.entry_points import entry_points, families, imported, loaded, source_of


def family(
    name: str,
    *members: Mapping[str, str] | type[Config],
    needs: tuple[str, ...] = ("create",),
    base: type[Config] | None = None,
) -> Any:
    """The union of interchangeable records, ours and other packages', told apart by `type`.

    A member of ours is a type and a place, `{"unet1d": "dp_prior.networks.backbones.unet1d:UNet1DConfig"}`, or a record
    that stands in the file of the family. A package adds a record by `member_of`, which runs when the module is
    imported, or by an entry point in the package's metadata, whose name is the type:

        [project.entry-points."dp_prior.backbones"]
        wavenet = "my_package.wavenet:WaveNetConfig"

    The module of a member is imported when a configuration names the type. A type that no member has imports the other
    entry points of the family, then those of all families, since the name of an entry point may differ from the type,
    and a module may add several records.

    Args:
        name: plural name of the family; the entry points belong to group `dp_prior.<name>`.
        needs: attributes and fields that every member has.
        base: the class of our members. When a record joins that does not extend `base`, the record gets every missing
            attribute and method of `base` except `needs`.

    Naming an installed member raises ImportError if its module cannot be imported, and PartError if the member is no
    record or its type is taken.
    """
    return Annotated[Config, _Family(name, members, needs, base)]


R = TypeVar("R", bound=type[Config])


def member_of(family: Any) -> Callable[[R], R]:
    """Class decorator that adds a record to a family, such as `EncoderConfig`, before a configuration names its type.

    Raises:
        PartError: the type is taken, or the record lacks a required attribute.
    """
    joined = [part for part in getattr(family, "__metadata__", ()) if isinstance(part, _Family)]
    if not joined:
        raise PartError(f"{short(family)} is no family; expected one of those in docs/extending.md")

    def add(record: R) -> R:
        joined[0].add(record)
        return record

    return add


class _Family(Members):
    """The members of a family by type, each imported when its type is asked for.

    Attributes:
        places: module and class of the members of ours that stand in other files, by type.
        needs: attributes and fields that every member has.
    """

    def __init__(
        self,
        name: str,
        members: tuple[Mapping[str, str] | type[Config], ...],
        needs: tuple[str, ...],
        base: type[Config] | None,
    ):
        self._name = name
        self.places: dict[str, str] = {}
        self.needs = needs
        self._base = base
        self._ours: dict[str, type[Config] | None] = {}  # None until imported
        for part in members:
            if isinstance(part, Mapping):
                self.places.update(part)
                self._ours.update(dict.fromkeys(part))
            else:
                self._ours.update(dict.fromkeys(_types_of(part), part))
        self._installed: dict[str, type[Config]] = {}
        self._added: dict[str, type[Config]] = {}
        self._has_all_installed = False
        self._union: SchemaValidator | None = None  # made anew for every member that joins

    @property
    def kinds(self) -> tuple[str, ...]:
        self._load_all_installed()
        return self._loaded_kinds()

    @property
    def records(self) -> dict[str, type[Config]]:
        return {kind: self.record(kind) for kind in self.kinds}

    def record(self, kind: Any) -> type[Config] | None:
        if not isinstance(kind, str):
            return None
        for load in (lambda: self._load_installed(name=kind), self._load_installed, self._load_all_installed):
            if kind not in self._loaded_kinds():
                load()
        return self._load_ours(kind) or self._installed.get(kind) or self._added.get(kind)

    def add(self, record: Any) -> None:
        """See `member_of`."""
        self._admit(self._added, _name_of(record), record)

    def _loaded_kinds(self) -> tuple[str, ...]:
        """The types of ours, of the installed members imported so far, and of those that were added."""
        return *self._ours, *self._installed, *self._added

    def _load_ours(self, kind: str) -> type[Config] | None:
        """Import the member of ours that has a type."""
        if kind in self.places and self._ours[kind] is None:
            self._ours[kind] = imported(self.places[kind])
        return self._ours.get(kind)

    def _load_installed(self, **criteria: str) -> None:
        """Import the installed members of this family, or those whose entry point has a `name`."""
        if not self._has_all_installed:
            for entry in entry_points(self._name, **criteria):
                self._admit(self._installed, source_of(entry), loaded(entry))

    def _load_all_installed(self) -> None:
        """Import the entry points of all families: a module that joins one family may add records to another."""
        if self._has_all_installed:
            return
        self._installed = {}  # by the order of their names, whichever was imported before
        self._load_installed()
        for family_name in families():
            if family_name != self._name:
                for entry in entry_points(family_name):
                    loaded(entry)
        self._has_all_installed = True

    def _admit(self, joined: dict[str, type[Config]], source: str, record: Any) -> None:
        """Check a record of another package, and add the record to the installed or the added members."""
        is_record = isinstance(record, type) and issubclass(record, Config) and "type" in record.model_fields
        if not is_record or not isinstance(record.model_fields["type"].default, str):
            raise PartError(f'{source} is {record!r}; expected a Config with a field `type: Literal["..."] = "..."`')
        if record in (*self._ours.values(), *self._installed.values(), *self._added.values()):
            return
        for kind in _types_of(record):
            if kind in self._loaded_kinds():
                raise PartError(f"{source} has the type {kind!r}, which {self._owner(kind)} has already; rename it")
        missing = [name for name in self.needs if name not in record.model_fields and not _has(record, name)]
        if missing:
            raise PartError(
                f"{source} is no member of the family {self._name!r}: it has no {', no '.join(missing)}"
                f"{self._remedy(missing)}"
            )
        self._complete(record)
        joined.update(dict.fromkeys(_types_of(record), record))
        self._union = None

    def _complete(self, record: type[Config]) -> None:
        """Give a record the attributes of the base that it lacks."""
        inherited = {} if self._base is None else vars(self._base)
        for name, value in inherited.items():
            if not name.startswith("_") and name not in record.model_fields and not hasattr(record, name):
                setattr(record, name, value)

    def _owner(self, kind: str) -> str:
        """The name of the class that has a type; imports nothing."""
        if kind in self.places:
            return self.places[kind].rpartition(":")[2]
        record = self._ours.get(kind) or self._installed.get(kind) or self._added[kind]
        return record.__name__

    def _remedy(self, missing: list[str]) -> str:
        """The class to extend: the nearest base of all our members, where it has a missing attribute."""
        records = [self._load_ours(kind) for kind in self._ours]
        for base in records[0].__mro__[1:] if records else ():
            if all(issubclass(member, base) for member in records) and any(hasattr(base, name) for name in missing):
                return f"; extend {_name_of(base)}"
        return ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        choices = {}
        for kind, record in self.records.items():
            record.model_rebuild()  # deferred until here
            choices[kind] = record.__pydantic_core_schema__
        return handler(core_schema.tagged_union_schema(choices, "type"))

    def _validated(self, value: Any, info: ValidationInfo) -> Any:
        """A valid member; errors read as if the union were part of the schema around, see `checked`."""
        kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
        if self.record(kind) is None:
            self._load_all_installed()  # the error lists them
        if self._union is None:
            self._union = self._tagged_union()
        return checked(self._union, value, info)

    def _tagged_union(self) -> SchemaValidator:
        """Selects the member by `type`, with pydantic's errors for a missing or unknown type."""
        choices = {}
        for kind in self._loaded_kinds():
            valid_member = functools.partial(self._valid_member, kind)
            choices[kind] = core_schema.with_info_plain_validator_function(valid_member)
        return SchemaValidator(core_schema.tagged_union_schema(choices, "type", strict=False, from_attributes=True))

    def _valid_member(self, kind: str, value: Any, info: ValidationInfo) -> Any:
        return checked(self.record(kind).__pydantic_validator__, value, info)


def _types_of(record: type[Config]) -> tuple[str, ...]:
    """The values that the field `type` of a record accepts."""
    field = record.model_fields["type"]
    return get_args(field.annotation) or (field.default,)


def _has(record: type[Config], name: str) -> bool:
    """Whether a record has an attribute, other than the abstract one of its base."""
    return hasattr(record, name) and not getattr(getattr(record, name), "__isabstractmethod__", False)


def _name_of(record: Any) -> str:
    return f"{record.__module__}.{record.__qualname__}" if isinstance(record, type) else short(record)
