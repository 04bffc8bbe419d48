"""A command of an unsuitable Python ends with one line that says what to do."""

import sys

import pytest

from dp_prior.cli.interpreter import interpreter_fault
from tests.messages import told


def test_a_suitable_python_is_fine():
    assert not interpreter_fault()


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda: setattr(sys, "version_info", (3, 9, 2, "final", 0)), ("Python 3.11", "3.9.2")),
        (lambda: sys.modules.update(click=None), ("click", "dp_prior")),
    ],
)
def test_an_old_python_and_one_outside_the_environment_are_told(change, found, monkeypatch):
    monkeypatch.setattr(sys, "version_info", sys.version_info)
    monkeypatch.setitem(sys.modules, "click", sys.modules.get("click"))
    change()
    assert told(interpreter_fault(), *found, sys.executable, "source .venv/bin/activate")
