"""Ends of a run before its budget is spent: requests of signals and clocks, which the training loop obeys, and a lost
rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dp_prior.files.left_behind import left_behind
from dp_prior.job.deadline import Deadline

T = TypeVar("T")

REQUEST = "request"  # made in Python, by `PolicyTrainer.stop.ask`
TIME_LIMIT = "time limit"
LAUNCHER_GONE = "launcher gone"
STOP_REASONS = (REQUEST, "SIGINT", "SIGTERM", "SIGUSR1", TIME_LIMIT, LAUNCHER_GONE, "SIGHUP")
LACK_OF_TIME = (TIME_LIMIT, "SIGUSR1")  # SLURM sends SIGUSR1 ahead of the end; `train.requeue` is about these

LOST = 76  # exit code: a rank was lost
PATIENCE = 10  # times the timeout: limit of work that cannot send heartbeats, such as a save


class Abandoned(BaseException):
    """Raised on all ranks during an evaluation when a stop is requested; the next start repeats the evaluation.

    Derives from BaseException so that `except Exception` in an evaluator does not swallow it.
    """


class StoppedEarly(Exception):
    """The run was asked to stop before training began, or while a batch was on its way: nothing new can be saved.

    Attributes:
        reason: one of `STOP_REASONS`.
        rank: the rank that received the request.
    """

    def __init__(self, reason: str, rank: int):
        super().__init__(f"stopped on {reason}; the same command begins training, or resumes it at the last checkpoint")
        self.reason, self.rank = reason, rank


@dataclass(frozen=True)
class Verdict:
    """Why a run cannot go on with all its ranks.

    Attributes:
        rank: the rank to blame, the lowest if several are to blame.
        code: exit code of all ranks: of the blamed rank's error, or 76.
        message: the blamed ranks, their failure, and the phase in which each was last seen.
        reason: `rank lost`, or the reason of the blamed rank's error in `exit.json`.
        trace: the traceback of the blamed rank's error.
    """

    rank: int
    code: int
    message: str
    reason: str = "rank lost"
    trace: str | None = None


class RankLostError(RuntimeError):
    """Another rank is lost, so this rank cannot go on; `verdict` names the rank and the reason."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.message)
        self.verdict = verdict


class Stop:
    """The stop request of this process. `ask` is safe in a signal handler and in any thread.

    Attributes:
        reason: the first reason given, one of `STOP_REASONS`; None if no stop was requested.
        rank: the rank that received the request, known once the ranks have agreed.
        deadline: a near deadline requests a stop; by default there is no deadline.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.rank: int | None = None
        self.deadline = Deadline(math.inf)

    def ask(self, reason: str) -> None:
        """Request an end after the current step."""
        if self.reason is None:
            self.reason = reason

    def is_asked(self) -> bool:
        """Whether a stop was requested or the deadline is near."""
        if self.reason is None and self.deadline.is_near():
            self.reason = TIME_LIMIT
        return self.reason is not None

    def leaving(self, work: Callable[[], T]) -> T:
        """The result of work that waits for another machine, which a request leaves behind; see `left_behind`.

        Raises:
            StoppedEarly: a stop was requested before the work was done.
        """

        def look() -> None:
            if self.is_asked():
                raise StoppedEarly(self.reason, 0)

        return left_behind(work, look)

    def encode(self, rank: int) -> int:
        """The request as one integer, 0 for no request; the maximum over all ranks encodes the request of one rank."""
        return (STOP_REASONS.index(self.reason) + 1) << 32 | rank if self.is_asked() else 0

    def accept(self, code: int) -> bool:
        """Adopt the maximum of all ranks' `encode`. Returns whether to stop."""
        if code:
            self.reason, self.rank = STOP_REASONS[(code >> 32) - 1], code & 0xFFFFFFFF
        return code > 0
