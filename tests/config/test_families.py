"""A family takes records that fit it, and imports a member when a configuration names its type."""

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from pydantic import TypeAdapter, create_model

from dp_prior.config import (
    MOST_PROBLEMS,
    Config,
    ConfigError,
    PartError,
    child,
    families,
    family,
    kinds_in,
    member_of,
    members,
)
from dp_prior.config.annotations import families_in
from dp_prior.files.entry_points import listeners
from tests.config.records import Inside, Outside, Schedule
from tests.faults import assert_none
from tests.messages import naming

PACKAGE = Path(families.__file__).parent.parent


class SameType(Config):
    """A record whose type is taken."""

    type: Literal["inside"] = "inside"


class Untyped(Config):
    """A record that no file could name."""


def installed(monkeypatch, *names):
    """Pretend that a package names these objects of this file as members of the family `things`."""
    install(monkeypatch, *((name.lower(), f"{__name__}:{name}", "things") for name in names))


def test_family_is_told_apart_by_type_and_takes_installed_members(monkeypatch):
    installed(monkeypatch, "Outside")
    things = family("things", Inside, needs=())
    assert members(things) == {"inside": Inside, "outside": Outside}
    holder = create_model("Holder", __base__=Config, thing=(things, ...))
    assert holder.from_json('{"thing": {"type": "outside"}}', ["thing.width=4"]).thing == Outside(width=4)
    with pytest.raises(ConfigError, match=naming("thing.type", "'other'", "'inside'", "'outside'")):
        holder.from_json('{"thing": {"type": "other"}}')
    with pytest.raises(ConfigError, match=naming("'gru'", "'outside'", "--import MODULE")):
        holder.from_json('{"thing": {"type": "gru"}}')
    with pytest.raises(ConfigError, match=naming("'side'", "--import MODULE", "'inside'?")):  # perhaps the one or other
        holder.from_json('{"thing": {"type": "side"}}')
    with pytest.raises(
        ConfigError, match=naming("'insied'", "'inside'", "'outside'")
    ):  # a misspelt name of a known one
        holder.from_json('{"thing": {"type": "insied"}}')
    assert members(family("others", Inside, Outside)) == members(things)


class Beyond(Outside):
    type: Literal["beyond"] = "beyond"


class Above(Outside):
    type: Literal["above", "over"] = "above"


@pytest.mark.parametrize("first", ["inside", "above", "beyond", "outside"])
def test_members_have_the_order_of_their_names_whichever_is_imported_first(first, monkeypatch):
    installed(monkeypatch, "Outside", "Above", "Beyond")
    holder = create_model("Holder", __base__=Config, thing=(family("things", Inside, needs=()), ...))
    assert holder.from_json(f'{{"thing": {{"type": "{first}"}}}}').thing.type == first
    kinds = ["inside", "above", "over", "beyond", "outside"]
    assert kinds_in(child(holder, "thing")) == kinds and [*members(child(holder, "thing"))] == kinds
    choices = holder.model_json_schema()["properties"]["thing"]["oneOf"]
    assert [choice["$ref"].rpartition("/")[2] for choice in choices] == ["Inside", "Above", "Beyond", "Outside"]


def test_record_joins_a_family_by_its_decorator_at_any_time_before_its_type_is_named():
    things = family("things", Inside, needs=("width",))
    holder = create_model("Holder", __base__=Config, thing=(things, ...))
    member_of(things)(Outside)
    member_of(things)(Outside)  # a module may be imported under two names
    assert members(things) == {"inside": Inside, "outside": Outside}
    with pytest.raises(ConfigError, match=naming("thing.type", "'late'", "'inside'", "'outside'", "--import MODULE")):
        holder(thing={"type": "late"})
    late = create_model("Late", __base__=Outside, type=(Literal["late"], "late"))
    member_of(things)(late)
    assert holder.from_json('{"thing": {"type": "late", "width": 5}}').thing == late(width=5)
    assert members(things) == {"inside": Inside, "outside": Outside, "late": late}
    assert {*holder.model_json_schema()["properties"]["thing"]["discriminator"]["mapping"]} == {*members(things)}
    with pytest.raises(PartError, match=naming("abc.Late", "'late'", "Late")):
        member_of(things)(create_model("Late", __module__="abc", __base__=Outside, type=(Literal["late"], "late")))


