"""The thread that empties an outbox: one attempt at a time, with retries, a commit limit and a bounded end.

Whatever fails here is counted, logged once and retried; training never waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dp_prior.places.outbox import Outbox
from dp_prior.places.worker import Report, Sender

FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 600.0
LONG_WAIT_S = 5.0  # `drain` logs a longer wait
COMMITS = 2  # of one delivery at most: the files, and the pointer
_BUSY = "another process, perhaps the training itself, is about to send it"

log = logging.getLogger(__name__)


@dataclass
class Schedule:
    """When to retry; pure arithmetic. Times are of the wall clock, so that they survive a restart."""

    max_commits_per_hour: int
    failures: int = 0
    not_before: float = 0.0
    is_blocked: bool = False
    commits: list[float] = field(default_factory=list)

    def wait(self, now: float) -> float | None:
        """Seconds until the next attempt; None if it needs a new checkpoint or a restart."""
        if self.is_blocked:
            return None
        recent = [moment for moment in self.commits if now - 3600 < moment <= now]
        room = self.max_commits_per_hour - COMMITS
        spent = recent[-room - 1] + 3600 - now if len(recent) > room else 0.0
        return max(0.0, self.not_before - now, spent)

    def ended(self, report: Report, now: float, dice: random.Random) -> None:
        """Record the outcome of an attempt."""
        self.commits = [moment for moment in self.commits if now - 3600 < moment] + [now] * report.commits
        self.is_blocked = report.trouble in ("refused", "offline")
        if report.trouble is None:
            self.failures, self.not_before = 0, 0.0
            return
        self.failures += 1
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self.failures - 1, 20)) * dice.uniform(0.5, 1.5)
        self.not_before = now + max(wait if report.trouble == "unavailable" else 0.0, report.retry_after or 0.0)


class Courier:
    """Uploads the entries of one outbox, when the schedule allows it."""

    def __init__(
        self,
        place: str,
        outbox: Outbox,
        sender: Sender,
        *,
        deadline_s: float,
        drain_s: float,
        max_commits_per_hour: int,
        clock: Callable[[], float] = time.time,
        dice: random.Random | None = None,
    ):
        """
        Args:
            place: for messages.
            deadline_s: seconds after which an attempt is killed.
            drain_s: seconds that `close` waits for pending uploads.
            clock: wall clock in seconds.
            dice: jitter, which spreads the attempts of many runs.
        """
        self.place = place
        self.outbox = outbox
        self.sender = sender
        self._deadline_s = deadline_s
        self._drain_s = drain_s
        self._clock = clock
        self._dice = dice or random.Random()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._right: contextlib.ExitStack | None = None
        self._is_checked = False
        self._is_closed = False
        self._stop_at: float | None = None
        self._told: set[str] = set()
        self._outlook = f"Training continues; checkpoints wait in {outbox.directory}"
        self.problem = ""
        self.remark: str | None = None
        state = outbox.read_state()
        self.schedule = Schedule(max_commits_per_hour)
        with contextlib.suppress(TypeError, ValueError):  # of an older version, or altered
            self.schedule.commits = [float(moment) for moment in state.get("commits", [])]
            self.schedule.not_before = min(float(state.get("not_before", 0.0)), clock() + 3600)

    def start(self) -> None:
        """Start the thread; it begins with the entries that an earlier process left in the outbox."""
        self._thread = threading.Thread(target=self._run, name=f"upload {self.place}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the sender for a new checkpoint. Retries a refused upload, but still honours Retry-After."""
        self.schedule.is_blocked = False
        self._news.set()

    def step(self) -> float | None:
        """Make at most one attempt, if one is due. Returns seconds until the next, None if the outbox is empty."""
        if self._right is None:
            self._right = self.outbox.exclusively()
            if self._right is None:
                self.problem = _BUSY
                return 2.0
        waiting = self.outbox.waiting()
        if not waiting and self._is_checked:
            return None
        wait = self.schedule.wait(self._clock())
        if wait != 0.0:
            return wait
        self._is_checked = True
        chosen = [entry for entry in waiting if entry.digest == waiting[0].digest]  # one checkpoint, both its kinds
        with self.outbox.sending(chosen):
            kinds = tuple(entry.kind for entry in chosen)
            report = self.sender.attempt(chosen[-1].directory if chosen else None, kinds, self._deadline())
        self.schedule.ended(report, self._clock(), self._dice)
        self.outbox.write_state({"commits": self.schedule.commits, "not_before": self.schedule.not_before})
        if report.trouble is None or report.trouble == "damaged":
            self.outbox.remove(chosen)
        self._note(report)
        if not chosen and report.trouble is not None:
            return None  # only the check failed; the next checkpoint retries
        return self.schedule.wait(self._clock()) if self.outbox.waiting() else None

    def drain(self, limit_s: float) -> list[str]:
        """Upload the outbox from the calling thread, for a limited time; returns a line for each checkpoint left."""
        self._right = self.outbox.exclusively()
        if self._right is None:
            self.problem = _BUSY
            return self.missing()
        end = self._clock() + limit_s
        self._stop_at = end
        self._outlook = f"It is tried again, for {limit_s:.0f} s at most"
        self._is_checked = True
        try:
            while (wait := self.step()) is not None and self._clock() + wait < end:
                if wait > LONG_WAIT_S:
                    log.warning("%s: the next attempt is in %.0f s", self.place, wait)
                time.sleep(wait)
        finally:
            self._release()
        return self.missing()

    def close(self, leave: threading.Event) -> list[str]:
        """Give the thread a limited time, at most until `leave` is set, then end it.

        Returns:
            A line for each checkpoint that is not sent yet, and one if a better best was kept or the last was damaged.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop_at, end = self._clock() + self._drain_s, time.monotonic() + self._drain_s
            self._news.set()
            while thread.is_alive() and time.monotonic() < end and not leave.is_set():
                thread.join(0.1)
            self._is_closed = True
            self.sender.kill()
            self._news.set()
            thread.join(5.0)
        return [*self.missing(), *([f"{self.place}: {self.remark}"] if self.remark else [])]

    def missing(self) -> list[str]:
        """A line for each checkpoint that waits."""
        wait = self.schedule.wait(self._clock())
        problem = self.problem or (f"the next attempt may be in {wait:.0f} s" if wait else "")
        why = f": {problem}" if problem else ""
        return [
            f"{self.place}: the {entry.kind} checkpoint, of step {entry.step}, is not up yet{why}. It waits in "
            f"{self.outbox.directory}; `dp-prior push RUN` sends it"
            for entry in self.outbox.waiting()
        ]

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._news.clear()
                try:
                    wait = self.step()
                except Exception as error:  # a full disk, a directory that was removed: retried, training continues
                    self._note(Report(f"{type(error).__name__}: {error}", "unavailable"))
                    wait = 60.0
                if self._stop_at is not None:
                    if wait is None or self._clock() + wait >= self._stop_at:
                        return
                    wait = min(wait, 0.5)
                self._news.wait(wait)
        finally:
            self._release()

    def _release(self) -> None:
        if self._right is not None:
            self._right.close()
            self._right = None

    def _deadline(self) -> float:
        left = self._deadline_s if self._stop_at is None else self._stop_at - self._clock()
        return max(0.1, min(self._deadline_s, left))

    def _note(self, report: Report) -> None:
        """Log each distinct error once, and once if the remote best is better than ours; the rest only at INFO."""
        if report.trouble is None:
            self.problem, self.remark = "", report.remark
            log.info("%s: %s", self.place, report.message)
            if report.remark and "stays" not in self._told:
                self._told.add("stays")
                log.warning("%s: %s", self.place, report.remark)
            return
        self.problem, outlook = report.message, self._outlook
        if report.trouble == "damaged":
            self.remark, outlook = report.message, "It is not sent"
        is_told_at_the_end = self._is_closed or (self._stop_at is not None and report.trouble in ("refused", "offline"))
        if not is_told_at_the_end and f"{report.trouble} {report.message}" not in self._told:
            self._told.add(f"{report.trouble} {report.message}")
            log.warning("%s: %s. %s", self.place, report.message, outlook)
