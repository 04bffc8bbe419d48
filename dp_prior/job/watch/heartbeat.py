"""The watch over ranks: each tells the others twice a second that it lives and how far it is, through the job's store.

A rank that died, hangs, was stopped, or cannot be reached any more is named, every rank writes its stacks, and the run
ends on all ranks, `timeout_s` after the last sign of life of the one that is to blame. Three things look: a thread that
talks to the store, a thread that judges and never waits for anything, and a timer of the interpreter that needs no
thread of Python's, for a rank that holds the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from dp_prior.job.signs import Abandoned
from dp_prior.job.stop import Stop

LOST = 76  # exit code: a rank was lost
_UNFORESEEN = 1  # exit code of errors without one of their own
PATIENCE = 10  # times the timeout: how long work may take that cannot say that it goes on, such as a save
_INTERVAL_S = 0.5
_SILENT_S = 4.0  # a process whose thread says nothing for so long is dead, stopped or cut off
_GRACE_S = 5.0  # how long the main thread is given to end by itself
_OF_OTHERS = re.compile(r"gloo|nccl|connection (closed|reset) by peer|process group|broken pipe|timed out", re.I)


@dataclass(frozen=True)
class Verdict:
    """Why a run cannot go on with all its ranks.

    Attributes:
        rank: the rank to blame, the first if there are several.
        code: exit code of all ranks: that of the error that one of them failed with, or 76.
        message: what happened to which rank, and where it was seen last.
        reason: `rank lost`, or what an error of that rank counts as.
        trace: the traceback of that error.
    """

    rank: int
    code: int
    message: str
    reason: str = "rank lost"
    trace: str | None = None


class RankLostError(RuntimeError):
    """Another rank is gone, so this one cannot go on; `verdict` tells which and why."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass
class _Peer:
    """What is known of another rank. Times are of this process's monotonic clock."""

    said: dict[str, Any]
    moved: float
    heard: float
    pidfd: int | None = None
    is_gone: bool = False

    def has_ended(self) -> bool:
        """Whether its process is over; False for one of another machine."""
        return self.is_gone or _has_ended(self.pidfd)

    @property
    def name(self) -> str:
        return f"(process {self.said['pid']} on {self.said['host']})" if "pid" in self.said else "(never heard of)"


