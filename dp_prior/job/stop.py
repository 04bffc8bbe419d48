"""A request to end a run before its budget is spent, and why; asked from signals and clocks, answered by the loop."""

from __future__ import annotations

from dp_prior.job.deadline import Deadline

REQUEST = "request"  # by whoever holds the trainer
TIME_LIMIT = "time limit"
LAUNCHER_GONE = "launcher gone"
REASONS = (REQUEST, "SIGINT", "SIGTERM", "SIGUSR1", TIME_LIMIT, LAUNCHER_GONE, "SIGHUP")


class Stop:
    """What was asked of this process; safe to call from a signal handler and from any thread.

    Attributes:
        reason: one of `REASONS`, the first that was given; None as long as nobody asks.
        rank: the rank that was asked, once the ranks have agreed.
        deadline: asks by itself when it is near; None for none.
    """

    def __init__(self, deadline: Deadline | None = None):
        self.reason: str | None = None
        self.rank: int | None = None
        self.deadline = deadline

    def ask(self, reason: str) -> None:
        """End the run after the step at hand."""
        if self.reason is None:
            self.reason = reason

    def is_asked(self) -> bool:
        """Whether to end; looks at the clock."""
        if self.reason is None and self.deadline is not None and self.deadline.is_near():
            self.reason = TIME_LIMIT
        return self.reason is not None

    def encode(self, rank: int) -> int:
        """As a number that ranks can take the maximum of; 0 for nothing asked."""
        return (REASONS.index(self.reason) + 1) << 32 | rank if self.is_asked() else 0

    def accept(self, code: int) -> bool:
        """Take over what the ranks agreed on. Returns whether to end."""
        if code:
            self.reason, self.rank = REASONS[(code >> 32) - 1], code & 0xFFFFFFFF
        return code > 0
