"""Every promise has a test, every test keeps a promise that was made, and the page says what the tests said."""

import pytest

from tests import promises

BOOK, KEEPERS = promises.book(), promises.keepers()


@pytest.mark.parametrize("name", BOOK["promises"])
def test_a_promise_has_a_test(name):
    assert KEEPERS[name] or name in BOOK["open"], f"no test is marked with promise({name!r}): {BOOK['promises'][name]}"


def test_tests_and_faults_name_promises_that_were_made():
    assert set(KEEPERS) == set(BOOK["promises"])
    assert {name for _, names in BOOK["faults"] for name in names} <= set(BOOK["promises"])
    assert set(BOOK["open"]) <= set(BOOK["promises"])


def test_the_page_counts_tests_that_exist():
    known = {test for tests in KEEPERS.values() for test in tests}
    assert set(promises.read_results()["tests"]) <= known, "run: pytest --promises"


def test_the_page_is_current():
    text = promises.PAGE.read_text(encoding="utf-8")
    assert promises.page(text) == text, "docs/reliability.md is not what the notes say; run: python -m tests.promises"


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ({}, "not run"),
        ({"a": "passed", "b": "passed"}, "kept"),
        ({"a": "passed", "b": "skipped"}, "kept where it was run"),
        ({"a": "passed"}, "kept where it was run"),
        ({"a": "skipped"}, "not run"),
        ({"a": "passed", "b": "failed"}, "**broken**"),
    ],
)
def test_one_failure_breaks_a_promise_and_what_was_not_run_does_not_count(outcomes, said):
    assert promises.verdict(["a", "b"], outcomes) == said
    assert promises.verdict([], outcomes) == "open: no test yet"
