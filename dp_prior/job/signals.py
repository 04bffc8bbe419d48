"""Stopping on request: a signal asks, the loop finishes its step, saves, and ends; a second Ctrl-C does not wait."""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from dp_prior.job.stop import Stop

ECHO_S = 0.4  # `timeout` and its like pass on the Ctrl-C that the terminal has sent to everybody already
LAUNCHER_ECHO_S = 2.0  # and so does a launcher, who takes longer


@contextlib.contextmanager
def stop_on_signal(stop: Stop, echo_s: float = ECHO_S) -> Iterator[None]:
    """Turn SIGINT, SIGTERM, SIGUSR1 and SIGHUP into a request while inside. The handler only takes a note.

    A second SIGINT raises KeyboardInterrupt at once; the others may come as often as schedulers please. SIGHUP, which a
    closed terminal sends, stays ignored where `nohup` has it so.
    Outside the main thread, where no handler can be set, it does nothing.

    Args:
        echo_s: a SIGINT so soon after the first is taken for the same one; `LAUNCHER_ECHO_S` under a launcher.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def ask(number: int, frame: FrameType | None) -> None:
        stop.ask(signal.Signals(number).name)
        if number == signal.SIGINT:
            if first and time.monotonic() - first[0] >= echo_s:
                raise KeyboardInterrupt
            first.append(time.monotonic())

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_repeats_at_exit() -> None:
    """Let the process keep its exit code when a scheduler repeats itself while the interpreter ends."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        atexit.register(signal.signal, number, signal.SIG_IGN)