def test_every_literal_of_a_type_names_the_record():
    several = create_model("Several", __base__=Config, type=(Literal["first", "second"], "first"))
    things = family("things", Inside, needs=())
    member_of(things)(several)
    for kind in ("first", "second"):
        assert TypeAdapter(things).validate_python({"type": kind}) == several(type=kind)
    with pytest.raises(PartError, match=naming("'second'", "Several")):
        member_of(things)(create_model("Other", __base__=Config, type=(Literal["third", "second"], "third")))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (SameType, ("tests.config.test_families.SameType", "'inside'", "Inside")),
        (Untyped, ("tests.config.test_families.Untyped", '`type: Literal["..."] = "..."`')),
        (installed, ('`type: Literal["..."] = "..."`',)),
        (Inside, ("tests.config.records.Inside", "'things'", "create", "reads")),
    ],
)
def test_record_that_does_not_fit_a_family_is_refused_at_its_decorator(record, message):
    ours = () if record is Inside else (Inside,)
    with pytest.raises(PartError, match=naming(*message)) as caught:
        member_of(family("things", *ours, needs=("create", "reads")))(record)
    assert len(str(caught.value).splitlines()) == 1


class Thing(Config):
    """What all things of the family are."""

    def create(self): ...


class Stranger(Config):
    type: Literal["stranger"] = "stranger"


class Ours(Thing):
    type: Literal["ours"] = "ours"


def test_a_record_that_lacks_what_our_members_inherit_is_told_the_class_to_extend():
    for needs, remedy in ((("create",), True), (("create", "reads"), True), (("reads",), False)):
        with pytest.raises(
            PartError,
            match=naming("tests.config.test_families.Stranger", "'things'", *needs),
        ) as caught:
            member_of(family("things", Ours, needs=needs))(Stranger)
        assert ("; extend tests.config.test_families.Thing" in str(caught.value)) == remedy


def test_only_a_family_has_members():
    with pytest.raises(PartError, match=naming("docs/extending.md", "tests.config.records.Cosine")):
        member_of(Schedule)
    with pytest.raises(PartError, match=naming("'encoders'", "docs/extending.md")):
        member_of("encoders")


def test_installed_member_that_ends_the_process_is_refused(monkeypatch):
    def leave(entry):
        raise SystemExit(3)

    installed(monkeypatch, "Outside")
    monkeypatch.setattr(EntryPoint, "load", leave)
    things = family("things", Inside, needs=())
    with pytest.raises(ImportError, match=naming("'outside'", "SystemExit(3)")):
        members(things)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Missing", ImportError, ("'missing'", "'dp_prior.things'", "AttributeError")),
        ("Untyped", TypeError, ("'untyped'", '`type: Literal["..."] = "..."`')),
        ("installed", TypeError, ("'installed'", '`type: Literal["..."] = "..."`')),
        ("SameType", TypeError, ("'sametype'", "'inside'", "Inside")),
    ],
)
def test_installed_member_that_does_not_fit_is_refused(monkeypatch, name, error, message):
    installed(monkeypatch, name)
    things = family("things", Inside, needs=())
    with pytest.raises(error, match=naming(*message)):
        members(things)
    assert TypeAdapter(things).validate_python({"type": "inside"}) == Inside()  # the installed member is not asked for
    for kind in (name.lower(), "other"):
        with pytest.raises(error, match=naming(*message)):
            TypeAdapter(things).validate_python({"type": kind})


