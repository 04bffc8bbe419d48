"""Attempts: repeats an attempt while a server is away, and logs since when and why the server does not answer.

A robot gets no new actions meanwhile, so its operator must not wait for the end of the patience to learn the reason.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger(__name__)

TELL_S = 1.0
"""Seconds of silence after which the log says so. A server whose last answer took longer than half of this gets twice
the time of that answer."""

LONGEST_PAUSE_S = 1.0
"""Seconds between two attempts at most."""


class FailedAttempt(Exception):
    """An attempt failed because of the server or the line. Attributes: is_final: whether a repetition would fail."""

    def __init__(self, reason: str, is_final: bool = False):
        super().__init__(reason)
        self.is_final = is_final


class Attempts:
    """The attempts of one client to get an answer from its server.

    Logged are: the first failure at once, silence after `TELL_S`, both again at doubling intervals, and the first
    answer after them.
    """

    def __init__(
        self,
        url: str,
        patience_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """
        Args:
            url: of the server, for messages.
            patience_s: seconds of attempts before giving up; 0 for one attempt.
            timeout_s: seconds after which an attempt should end by itself.
        """
        self._url, self._patience_s, self._timeout_s = url, patience_s, timeout_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()  # of the outage, which the watching thread notes too
        self._since: float | None = None
        self._reason = ""
        self._next_line = 0.0
        self._answer_s = 0.0

    @property
    def trouble(self) -> str | None:
        """Since when and why the server does not answer, in one line; None while it answers."""
        since = self._since
        if since is None:
            return None
        return f"no answer from {self._url} for {self._clock() - since:.1f} s: {self._reason}"

    def persist(self, attempt: Callable[[], Any], abandon: Callable[[], None]) -> Any:
        """The result of the first attempt that succeeds.

        Args:
            attempt: raises `FailedAttempt` while the server is away.
            abandon: called in another thread to end an attempt that does not end by itself, such as a blocked send.

        Raises:
            ConnectionError: the patience is over, or an attempt failed finally.
            Exception: any other error of the attempt, at once.
        """
        deadline, pause_s = self._clock() + self._patience_s, 0.05
        while True:
            start = self._clock()
            try:
                with self._watched(start, abandon):
                    answer = attempt()
            except FailedAttempt as failure:
                if failure.is_final or self._clock() + pause_s > deadline:
                    raise ConnectionError(f"no answer from {self._url}: {failure}") from failure.__cause__
                self._note(start, str(failure))
            else:
                self._answer_s = self._clock() - start
                self._end()
                return answer
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @contextlib.contextmanager
    def _watched(self, start: float, abandon: Callable[[], None]) -> Iterator[None]:
        """Inside, another thread notes silence, and abandons the attempt well after `timeout_s`."""
        has_ended = threading.Event()
        arguments = (start, has_ended, abandon, max(TELL_S, 2 * self._answer_s))
        threading.Thread(target=self._watch, args=arguments, name="attempts", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                has_ended.set()

    def _watch(self, start: float, has_ended: threading.Event, abandon: Callable[[], None], silence_s: float) -> None:
        end_s, wait_s, passed_s = self._timeout_s + silence_s, silence_s, 0.0
        while passed_s < end_s:
            if has_ended.wait(wait_s):
                return
            passed_s += wait_s
            wait_s = min(passed_s, end_s - passed_s)  # doubles what has passed
            with self._lock:
                if has_ended.is_set():
                    return
                self._tell(start, f"silent for {passed_s:g} s")
                if passed_s >= end_s:
                    abandon()  # under the lock, so that no other attempt begins meanwhile, which it would end too

    def _note(self, start: float, reason: str) -> None:
        with self._lock:
            self._tell(start, reason)

    def _tell(self, start: float, reason: str) -> None:
        """Log that there is no answer, unless the last such line is recent."""
        now = self._clock()
        if self._since is None:
            self._since, self._next_line = start, now
        self._reason = reason
        if now >= self._next_line:
            self._next_line = now + max(now - self._since, TELL_S)
            log.warning("%s; no new actions come until it answers", self.trouble)

    def _end(self) -> None:
        """The server has answered."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            log.warning("%s answers again after %.1f s", self._url, self._clock() - since)
