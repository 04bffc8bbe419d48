"""`pytest --within SECONDS`: begin no test after that time. What was not reached is counted, and is no failure."""

import time

import pytest

_END = pytest.StashKey[float]()
_REASON = "not reached in time"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="begin no test after this time; no failure")


def pytest_configure(config: pytest.Config) -> None:
    within = config.getoption("within")
    config.stash[_END] = float("inf") if within is None else time.monotonic() + within


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[_END]:
        pytest.skip(_REASON)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count these beside the tests that are skipped for what this machine lacks."""
    if report.skipped and isinstance(report.longrepr, tuple) and _REASON in report.longrepr[2]:
        return f"{_REASON} (no failure)", "-", "NOT REACHED"
    return None
