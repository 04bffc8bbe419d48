"""Work that waits for another machine, such as a download: an interrupt leaves it behind, and a long wait is logged.

Threads of a pool, which clients download with, are joined by whoever opened the pool and by the interpreter's end. Both
would wait for a server that is silent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

FIRST_S = 5.0
_LOOK_S = 0.1
_NAME = "may be left behind"

log = logging.getLogger(__name__)


def left_behind(
    work: Callable[[], T],
    look: Callable[[], object] = lambda: None,
    *,
    place: str | None = None,
    first_s: float = FIRST_S,
) -> T:
    """Do the work in a thread and return its result, or raise its error.

    Args:
        work: what may end anywhere with its process. After an interrupt its thread goes on as long as the process does.
        look: called ten times a second; an error of this call leaves the work behind, as a KeyboardInterrupt does.
        place: where the work waits, for a line that is logged after `first_s` seconds; None logs nothing.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised in the caller by `outcome.result`
            outcome.set_exception(error)

    begun, is_told = time.monotonic(), place is None
    thread = threading.Thread(target=run, name=_NAME, daemon=True)
    thread.start()
    while thread.is_alive():
        look()
        thread.join(_LOOK_S)
        if not is_told and time.monotonic() - begun >= first_s and thread.is_alive():
            is_told = True
            log.warning("waiting for %s for %.0f s now; Ctrl-C ends the wait", place, first_s)
    return outcome.result()


def work_left_behind() -> set[threading.Thread]:
    """The threads of work that goes on, which the end of the interpreter would wait for where clients use pools."""
    return {thread for thread in threading.enumerate() if thread.name == _NAME}
