"""A command of an unsuitable Python ends with one line that says what to do."""

import sys

import pytest

from dp_prior.cli.interpreter import interpreter_fault


def test_a_suitable_python_is_fine():
    assert not interpreter_fault()


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda: setattr(sys, "version_info", (3, 9, 2, "final", 0)), "needs Python 3.11 or newer; {} is 3.9.2; run"),
        (lambda: sys.modules.update(click=None), "click, which dp_prior needs, is not installed for {}; run"),
    ],
)
def test_an_old_python_and_one_outside_the_environment_are_told(change, found, monkeypatch):
    monkeypatch.setattr(sys, "version_info", sys.version_info)
    monkeypatch.setitem(sys.modules, "click", sys.modules.get("click"))
    change()
    told = interpreter_fault()
    assert found.format(sys.executable) in told and "source .venv/bin/activate" in told
