"""An object of another package is taken by its attributes, and refused by the name of its maker."""

from typing import Protocol

import pytest

from dp_prior.config import PartError, made
from tests.messages import naming


class Base:
    name: str
    size = 3

    def log(self):
        """A method."""

    def _own(self):
        """No part of the interface."""


class Readable(Protocol):
    every: int

    def run(self): ...


class Maker:
    """Makes objects."""


class Alike:
    """Has what is asked for, and extends nothing."""

    name, size, log, every, run = "alike", 1, None, 5, None


@pytest.mark.parametrize("like", [Base, Readable])
def test_an_object_with_the_attributes_is_taken_whatever_it_extends(like):
    found = Alike()
    assert made(Maker(), "create", found, like) is found


def test_an_attribute_that_may_be_missing_is_not_missed():
    found = Base()
    assert made(Maker(), "create", found, Base, ("name",)) is found
    with pytest.raises(PartError, match=naming("name")):
        made(Maker(), "create", found, Base)


def test_a_method_without_return_is_named():
    with pytest.raises(
        PartError,
        match=naming(f"{__name__}.Maker.create", "None", f"{__name__}.Base", "`return`"),
    ):
        made(Maker(), "create", None, Base)


def test_what_is_missing_is_named_with_the_class_that_has_it():
    with pytest.raises(
        PartError,
        match=naming(f"{__name__}.Maker.run", "{'loss': 1}", "no every", f"{__name__}.Readable"),
    ):
        made(Maker(), "run", {"loss": 1}, Readable)
