"""Stopping on request: a signal asks, the loop finishes its step, saves, and ends; a second one does not wait."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """A loop that looks at `stop_requested` after every step."""

    stop_requested: bool


@contextlib.contextmanager
def stop_on_signal(loop: Stoppable) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGUSR1 into a request while inside. The handler only sets a flag.

    A second signal raises KeyboardInterrupt at once. Outside the main thread, where no handler can be set, it does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if loop.stop_requested:
            raise KeyboardInterrupt
        loop.stop_requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
