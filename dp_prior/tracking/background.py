"""Loggers behind a queue and a thread, which disturb the run neither by exceptions nor by hanging."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

from dp_prior.tracking.isolation import Isolated, Message

FAREWELL_S = 1.0
SLOW_CALL_S = 60.0  # a call that takes longer is reported


class Background(Isolated):
    """An isolated part behind a queue: `call` returns at once; calls are made in order.

    The thread is a daemon, so a call that never returns blocks neither the run nor the exit. Only this thread calls the
    part: first with the message of `begin`, repeated until the call succeeds.
    """

    def __init__(self, part: Any, title: str, *, size: int, **isolation: Any):
        """
        Args:
            size: maximum number of waiting calls; further calls are dropped and counted.
            isolation: arguments of `Isolated`.
        """
        super().__init__(part, title, **isolation)
        self._size = size
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # None ends the queue
        self._is_closing = threading.Event()
        self._since: float | None = None  # when the current call began
        self._is_given_up = False
        self.thread: threading.Thread | None = None

    def begin(self, message: Message) -> None:
        """Start the thread; delivers this message before messages already queued."""
        self.thread = threading.Thread(target=self._work, args=(message,), name=self.title, daemon=True)
        self.thread.start()

    def call(self, message: Message, *, insist: bool = False) -> bool:
        """Queue a call; `insist` ignores the limit of the queue. Always True, since nothing has failed yet."""
        if self._is_closing.is_set():
            return True
        is_full = self._waiting.qsize() >= self._size and not insist
        if is_full:
            self.dropped += 1
        else:
            self._waiting.put(message)
        since = self._since
        if since is not None and self.clock() - since > SLOW_CALL_S:
            self.tell("slow", f"{self.title} has not answered for {SLOW_CALL_S:g} s; calls wait. Training continues.")
        if is_full:
            self.tell("full", f"{self.title} is behind by {self._size:,} calls; more are dropped. Training continues.")
        return True

    def finish(self) -> None:
        """Close the part after the queued calls. Returns at once."""
        self._is_closing.set()
        self._waiting.put(None)

    def give_up(self) -> None:
        """Abandon the part and the queue, unless the thread has ended."""
        if self.thread is None or not self.thread.is_alive():
            return
        self._is_given_up = True
        self._drop_waiting()
        self._waiting.put(None)
        with contextlib.suppress(Exception):  # already counted as abandoned
            self.part.abandon()
        self.thread.join(FAREWELL_S)  # so that the thread does not end during the interpreter's teardown

    def summary(self) -> str | None:
        """See `Isolated`; also reports that the part was abandoned."""
        line = super().summary()
        if self._is_given_up:
            line = f"{line or self.title}; it did not finish in time at the end and was abandoned"
        return line

    def _work(self, message: Message | None) -> None:
        has_begun = False
        while message is not None:
            was_muted = self.is_muted
            if self._deliver(message):
                has_begun = True
            elif was_muted and self._is_closing.is_set():
                break
            self._is_closing.wait(self.pause_s)  # while muted
            message = self._waiting.get() if has_begun else message
        if has_begun:
            self._deliver(lambda part: part.close())
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.dropped += self._waiting.get_nowait() is not None

    def _deliver(self, message: Message) -> bool:
        self._since = self.clock()
        try:
            return super().call(message, insist=True)
        except BaseException as error:  # a client that calls sys.exit must not end the process
            self.note(f"{type(error).__name__}: {error}")
            return False
        finally:
            self._since = None
