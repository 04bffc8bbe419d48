"""Work that waits for another machine, such as a download: an interrupt abandons the work, and a long wait is logged.

Clients download with threads of a pool, which the pool's owner and the interpreter's exit join. Both would wait for a
server that is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_S = 5.0
_LOOK_S = 0.1
_NAME = "may be left behind"


def left_behind(
    work: Callable[[], T],
    look: Callable[[], object] = lambda: None,
    *,
    place: str | None = None,
    first_s: float = FIRST_S,
) -> T:
    """Do the work in a thread and return its result, or raise its error.

    Args:
        work: work that may end at any point with the process. After an interrupt the thread continues until then.
        look: called ten times a second; an error of this call abandons the work, like a KeyboardInterrupt.
        place: the remote place, for a line that is logged after `first_s` seconds; None logs nothing.
    """
    from concurrent.futures import Future

    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised in the caller by `outcome.result`
            outcome.set_exception(error)

    begin, is_reported = time.monotonic(), place is None
    thread = threading.Thread(target=run, name=_NAME, daemon=True)
    thread.start()
    while thread.is_alive():
        look()
        thread.join(_LOOK_S)
        if not is_reported and time.monotonic() - begin >= first_s and thread.is_alive():
            is_reported = True
            import logging

            logging.getLogger(__name__).warning("waiting for %s for %.0f s now; Ctrl-C ends the wait", place, first_s)
    return outcome.result()


def work_left_behind() -> set[threading.Thread]:
    """The threads of abandoned work, which the interpreter's exit would wait for if clients use pools."""
    return {thread for thread in threading.enumerate() if thread.name == _NAME}
