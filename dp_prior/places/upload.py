"""Savers that send checkpoints away: training hands over a few links and goes on; everything else happens elsewhere.

A thread looks after the queue on disk, and one worker process at a time does the sending, under a deadline, because
the clients of remote places may wait for ever. Whatever goes wrong there is counted, told once and tried again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from dp_prior.config import Config
from dp_prior.places.delivery import Destination
from dp_prior.places.local import MODEL_FILES
from dp_prior.places.outbox import OUTBOX, Outbox
from dp_prior.places.saver import Durable

FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 600.0
LONG_WAIT_S = 5.0  # whoever waits for longer is told
_BUSY = "another process, perhaps the training itself, is about to send it"
COMMITS = 2  # that one delivery needs at most: the files, and the pointer

log = logging.getLogger(__name__)


class UploadConfig(Config):
    """What all savers have in common that send checkpoints to another machine."""

    save_best: bool = True
    """Send each new best checkpoint."""

    save_latest: bool = False
    """Send each checkpoint that the run saves, so that it can go on from there on another machine."""

    save_type: Literal["checkpoint", "model"] = "checkpoint"
    """`checkpoint` sends everything needed to continue, `model` only what is needed to act."""

    deadline_s: float = Field(default=900.0, gt=0)
    """Seconds after which an attempt is killed and tried again; the files that had arrived need not be sent again."""

    drain_s: float = Field(default=60.0, ge=0)
    """At the end of the run wait at most so many seconds for what is not up yet; the rest stays in the outbox."""

    max_commits_per_hour: int = Field(default=60, ge=2)
    """Changes made to the remote place in an hour; one delivery takes two. What is newer replaces what waits."""

    offline: bool = False
    """Only queue: no socket is opened until `dp-prior push` is called."""

    @model_validator(mode="after")
    def _sends_something(self) -> UploadConfig:
        if not self.save_best and not self.save_latest:
            raise ValueError("a saver needs save_best or save_latest; the run keeps its own checkpoints")
        return self

    @property
    def in_process(self) -> bool:
        """Whether the place exists in this process only, so that no worker could reach it."""
        return False

    @property
    def place(self) -> str:
        """The remote place, for messages and for the name of its outbox."""
        raise NotImplementedError

    def destination(self) -> Destination:
        """The one who sends; made in the worker process."""
        raise NotImplementedError

    def create(self, directory: Path, monitor: str | None) -> UploadSaver:
        """A saver for the run in `directory`; it starts to send what an earlier process has left."""
        saver = UploadSaver(self, directory)
        if not self.offline:
            saver.courier.start()
        return saver

    def outbox(self, directory: Path) -> Outbox:
        """The queue of the run in `directory` for this place."""
        return Outbox(directory / OUTBOX / re.sub(r"[^A-Za-z0-9.-]+", "_", self.place))


class UploadSaver:
    """Puts checkpoints into the outbox of a place; see `UploadConfig`."""

    def __init__(self, record: UploadConfig, directory: Path):
        self.name = record.place
        self.patience_s = record.drain_s
        self.record = record
        self.outbox = record.outbox(directory)
        self.courier = Courier(record, self.outbox)

    def save(self, durable: Durable) -> None:
        """Queue it. No network is touched here."""
        wanted = {
            "latest": self.record.save_latest and durable.is_latest,
            "best": self.record.save_best and durable.is_best,
        }
        for kind in (kind for kind, is_wanted in wanted.items() if is_wanted):
            self._put(kind, durable.directory)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: show pictures and scores of its best checkpoint beside it."""
        if self.record.save_best:
            self._put("best", directory, media=media, scores=scores)

    def _put(self, kind: str, directory: Path, **card: Any) -> None:
        files = MODEL_FILES if self.record.save_type == "model" else None
        self.outbox.put(kind, directory, files=files, **card)
        self.courier.wake()

    def close(self, leave: threading.Event) -> list[str]:
        """Send what waits, for a limited time. Returns a line for each checkpoint that is not up yet."""
        return self.courier.close(leave)


@dataclass
class Report:
    """How an attempt ended.

    Attributes:
        trouble: None if all went well; else see `dp_prior.places.delivery.Trouble`.
        commits: made or at least begun.
        remark: why the best that was there stayed, None if it did not.
    """

    message: str
    trouble: str | None = None
    retry_after: float | None = None
    commits: int = 0
    remark: str | None = None


