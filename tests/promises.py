"""Which test keeps which promise, what became of it, and the tables of docs/reliability.md that are made of that.

`@pytest.mark.promise("A1", "A5")` on a test says which promises of tests/promises.json it keeps. `pytest --promises`
adds what became of these tests to docs/reliability.json; `python -m tests.promises` writes the tables from it.
"""

from __future__ import annotations

import ast
import functools
import json
import platform
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
RESULTS = TESTS.parent / "docs" / "reliability.json"
PAGE = TESTS.parent / "docs" / "reliability.md"
_OUTCOMES = pytest.StashKey[dict[str, str]]()
_WORST = ("passed", "skipped", "failed")


def book() -> dict:
    """The promises, the faults and the list of promises that may still lack a test."""
    return json.loads((TESTS / "promises.json").read_text(encoding="utf-8"))


@functools.cache
def keepers() -> dict[str, list[str]]:
    """For each promise the tests marked with it, as `tests/file.py::name`, read from the sources."""
    found: dict[str, list[str]] = {name: [] for name in book()["promises"]}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "mark.promise" in source else ():
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
                    for argument in decorator.args:
                        name = ast.literal_eval(argument)
                        found.setdefault(name, []).append(f"{path.relative_to(TESTS.parent).as_posix()}::{node.name}")
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promises", action="store_true", help="note in docs/reliability.json which promises are kept")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(*ids): this test keeps these promises of tests/promises.json")
    config.stash[_OUTCOMES] = {}
    config.pluginmanager.register(_Notes(config), "promise-notes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.iter_markers("promise")):
            item.user_properties.append(("promise", item.nodeid.partition("[")[0]))


class _Notes:
    """Of all cases and phases of a test the worst counts."""

    def __init__(self, config: pytest.Config):
        self._outcomes = config.stash[_OUTCOMES]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, test in report.user_properties:
            if key == "promise" and (report.when == "call" or report.outcome != "passed"):
                known = self._outcomes.get(test, "passed")
                self._outcomes[test] = max(known, report.outcome, key=_WORST.index)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.getoption("promises") or hasattr(session.config, "workerinput"):
        return
    notes = read_results()
    known = {test for tests in keepers().values() for test in tests}  # others were renamed or removed
    found = notes["tests"] | session.config.stash[_OUTCOMES]
    notes["tests"] = {test: outcome for test, outcome in sorted(found.items()) if test in known}
    notes["on"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    RESULTS.write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")


def read_results() -> dict:
    """`tests`: outcome by test; `on`: the machine."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"tests": {}, "on": "nothing yet"}


def verdict(tests: list[str], outcomes: dict[str, str]) -> str:
    """What the tests of a promise say together."""
    found = {outcomes.get(test, "not run") for test in tests}
    if not tests:
        return "open: no test yet"
    if "failed" in found:
        return "**broken**"
    if found == {"passed"}:
        return "kept"
    return "kept where it was run" if "passed" in found else "not run"


def tables() -> dict[str, str]:
    """The generated parts of the page by name."""
    notes, kept, the_book = read_results(), keepers(), book()
    outcomes = notes["tests"]
    words = {"kept": "survives", "kept where it was run": "survives where it was run", "**broken**": "**loses**"}
    scores = ["| fault | dp_prior | promises |", "|---|---|---|"]
    for fault, names in the_book["faults"]:
        tests = [test for name in names for test in kept[name]]
        said = "open: no test yet" if not all(kept[name] for name in names) else verdict(tests, outcomes)
        scores.append(f"| {fault} | {words.get(said, said)} | {', '.join(names)} |")
    promises = ["| | promise | | tests |", "|---|---|---|---|"]
    for name, text in the_book["promises"].items():
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in dict.fromkeys(kept[name]))
        promises.append(f"| {name} | {text} | {verdict(kept[name], outcomes)} | {tests} |")
    counts = {outcome: list(outcomes.values()).count(outcome) for outcome in _WORST}
    counted = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return {
        "run": f"Last noted: {counted}; on {notes['on']}.",
        "scoreboard": "\n".join(scores),
        "promises": "\n".join(promises),
    }


def page(text: str) -> str:
    """The page with its generated parts, between `<!-- NAME -->` and `<!-- /NAME -->`, made anew."""
    for name, content in tables().items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert begin and end, f"{PAGE} has no place for {name}"
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