class Watch:
    """Watches the ranks of a process group while inside; see the module. Every rank enters and leaves together."""

    def __init__(
        self,
        *,
        rank: int,
        ranks: int,
        timeout_s: float,
        stop: Stop,
        stacks: Path,
        explain: Callable[[BaseException], Verdict],
        last_words: Callable[[Verdict], None],
    ):
        """
        Args:
            timeout_s: a rank without a sign of life for so long is lost.
            stacks: directory for `rank_0.txt` and so on: the stacks of all threads of each rank.
            explain: what an error of this rank means for the others.
            last_words: called in a thread of its own just before this process ends without returning.
        """
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self.verdict: Verdict | None = None
        self._stop, self._explain, self._last_words = stop, explain, last_words
        self._path = stacks / f"rank_{rank}.txt"
        self._marks = self._beats = self._meetings = 0
        self._phase = "the start"
        self._busy_until = 0.0
        self._failure: dict[str, Any] | None = None
        self._is_done = False
        self._is_over = threading.Event()
        self._is_leaving = threading.Event()
        self._somebody_asks = False
        now = time.monotonic()
        self._moved = now
        self._behind: set[int] = set()  # ranks that are not farther than any other
        self._behind_since = now
        self._start_until = now + PATIENCE * timeout_s  # until the first mark it reads data and builds the model
        self._peers = {r: _Peer({}, now, now) for r in range(ranks) if r != rank}

    # what the main thread says

    def mark(self, phase: str, step: int) -> None:
        """See `signs.Watch`."""
        self._marks += 1
        self._phase = f"{phase} of step {step}"
        self._start_until = 0.0

    def beat(self) -> None:
        """See `signs.Watch`."""
        self._beats += 1
        if self._somebody_asks:
            with contextlib.suppress(dist.DistError):
                if self._way(self._meetings + 1, "leave") == "leave":
                    self._come(self._phase)
                    raise Abandoned

    def meet(self, may_leave: bool = False) -> None:
        """See `signs.Watch`. Whether all go on or all leave is decided once: by whoever writes it first.

        Without the store, which dies with torchrun, nobody waits here: the collectives that follow have their limit.
        """
        before = self._phase
        self._come(f"{before}, waiting for the others")
        with contextlib.suppress(dist.DistError):
            self._meet(self._meetings, may_leave)
        self._phase = before

    def _come(self, phase: str) -> None:
        """This rank has come to the next meeting."""
        self._meetings += 1
        self._marks += 1
        self._phase = phase

    def _meet(self, number: int, may_leave: bool) -> None:
        pause = 0.001
        if self._store.add(f"{number}/here", 1) == self.ranks:
            self._way(number, "go")
        while not self._store.check([f"{number}/way"]):
            if self.verdict is not None:
                raise RankLostError(self.verdict)
            if may_leave and self._somebody_asks:
                self._way(number, "leave")
            time.sleep(pause)
            pause = min(0.05, 2 * pause)
        if self._store.get(f"{number}/way") == b"leave":
            raise Abandoned

    def _way(self, number: int, wanted: str) -> str:
        return self._store.compare_set(f"{number}/way", "", wanted).decode()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """See `signs.Watch`; for at most `PATIENCE` times the timeout."""
        before, self._busy_until = self._busy_until, time.monotonic() + PATIENCE * self.timeout_s
        try:
            yield
        finally:
            self._busy_until = before

    # coming and going

    def __enter__(self) -> Watch:
        base = dist.distributed_c10d._get_default_store()
        number = dist.PrefixStore("dp_prior", base).add(f"watches of rank {self.rank}", 1)
        self._store = dist.PrefixStore(f"dp_prior/{number}", base)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (a crash must find it open)
            self._start = self._file.tell()  # what earlier starts have left stays
        except OSError:
            self._file = sys.__stderr__
        faulthandler.enable(self._file)
        talk = self._store.clone() if hasattr(self._store, "clone") else self._store
        self._threads = [
            threading.Thread(target=self._talk, args=(talk,), name="watch-talk", daemon=True),
            threading.Thread(target=self._judge, name="watch-judge", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """All leave together.

        Raises:
            RankLostError: instead of the error that the loss of another rank has caused.
        """
        lost = None
        try:
            if error is None:
                lost = self._meet_last()
            elif not self._is_leaving.is_set():
                lost = self._tell(error)
            self._is_leaving.set()
            self._is_done = True
            self._is_over.set()
            self._threads[0].join(2.0)  # it passes on the last news before it ends
        finally:
            self._close()
        if lost is not None:
            raise RankLostError(lost) from error

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others an error at once, before anything is closed; raises as leaving does."""
        try:
            yield
        except BaseException as error:
            lost = self._tell(error)
            if lost is not None:
                raise RankLostError(lost) from error
            raise

    def _meet_last(self) -> Verdict | None:
        try:
            self.meet()
        except RankLostError as error:
            return error.verdict
        return None

    def _tell(self, error: BaseException) -> Verdict | None:
        """Pass an error on to the other ranks, or find out which of them has caused it."""
        self._is_leaving.set()
        if isinstance(error, RankLostError):
            self._write_stacks(error.verdict)
            return None
        if self._is_of_others(error):
            lost = self._await_verdict(error)
            self._write_stacks(lost)
            return lost
        found = self._explain(error)
        self._failure = vars(found)
        self._write_stacks(found)
        return None

    def _is_of_others(self, error: BaseException) -> bool:
        if self.verdict is not None or isinstance(error, dist.DistError):
            return True
        return type(error) is RuntimeError and _OF_OTHERS.search(str(error)) is not None  # as gloo raises it

    def _await_verdict(self, error: BaseException) -> Verdict:
        """Which rank has caused an error of communication; it shows within seconds, if at all."""
        end = time.monotonic() + _SILENT_S + 2
        while time.monotonic() < end:
            if self.verdict is not None:
                return self.verdict
            silent = self._silent()
            if silent:
                return self._blame(silent, "shows no sign of life")
            time.sleep(0.05)
        return Verdict(self.rank, LOST, f"rank {self.rank} of {self.ranks} lost contact with the others: {error}")

    def _close(self) -> None:
        self._is_over.set()
        self._threads[1].join(2.0)  # it must not set the timer again
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        for peer in self._peers.values():
            if peer.pidfd is not None:
                with contextlib.suppress(OSError):
                    os.close(peer.pidfd)
                peer.pidfd = None
        if self._file is not sys.__stderr__:
            is_empty = self._file.tell() == 0
            self._file.close()
            if is_empty:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                    self._path.parent.rmdir()  # once the last one has left it

    # the thread that talks

    def _talk(self, store: Any) -> None:
        pulse = 0
        while True:
            is_last = self._is_over.is_set()
            pulse += 1
            if time.monotonic() < max(self._busy_until, self._start_until):
                self._beats += 1
            said = {
                **{"pulse": pulse, "marks": self._marks, "beats": self._beats, "phase": self._phase},
                **{"asks": self._stop.is_asked(), "failure": self._failure, "done": self._is_done},
                **{"host": socket.gethostname(), "pid": os.getpid(), "space": _process_space()},
            }
            try:
                if store is not None:
                    self._exchange(store, json.dumps(said))
            except RuntimeError:
                store = None  # the other end is gone for good; nothing is heard, and the judge knows what that means
            self._somebody_asks = said["asks"] or any(peer.said.get("asks") for peer in self._peers.values())
            if is_last:
                return
            self._is_over.wait(_INTERVAL_S)

    def _exchange(self, store: Any, said: str) -> None:
        store.set(f"rank {self.rank}", said)
        known = [r for r in self._peers if self._peers[r].said or store.check([f"rank {r}"])]
        texts = store.multi_get([f"rank {r}" for r in known]) if known else []
        for r, text in zip(known, texts, strict=True):
            self._hear(self._peers[r], json.loads(text))

    def _arm(self) -> None:
        """Let the interpreter's own timer write the stacks and end the process if no thread of Python's can."""
        if self._file is not sys.__stderr__:
            faulthandler.dump_traceback_later(self.timeout_s + 3, exit=True, file=self._file)

    def _hear(self, peer: _Peer, said: dict[str, Any]) -> None:
        now = time.monotonic()
        if said["pulse"] != peer.said.get("pulse"):
            peer.heard = now
        if (said["marks"], said["beats"]) != (peer.said.get("marks"), peer.said.get("beats")):
            peer.moved = now
        if not peer.said and said["space"] == _process_space() and hasattr(os, "pidfd_open"):
            try:
                peer.pidfd = os.pidfd_open(said["pid"])
            except OSError:
                peer.is_gone = True  # before it could be seen
        peer.said = said

    # the thread that judges

    def _judge(self) -> None:
        own, last = (-1, -1), time.monotonic()
        while not self._is_over.wait(_INTERVAL_S):
            now = time.monotonic()
            self._arm()
            if now - last > 2 * _SILENT_S:  # this process was stopped itself: nobody else is to blame for the time
                self._moved = self._behind_since = now
                for peer in self._peers.values():
                    peer.moved = peer.heard = now
            last = now
            if (self._marks, self._beats) != own:
                own, self._moved = (self._marks, self._beats), now
            verdict = self._find(now)
            if verdict is not None:
                self.verdict = verdict
                self._end(verdict)
                return

    def _find(self, now: float) -> Verdict | None:
        """Who is to blame for what, if anything is wrong."""
        for peer in self._peers.values():
            if peer.said.get("failure"):
                return Verdict(**peer.said["failure"])
        gone = [r for r, peer in self._peers.items() if not peer.said.get("done") and peer.has_ended()]
        if gone and now - max(self._peers[r].heard for r in gone) > 3 * _INTERVAL_S:  # its last words have come, if any
            return self._blame(gone, "was killed or has crashed")
        working = {r: peer for r, peer in self._peers.items() if not peer.said.get("done")}
        if not working:
            return None
        marks = {r: peer.said.get("marks", 0) for r, peer in working.items()} | {self.rank: self._marks}
        moved = {r: peer.moved for r, peer in working.items()} | {self.rank: self._moved}
        last = min(marks.values())
        behind = {r for r in marks if marks[r] == last}
        if behind != self._behind:  # what is heard is older than what is known of oneself: none is late for that
            self._behind, self._behind_since = behind, now
        idle_s = {r: now - max(moved[r], self._behind_since) for r in behind}
        patience = self.timeout_s * (PATIENCE if 0 in marks.values() else 1)  # it may still be reading its data
        if any(seconds <= patience for seconds in idle_s.values()):
            return None
        return self._blame(self._silent() or list(idle_s), f"shows no sign of life for {max(idle_s.values()):.0f} s")

    def _silent(self) -> list[int]:
        """Ranks whose process says nothing any more."""
        now = time.monotonic()
        return [r for r, peer in self._peers.items() if not peer.said.get("done") and now - peer.heard > _SILENT_S]

    def _blame(self, blamed: list[int], what: str) -> Verdict:
        places = {r: (peer.name, peer.said.get("phase", "nowhere")) for r, peer in self._peers.items()}
        places[self.rank] = f"(process {os.getpid()} on {socket.gethostname()})", self._phase
        lines = [f"rank {r} of {self.ranks} {places[r][0]} {what}; last seen in {places[r][1]}" for r in sorted(blamed)]
        others = [f"rank {r} in {places[r][1]}" for r in sorted(places) if r not in blamed]
        seen = f". Meanwhile: {', '.join(others)}" if others else ""
        return Verdict(min(blamed), LOST, "; ".join(lines) + seen)

    def _end(self, verdict: Verdict) -> None:
        """Write the stacks, give the main thread a moment to end by itself, make the blamed one end, and end."""
        faulthandler.cancel_dump_traceback_later()
        self._write_stacks(verdict)
        threading.Thread(target=self._make_end, args=(verdict,), daemon=True).start()
        if self._is_leaving.wait(_GRACE_S):
            limit = max(_GRACE_S, self.timeout_s)  # saves that still run may finish
            if self._is_over.wait(limit):
                return
        with contextlib.suppress(Exception):
            self._last_words(verdict)
        os._exit(verdict.code)

    def _make_end(self, verdict: Verdict) -> None:
        """A process of this machine that hangs or was stopped is made to write its stacks, and killed."""
        peer = self._peers.get(verdict.rank)
        pidfd = None if peer is None or verdict.code != LOST else peer.pidfd
        time.sleep(1.5)
        for number, pause in ((signal.SIGABRT, 0.0), (signal.SIGCONT, 2.0), (signal.SIGKILL, 0.0)):
            if pidfd is None or _has_ended(pidfd):
                return
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, number)
            time.sleep(pause)

    def _write_stacks(self, verdict: Verdict) -> None:
        """This rank's stacks, under a line that says when and why. Once: the first time tells most."""
        if verdict.code not in (_UNFORESEEN, LOST):  # a wrong configuration, say, is not found in stacks
            return
        with contextlib.suppress(OSError, ValueError):
            if self._file is sys.__stderr__ or self._file.tell() == self._start:
                head = f"rank {self.rank} in {self._phase}, {time.strftime('%FT%T%z')}: {verdict.message}\n"
                if self._file is not sys.__stderr__:
                    self._file.write(head.encode())
                faulthandler.dump_traceback(self._file, all_threads=True)


def _has_ended(pidfd: int | None) -> bool:
    """Whether a process of this machine is over; False for one of another."""
    if pidfd is None:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _process_space() -> str:
    """Tells whether process ids of two ranks mean the same."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"