@dataclass
class Schedule:
    """When to try again; nothing but arithmetic. Times are those of the wall clock, so that they survive a restart."""

    max_commits_per_hour: int
    failures: int = 0
    not_before: float = 0.0
    is_blocked: bool = False
    commits: list[float] = field(default_factory=list)

    def wait(self, now: float) -> float | None:
        """Seconds until the next attempt; None if only a new checkpoint or a new start can help."""
        if self.is_blocked:
            return None
        recent = [moment for moment in self.commits if now - 3600 < moment <= now]
        room = self.max_commits_per_hour - COMMITS
        spent = recent[-room - 1] + 3600 - now if len(recent) > room else 0.0
        return max(0.0, self.not_before - now, spent)

    def ended(self, report: Report, now: float, dice: random.Random) -> None:
        """Take note of an attempt."""
        self.commits = [moment for moment in self.commits if now - 3600 < moment] + [now] * report.commits
        self.is_blocked = report.trouble in ("refused", "offline")
        if report.trouble is None:
            self.failures, self.not_before = 0, 0.0
            return
        self.failures += 1
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self.failures - 1, 20)) * dice.uniform(0.5, 1.5)
        self.not_before = now + max(wait if report.trouble == "unavailable" else 0.0, report.retry_after or 0.0)


class Courier:
    """Looks after one outbox: at most one attempt at a time, at the times that the schedule allows."""

    def __init__(
        self,
        record: UploadConfig,
        outbox: Outbox,
        *,
        attempt: Callable[[dict[str, Any], float], Report] | None = None,
        clock: Callable[[], float] = time.time,
        dice: random.Random | None = None,
    ):
        """
        Args:
            attempt: job and deadline in seconds -> how it ended; by default a worker process.
            clock: wall clock in seconds.
            dice: spreads the attempts of many runs.
        """
        self.record = record
        self.outbox = outbox
        self._worker = Worker()
        self._attempt = attempt or (run_here if record.in_process else self._worker.run)
        self._clock = clock
        self._dice = dice or random.Random()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._right: contextlib.ExitStack | None = None
        self._is_checked = False
        self._is_closed = False
        self._stop_at: float | None = None
        self._told: set[str] = set()
        self._outlook = f"Training goes on; checkpoints wait in {outbox.directory}"
        self.problem = ""
        self.remark: str | None = None
        state = outbox.read_state()
        self.schedule = Schedule(record.max_commits_per_hour)
        with contextlib.suppress(TypeError, ValueError):  # of an older version, or altered
            self.schedule.commits = [float(moment) for moment in state.get("commits", [])]
            self.schedule.not_before = min(float(state.get("not_before", 0.0)), clock() + 3600)

    def start(self) -> None:
        """Look after the outbox in a thread, beginning with what an earlier process has left there."""
        self._thread = threading.Thread(target=self._run, name=f"upload {self.record.place}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something new: a refusal may be over, while a pause that was asked for is not."""
        self.schedule.is_blocked = False
        self._news.set()

    def step(self) -> float | None:
        """Make at most one attempt, if one is due. Returns seconds until the next may be, None if there is none."""
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
            entry, kinds = chosen[-1].directory if chosen else None, [one.kind for one in chosen]
            report = self._attempt(_job_of(self.record, entry, kinds), self._deadline())
        self.schedule.ended(report, self._clock(), self._dice)
        self.outbox.write_state({"commits": self.schedule.commits, "not_before": self.schedule.not_before})
        if report.trouble is None or report.trouble == "damaged":
            self.outbox.remove(chosen)
        self._note(report)
        if not chosen and report.trouble is not None:
            return None  # it was only the check; the next checkpoint tries again
        return self.schedule.wait(self._clock()) if self.outbox.waiting() else None

    def drain(self, limit_s: float) -> list[str]:
        """Send what waits from this thread, for at most so long; returns a line for each checkpoint that stays."""
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
                    log.warning("%s: the next attempt is in %.0f s", self.record.place, wait)
                time.sleep(wait)
        finally:
            self._release()
        return self.missing()

    def close(self, leave: threading.Event) -> list[str]:
        """Give the thread a limited time, at most until `leave` is set, then end it.

        Returns:
            A line for each checkpoint that is not up yet, and one if a better best stayed or the last was damaged.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop_at, end = self._clock() + self.record.drain_s, time.monotonic() + self.record.drain_s
            self._news.set()
            while thread.is_alive() and time.monotonic() < end and not leave.is_set():
                thread.join(0.1)
            self._is_closed = True
            self._worker.kill()
            self._news.set()
            thread.join(5.0)
        return [*self.missing(), *([f"{self.record.place}: {self.remark}"] if self.remark else [])]

    def missing(self) -> list[str]:
        """A line for each checkpoint that waits."""
        wait = self.schedule.wait(self._clock())
        problem = self.problem or (f"the next attempt may be in {wait:.0f} s" if wait else "")
        why = f": {problem}" if problem else ""
        return [
            f"{self.record.place}: the {entry.kind} checkpoint, of step {entry.step}, is not up yet{why}. It waits in "
            f"{self.outbox.directory}; `dp-prior push RUN` sends it"
            for entry in self.outbox.waiting()
        ]

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._news.clear()
                try:
                    wait = self.step()
                except Exception as error:  # a full disk, a directory that was removed: training does not die of it
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
        left = self.record.deadline_s if self._stop_at is None else self._stop_at - self._clock()
        return max(0.1, min(self.record.deadline_s, left))

    def _note(self, report: Report) -> None:
        """Tell of trouble once per kind and text, and once that a better best stays; the rest only to who asks."""
        if report.trouble is None:
            self.problem, self.remark = "", report.remark
            log.info("%s: %s", self.record.place, report.message)
            if report.remark and "stays" not in self._told:
                self._told.add("stays")
                log.warning("%s: %s", self.record.place, report.remark)
            return
        self.problem, outlook = report.message, self._outlook
        if report.trouble == "damaged":
            self.remark, outlook = report.message, "It is not sent"
        is_told_at_the_end = self._is_closed or (self._stop_at is not None and report.trouble in ("refused", "offline"))
        if not is_told_at_the_end and f"{report.trouble} {report.message}" not in self._told:
            self._told.add(f"{report.trouble} {report.message}")
            log.warning("%s: %s. %s", self.record.place, report.message, outlook)


class Worker:
    """One process that makes one attempt and ends: by itself, at its deadline, or with the process that started it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._is_over = False

    def run(self, job: dict[str, Any], deadline_s: float) -> Report:
        """Start it, wait for it, and kill it if it takes too long."""
        command = [sys.executable, "-m", "dp_prior.places.worker"]
        root = Path(__file__).parents[2]  # where the package is found, installed or not
        with subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the trainer alone, which then decides
        ) as process:
            self._process = process
            if self._is_over:
                process.kill()
            try:
                output, _ = process.communicate(json.dumps(job).encode(), timeout=deadline_s)
                late = ""
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                late = f"no success within {deadline_s:.0f} s"
            finally:
                process.kill()
                self._process = None
        if self._is_over:
            late = "it was not done when the run ended"
        return _read_report(output, late or f"the worker ended with code {process.returncode}")

    def kill(self) -> None:
        """End the process that runs, and any that would start."""
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()


