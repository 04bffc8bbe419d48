"""Work that cannot look at a stop request, such as a download: it is left behind when a stop is requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dp_prior.files.left_behind import left_behind
from dp_prior.job.stop import Stop, StoppedEarly

T = TypeVar("T")


def unless_stopped(stop: Stop, work: Callable[[], T]) -> T:
    """Do the work in a thread and return its result, or raise its error; see `left_behind`.

    Raises:
        StoppedEarly: a stop was requested before the work was done.
    """

    def look() -> None:
        if stop.is_asked():
            raise StoppedEarly(stop.reason, 0)

    return left_behind(work, look)