imported: list[str] = []
"""Names of the modules of a test that were imported."""
joined_late: list[Any] = []
"""A family that a module of a test joins."""

RECORD = """
from typing import Literal
from dp_prior.config import Config, member_of
from tests.config.test_families import imported, joined_late

imported.append(__name__)


class Record(Config):
    type: Literal["KIND"] = "KIND"
    sizes: tuple[int, ...] = (1,)
"""
JOINS = "\n\nmember_of(joined_late[0])(Record)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules that the test alone imports."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    imported.clear()
    joined_late.clear()
    for name in {*sys.modules} - before:
        del sys.modules[name]


COMMAND = ("export", "dp_prior_robot.export_command:export", "commands")
"""Without any command the installation would be older than the plug-ins."""


def install(monkeypatch, *entries):
    """Pretend that packages have these entry points, each a name, a place and a family."""
    entries = (*entries, COMMAND)
    points = EntryPoints(EntryPoint(name, place, f"dp_prior.{family_name}") for name, place, family_name in entries)
    monkeypatch.setattr("dp_prior.files.entry_points._installed", lambda: points)


def test_the_module_of_a_member_is_imported_when_its_type_is_named(folder, monkeypatch):
    for kind in ("first", "second", "third", "fourth"):
        (folder / f"{kind}.py").write_text(RECORD.replace("KIND", kind))
    install(monkeypatch, ("third", "third:Record", "things"), ("fourth", "fourth:Record", "things"))
    things = family("things", {"first": "first:Record", "second": "second:Record"}, needs=())
    holder = create_model("Holder", __base__=Config, thing=(things, ...))
    assert imported == []
    for number, kind in enumerate(("second", "third", "first"), start=1):
        text = json.dumps({"thing": {"type": kind, "sizes": [3]}})
        for _ in range(2):
            assert holder.from_json(text).thing.sizes == (3,)
        assert imported == ["second", "third", "first"][:number]
    assert kinds_in(things) == ["first", "second", "fourth", "third"]
    assert imported == ["second", "third", "first", "fourth"]


def test_a_type_that_no_member_has_imports_what_is_installed_and_none_of_ours(folder, monkeypatch):
    """The name of an entry point may differ from the type, and a module may add a record to another family."""
    (folder / "ours.py").write_text(RECORD.replace("KIND", "ours"))
    (folder / "renamed.py").write_text(RECORD.replace("KIND", "wavenet"))
    (folder / "elsewhere.py").write_text(RECORD.replace("KIND", "guest") + JOINS)
    install(monkeypatch, ("net", "renamed:Record", "things"), ("other", "elsewhere:Record", "others"))
    things = family("things", {"ours": "ours:Record"}, needs=())
    joined_late.append(things)
    holder = create_model("Holder", __base__=Config, thing=(things, ...))
    for kind in ("wavenet", "guest"):
        assert holder(thing={"type": kind}).thing.type == kind
    with pytest.raises(ConfigError, match=naming("thing.type", "'net'", "'ours'", "'wavenet'", "'guest'")):
        holder(thing={"type": "net"})
    assert imported == ["renamed", "elsewhere"]


def test_a_broken_member_of_another_family_does_not_hinder_an_installed_one(folder, monkeypatch):
    (folder / "renamed.py").write_text(RECORD.replace("KIND", "wavenet"))
    (folder / "broken.py").write_text("raise RuntimeError")
    install(monkeypatch, ("net", "renamed:Record", "things"), ("other", "broken:Record", "others"))
    things = TypeAdapter(family("things", needs=()))
    assert things.validate_python({"type": "wavenet"}).type == "wavenet"
    with pytest.raises(ImportError, match=naming("'other'", "broken:Record")):
        things.validate_python({"type": "unknown"})


