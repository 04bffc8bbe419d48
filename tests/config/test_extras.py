"""A missing optional package is an error that names the extra; other errors pass as they are."""

import ast
import re
import sys
from pathlib import Path

import pytest

from dp_prior.config.extras import TOO_NEW, needing
from tests.messages import naming

SETUP = Path(__file__).parent.parent.parent / "setup.py"


def test_a_missing_package_is_named_with_its_reason_and_its_extra():
    with pytest.raises(ImportError) as caught, needing("clip", "it needs nothing_of_this_name"):
        import nothing_of_this_name  # noqa: F401
    said = str(caught.value)
    assert said.startswith("it needs") and said.endswith('pip install "dp_prior[clip]"')
    assert "No module named 'nothing_of_this_name'" in said and caught.value.__cause__ is not None


def test_what_is_installed_is_imported_and_errors_inside_it_pass():
    with needing("clip", "numbers"):
        import json
    assert json.loads("1") == 1
    with pytest.raises(ZeroDivisionError), needing("clip", "numbers"):
        raise ZeroDivisionError


def test_where_an_extra_installs_nothing_the_error_names_the_python_that_it_needs(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14))
    with (
        pytest.raises(ImportError, match=naming("nothing_of_this_name", "3.14", "3.13", "dp_prior[aloha]")),
        needing("aloha", "the world needs another package"),
    ):
        import nothing_of_this_name  # noqa: F401
    monkeypatch.setattr(sys, "version_info", (3, 12))
    with pytest.raises(ImportError) as caught, needing("aloha", "the world needs another package"):
        import nothing_of_this_name  # noqa: F401
    assert "Python" not in str(caught.value)


def test_the_pythons_that_are_too_new_for_an_extra_are_those_of_its_requirements():
    extras = {}
    for statement in ast.parse(SETUP.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="EXTRAS" | "APART")], value=value):
                extras |= ast.literal_eval(value)
    limits = {
        (extra, tuple(map(int, limit)))
        for extra, requirements in extras.items()
        for limit in re.findall(r'python_version < "(\d+)\.(\d+)"', " ".join(requirements))
    }
    assert limits == set(TOO_NEW.items())
