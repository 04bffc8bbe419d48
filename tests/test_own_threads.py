"""A test reads its own log and counts its own threads, whatever earlier tests of its process have left behind."""

import asyncio
import gc
import logging
import threading
from types import SimpleNamespace

import pytest

log = logging.getLogger(__name__)


class Speaker:
    """A thread that logs a line whenever a test asks for one, as a client does that an earlier test did not close."""

    def __init__(self):
        self._asked, self._spoken = threading.Semaphore(0), threading.Semaphore(0)
        self.lines = []
        threading.Thread(target=self._speak, name="speaker", daemon=True).start()

    def _speak(self):
        while self._asked.acquire() and self.lines:
            log.error(self.lines.pop())
            self._spoken.release()

    def say(self, line):
        self.lines.append(line)
        self._asked.release()
        self._spoken.acquire()

    def close(self):
        self._asked.release()


class Garbage:
    """Logs when it is collected, and holds a future of asyncio that does."""

    def __init__(self):
        self.itself = self
        self.future = asyncio.Future(loop=SimpleNamespace(get_debug=lambda: False, call_exception_handler=report))
        self.future.set_exception(ValueError("an error that nothing awaited"))

    def __del__(self):
        log.error("was not closed")


def report(context):
    """As an event loop does."""
    logging.getLogger("asyncio").error(context["message"])


@pytest.fixture(scope="module")
def speakers():
    """Threads by the test that began them."""
    speakers = {}
    yield speakers
    for speaker in speakers.values():
        speaker.close()


@pytest.mark.parametrize("test", ["first", "second"])
def test_a_log_has_the_lines_of_this_test_and_of_its_threads_alone(test, speakers, caplog, own_threads):
    speakers[test] = Speaker()
    Garbage()
    for name, speaker in speakers.items():
        speaker.say(name)
    gc.collect()
    log.warning("main")
    assert caplog.messages == [test, "main"]
    assert own_threads("speaker") == ["speaker"]


def test_the_next_test_hears_all_again(caplog):
    assert len(caplog.handler.filters) == 1, "the filter of an earlier test is still there"
    speaker = Speaker()
    speaker.say("heard")
    speaker.close()
    assert caplog.messages == ["heard"]
