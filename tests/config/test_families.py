"""A family takes records that fit it, until a configuration is read."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Literal

import pytest
from pydantic import TypeAdapter, create_model

from dp_prior.config import Config, ConfigError, PartError, family, member_of, members
from tests.config.records import Inside, Outside, Schedule
from tests.messages import naming


class SameType(Config):
    """A record whose type is taken."""

    type: Literal["inside"] = "inside"


class Untyped(Config):
    """A record that no file could name."""


def installed(monkeypatch, *names):
    """Pretend that a package names these objects of this file as members of the family `things`."""
    entries = [EntryPoint(name.lower(), f"{__name__}:{name}", "dp_prior.things") for name in names]
    monkeypatch.setattr("dp_prior.config.families._entry_points", lambda: EntryPoints(entries))


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
    with pytest.raises(
        ConfigError, match=naming("'insied'", "'inside'", "'outside'")
    ):  # a misspelt name of a known one
        holder.from_json('{"thing": {"type": "insied"}}')
    assert members(family("others", Inside, Outside)) == members(things)


def test_record_joins_a_family_by_its_decorator_before_a_configuration_is_read():
    things = family("things", Inside, needs=("width",))
    member_of(things)(Outside)
    member_of(things)(Outside)  # a module may be imported under two names
    assert members(things) == {"inside": Inside, "outside": Outside}
    member_of(things)(Outside)
    with pytest.raises(PartError, match=naming("'things'", "abc.Late", "--import")):
        member_of(things)(type("Late", (Outside,), {}))


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
    with pytest.raises(error, match=naming(*message)):
        TypeAdapter(things).validate_python({"type": "inside"})