def test_an_installed_member_that_has_the_type_of_ours_is_refused_as_soon_as_it_is_imported(folder, monkeypatch):
    for name in ("ours", "theirs"):
        (folder / f"{name}.py").write_text(RECORD.replace("KIND", "taken"))
    install(monkeypatch, ("theirs", "theirs:Record", "things"))
    things = family("things", {"taken": "ours:Record"}, needs=())
    assert type(TypeAdapter(things).validate_python({"type": "taken"})).__module__ == "ours"
    for ask in (lambda: TypeAdapter(things).validate_python({"type": "theirs"}), lambda: members(things)):
        with pytest.raises(PartError, match=naming("'theirs'", "theirs:Record", "'taken'", "Record")):
            ask()


def families_of_the_package() -> Iterator[tuple[str, Any]]:
    """Every family of `dp_prior` with the place where its table stands."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r"^(\w+) = family\($", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{module}.{name}", vars(importlib.import_module(module))[name]


def test_every_place_in_the_table_of_a_family_holds_the_record_of_that_type():
    tables = dict(families_of_the_package())
    assert len(tables) >= 13
    faults = []
    for where, annotation in tables.items():
        (table,) = families_in(annotation)
        for kind, place in table.places.items():
            record = table.record(kind)
            if get_args(record.model_fields["type"].annotation) != (kind,):
                faults.append(f"{where}: {place} has the type {record.model_fields['type'].default!r}, not {kind!r}")
            if f"{record.__module__}:{record.__qualname__}" != place:
                faults.append(f"{where}: {place} is {record.__module__}:{record.__qualname__}")
            for attribute in table.needs:
                if attribute not in record.model_fields and not hasattr(record, attribute):
                    faults.append(f"{where}: {place} has no {attribute}")
    assert_none(faults)


@pytest.mark.slow
def test_sixty_thousand_faulty_members_read_the_metadata_once(monkeypatch):
    """One by one, each fault is a type that no member has; asked anew, entry points would take 600 s."""
    calls = Counter()

    def counted(name, call):
        def count(*values, **options):
            calls[name] += 1
            return call(*values, **options)

        return count

    monkeypatch.setattr("dp_prior.files.entry_points._installed", counted("metadata", lambda: EntryPoints(())))
    monkeypatch.setattr(families, "SchemaValidator", counted("union", families.SchemaValidator))
    things = family("things", Inside, Outside, needs=())
    holder = create_model("Holder", __base__=Config, things=(dict[str, things], ...))
    faulty = {"things": {str(number): {"type": f"kind_{number}"} for number in range(60_000)}}
    with pytest.raises(ConfigError, match=naming("kind_0", "'inside'", "'outside'")) as caught:
        holder.from_json(json.dumps(faulty))
    assert caught.value.problems[-1] == f"and {60_000 - MOST_PROBLEMS} more"
    assert calls["metadata"] <= 4 + MOST_PROBLEMS and calls["union"] == 1


def test_listeners_are_imported_by_their_call_and_called_once_whoever_declares_them(folder, monkeypatch):
    (folder / "heard.py").write_text(RECORD.replace("KIND", "heard") + "def write(*arguments):\n    return arguments\n")
    (folder / "broken.py").write_text("raise SystemExit(3)")
    places = (("page", "heard:write"), ("again", "heard:write"), ("zebra", "broken:write"))
    install(monkeypatch, *((name, place, "reports") for name, place in places))
    functions = listeners("reports")
    assert imported == [] and len(functions) == 2 and listeners("others") == []
    assert functions[0]("run", "finished") == ("run", "finished")
    with pytest.raises(ImportError, match=naming("'zebra'", "broken:write", "SystemExit(3)")):
        functions[1]("run", "finished")


def test_a_type_that_no_member_has_imports_no_listener(folder, monkeypatch):
    (folder / "heard.py").write_text(RECORD.replace("KIND", "heard"))
    install(monkeypatch, ("page", "heard:write", "reports"))
    assert kinds_in(family("things", needs=())) == [] and imported == []
