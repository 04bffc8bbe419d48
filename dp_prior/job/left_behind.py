"""Work that cannot look at a stop request, such as a download: it is left behind when a stop is requested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from dp_prior.job.stop import Stop, StoppedEarly

T = TypeVar("T")

_LOOK_S = 0.1


def unless_stopped(stop: Stop, work: Callable[[], T]) -> T:
    """Do the work in a thread and return its result, or raise its error.

    Args:
        work: what may end anywhere with its process. After a stop its thread goes on as long as the process does.

    Raises:
        StoppedEarly: a stop was requested before the work was done.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="download", daemon=True)
    thread.start()
    while thread.is_alive():
        if stop.is_asked():
            raise StoppedEarly(stop.reason, 0)
        thread.join(_LOOK_S)
    return outcome.result()
