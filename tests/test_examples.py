"""What Hypothesis draws is the same in every worker, after whatever tests."""

import importlib.util
import sys

import hypothesis
from hypothesis import strategies as st


def drawn():
    """What a test of integers and texts draws."""
    values = []

    @hypothesis.settings(max_examples=100, derandomize=True)
    @hypothesis.given(st.integers(), st.text())
    def note(number, text):
        values.append((number, text))

    note()
    return values


def test_examples_do_not_depend_on_the_modules_that_are_imported(tmp_path, monkeypatch):
    before = drawn()
    path = tmp_path / "odd_constants.py"
    path.write_text("".join(f"A{n} = {10**7 + n}\nB{n} = 'text {n}'\n" for n in range(400)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    monkeypatch.setitem(sys.modules, path.stem, importlib.util.module_from_spec(spec))
    assert len(set(before)) > 75 and drawn() == before
