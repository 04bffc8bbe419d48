"""Isolation of loggers and savers: a part that fails or hangs does not disturb the run.

`Isolated` calls a part synchronously and catches exceptions: failures are counted; a part that keeps failing is muted
and retried with exponential backoff. `background.py` survives a part that hangs. Messages are functions
of the part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dp_prior.files.printable import redact

LONGEST_PAUSE_S = 600.0


Message = Callable[[Any], None]


class Isolated:
    """A part whose exceptions are caught."""

    def __init__(
        self,
        part: Any,
        title: str,
        *,
        report: Callable[[str, Any], None],
        max_failures: int | None = None,
        retry_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            title: how messages name the part.
            report: called with (message, self) for each new kind of failure.
            max_failures: failures in a row after which the part is muted; None for never.
            retry_s: seconds until a muted part is retried; doubles with each failure.
        """
        self.part = part
        self.title = title
        self._report = report
        self._max_failures = max_failures
        self._retry_s = retry_s
        self.clock = clock
        self._in_a_row = 0
        self._muted_until = float("-inf")
        self._last = ""
        self._reported: set[str] = set()
        self._remarks: list[str] = []
        self.failures = 0
        self.dropped = 0

    @property
    def is_muted(self) -> bool:
        """Whether the part has failed too often in a row."""
        return self._max_failures is not None and self._in_a_row >= self._max_failures

    @property
    def pause_s(self) -> float:
        """Seconds until a muted part is retried; 0 if the part may be called now."""
        return max(0.0, self._muted_until - self.clock()) if self.is_muted else 0.0

    def begin(self, message: Message) -> None:
        """The first call."""
        self.call(message)

    def call(self, message: Message, *, insist: bool = False) -> bool:
        """Call the part; False if the call fails. A call to a muted part is only counted, unless `insist` is set."""
        if self.pause_s and not insist:
            self.dropped += 1
            return True
        try:
            message(self.part)
        except Exception as error:  # an error of a logger or saver must not end the training
            self.note(f"{type(error).__name__}: {error}")
            return False
        self._in_a_row = 0
        return True

    def note(self, problem: str) -> None:
        """Count a failure and report it, once for each type of exception."""
        self.failures += 1
        self._in_a_row += 1
        self._last = redact(problem)
        muted = ""
        if self.is_muted:
            pause = min(LONGEST_PAUSE_S, self._retry_s * 2.0 ** min(60, self._in_a_row - self._max_failures))
            self._muted_until = self.clock() + pause
            muted = f"; after {self._in_a_row} failures in a row it is tried again in {pause:g} s, then ever less often"
        self.tell(
            f"{self._last.partition(':')[0]}, muted {self.is_muted}",
            f"{self.title} failed: {self._last}{muted}. Training continues.",
        )

    def tell(self, kind: str, message: str) -> None:
        """Report a message, once for each kind."""
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(message, self)

    def remark(self, message: str) -> None:
        """Report a message that is not a failure, now and at the end of the run."""
        if message not in self._reported:
            self._remarks.append(message)
        self.tell(message, message)

    def summary(self) -> str | None:
        """One line for the end of the run; None if nothing failed."""
        if not self.failures and not self.dropped:
            return "; ".join(self._remarks) or None
        counts = []
        if self.failures:
            counts.append(f"failed {self.failures} time{'s' if self.failures != 1 else ''}")
        if self.dropped:
            counts.append(f"missed {self.dropped:,} call{'s' if self.dropped != 1 else ''}")
        last = [f"last: {self._last}"] if self._last else []
        return "; ".join([f"{self.title} {' and '.join(counts)}", *last, *self._remarks])