def try_out(record: UploadConfig) -> str:
    """Whether a place may be written to, in words."""
    if record.offline:
        return "offline; `dp-prior push RUN` sends what waits"
    job = _job_of(record, None, [])
    return (run_here if record.in_process else Worker().run)(job, min(record.deadline_s, 60.0)).message


def _job_of(record: UploadConfig, entry: Path | None, kinds: list[str]) -> dict[str, Any]:
    return {
        "saver": json.loads(record.model_dump_json()),
        "entry": None if entry is None else str(entry.absolute()),
        "kinds": kinds,
        "parent": os.getpid(),
    }


def run_here(job: dict[str, Any], deadline_s: float) -> Report:
    """An attempt in this process and thread, for places that exist in this process only."""
    from dp_prior.places.worker import perform

    lines: list[bytes] = []
    perform(job, lambda line: lines.append(json.dumps(line).encode()))
    return _read_report(b"\n".join(lines), "")


def _read_report(output: bytes, otherwise: str) -> Report:
    """The worker writes a line {"commit": 1} before each commit and one with the outcome at the end."""
    commits, outcome = 0, None
    for text in output.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            commits += "commit" in line
            outcome = line if "message" in line else outcome
    if outcome is None:
        return Report(otherwise, "unavailable", commits=commits)
    return Report(outcome["message"], outcome["trouble"], outcome["retry_after"], commits, outcome["remark"])
