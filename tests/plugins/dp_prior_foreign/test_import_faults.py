"""Why a module of the user cannot be imported, and at which line."""

import importlib

import pytest

from dp_prior_foreign.import_faults import import_fault
from tests.messages import told


@pytest.fixture
def fault(tmp_path, monkeypatch):
    """What is told of a module with this text."""
    monkeypatch.syspath_prepend(tmp_path)

    def line(name, text=None):
        if text is not None:
            (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(BaseException) as caught:  # noqa: PT011 (of any kind, as a user's module raises)
            importlib.import_module(name)
        return import_fault(name, caught.value)

    return line


def test_a_module_that_is_missing_is_told_from_one_that_imports_a_missing_one(fault, tmp_path):
    assert told(fault("parts_missing"), "my_parts") and told(fault("parts.missing"), "my_parts")
    output = fault("parts_importing", "import json\nimport no_such_package\n")
    assert told(output, "ModuleNotFoundError", "no_such_package", f"{tmp_path / 'parts_importing.py'}, line 2")


def test_the_place_is_the_last_line_of_the_user(fault, tmp_path):
    """Not a line of the packages that raise, nor of Python's own machinery of imports."""
    lines = [
        "from dp_prior.config import Config",
        "class Part(Config):",
        "    width: int",
        "Part.from_json('{}', source='')",
    ]
    assert told(fault("parts_wrong", "\n".join(lines)), "ConfigError", f"{tmp_path / 'parts_wrong.py'}, line 4")
    assert told(fault("parts_unread", "width = (\n"), "SyntaxError", "parts_unread.py")
