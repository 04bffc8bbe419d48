"""Threads and log records of a test alone: a thread that an earlier test left may speak or end at any time."""

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

_FINAL_WORDS = ("was destroyed but it is pending", "exception was never retrieved")
_EARLIER = pytest.StashKey[weakref.WeakSet[threading.Thread]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the threads of earlier tests; a server of a module is one, from its second test on."""
    item.stash[_EARLIER] = weakref.WeakSet(set(threading.enumerate()) - {threading.main_thread()})


@pytest.fixture
def own_threads(request: pytest.FixtureRequest) -> Callable[[str], list[str]]:
    """`own_threads("frames")` -> names that begin so, of the threads that began since this test did."""

    def names(prefix: str) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in request.node.stash[_EARLIER]]
        return [thread.name for thread in threads if thread.name.startswith(prefix)]

    return names


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """The log without records of earlier tests: neither of their threads nor of garbage that they left."""
    earlier = request.node.stash[_EARLIER]

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier and not _is_of_garbage(record)

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


def _is_of_garbage(record: logging.LogRecord) -> bool:
    """Whether a finalizer logs the record, which runs at any later time; those of asyncio have no frame."""
    if record.name == "asyncio" and any(words in record.getMessage() for words in _FINAL_WORDS):
        return True
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
