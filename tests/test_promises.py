"""Every promise has a test, every test keeps a promise that was made, and the page says what the tests said."""

import pytest

from tests import promises
from tests.faults import assert_none


@pytest.fixture(scope="module")
def book() -> dict:
    return promises.book()


@pytest.fixture(scope="module")
def keepers() -> dict[str, list[str]]:
    return promises.keepers()


def test_every_promise_has_a_test(book, keepers):
    kept = {name for name, tests in keepers.items() if tests} | {*book["open"]}
    unkept = {name: promise for name, promise in book["promises"].items() if name not in kept}
    assert_none(f"no test is marked with promise({name!r}): {promise}" for name, promise in unkept.items())


def test_tests_and_faults_name_promises_that_were_made(book, keepers):
    assert set(keepers) == set(book["promises"])
    assert {name for _, names in book["faults"] for name in names} <= set(book["promises"])
    assert set(book["open"]) <= set(book["promises"])


def test_the_page_counts_tests_that_exist(keepers):
    known = {test for tests in keepers.values() for test in tests}
    assert set(promises.read_results()["tests"]) <= known, "run: pytest --promises"


def test_the_page_is_current():
    text = promises.PAGE.read_text(encoding="utf-8")
    assert promises.page(text) == text, "docs/reliability.md is not what the notes say; run: python -m tests.promises"


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ({}, "not run"),
        ({"a": "passed", "b": "passed"}, "kept"),
        ({"a": "passed", "b": "skipped"}, "kept where it was run"),
        ({"a": "passed"}, "kept where it was run"),
        ({"a": "skipped"}, "not run"),
        ({"a": "passed", "b": "failed"}, "**broken**"),
    ],
)
def test_one_failure_breaks_a_promise_and_what_was_not_run_does_not_count(outcomes, verdict):
    assert promises.verdict(["a", "b"], outcomes) == verdict
    assert promises.verdict([], outcomes) == "open: no test yet"
