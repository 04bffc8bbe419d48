"""Heartbeats between ranks: twice a second each rank publishes its progress through the job's store.

If a rank dies, hangs, is suspended or cut off, every rank names the culprit and writes its stacks, and the run ends on
all ranks `timeout_s` after the culprit's last progress. Three watchers: a thread that exchanges messages through the
store, a thread that judges and never blocks, and the interpreter's timer in `stacks`, for a rank in which no Python
thread can run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dp_prior.job.stop import LOST, PATIENCE, Abandoned, RankLostError, Stop, Verdict
from dp_prior.job.watch.judge import INTERVAL_S, SILENT_S, Sighting, blame, furthest_behind, judge, silent
from dp_prior.job.watch.rank_process import end_with_stacks, has_ended, pid_namespace
from dp_prior.job.watch.stacks import Stacks

_GRACE_S = 5.0  # for the main thread to end by itself
_COMMUNICATION = re.compile(r"gloo|nccl|connection (closed|reset) by peer|process group|broken pipe|timed out", re.I)


@dataclass
class _Peer(Sighting):
    """Another rank, as known from its messages.

    Attributes:
        pulse, beats, asks: from the last message, see `Heartbeat._talk`.
    """

    pulse: int = 0
    beats: int = -1
    asks: bool = False
    pidfd: int | None = None

    def hear(self, message: dict[str, Any], now: float) -> None:
        """Update from the rank's latest message."""
        if self.pulse == 0 and message["space"] == pid_namespace() and hasattr(os, "pidfd_open"):
            try:
                self.pidfd = os.pidfd_open(message["pid"])
            except OSError:
                self.has_ended = True  # ended before the pidfd could be opened
        if message["pulse"] != self.pulse:
            self.heard = now
        if (message["marks"], message["beats"]) != (self.marks, self.beats):
            self.moved = now
        self.failure = message["failure"] and Verdict(**message["failure"])
        for name in ("pulse", "beats", "asks", "marks", "phase", "process", "is_done"):
            setattr(self, name, message[name])


class Heartbeat:
    """A context that sends heartbeats and judges the other ranks' heartbeats. All ranks enter and leave together."""

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
            timeout_s: a rank without progress for this long is lost.
            stacks: directory for `rank_0.txt` and so on: the stacks of all threads of each rank.
            explain: converts an error of this rank to the message for the other ranks.
            last_words: called in a separate thread just before this process exits without returning.
        """
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self.verdict: Verdict | None = None
        self._stop, self._explain, self._last_words = stop, explain, last_words
        self._path = stacks / f"rank_{rank}.txt"
        self._beats = self._meetings = 0
        self._busy_until = 0.0
        self._is_over = threading.Event()
        self._is_leaving = threading.Event()
        self._stop_requested = False  # on any rank
        self._ending: threading.Thread | None = None
        now = time.monotonic()
        self._own = Sighting(rank, 0, now, now, "the start", f"(process {os.getpid()} on {socket.gethostname()})")
        self._behind: frozenset[int] = frozenset()
        self._behind_since = now
        self._start_until = now + PATIENCE * timeout_s  # before the first phase it reads data and builds the model
        self._peers = {r: _Peer(r, 0, now, now) for r in range(ranks) if r != rank}

    # called by the main thread

    def mark(self, phase: str, step: int) -> None:
        """See `Ranks.mark`."""
        self._own.marks += 1
        self._own.phase = f"{phase} of step {step}"
        self._start_until = 0.0

    def beat(self) -> None:
        """See `Ranks.beat`."""
        self._beats += 1
        self.leave_if_asked()

    def leave_if_asked(self) -> None:
        """See `Ranks.leave_if_asked`."""
        if self._stop_requested:
            with contextlib.suppress(dist.DistError):
                if self._settle(self._meetings + 1, "leave") == "leave":
                    self._come(self._own.phase)
                    raise Abandoned

    def meet(self, may_leave: bool = False) -> None:
        """See `Ranks.meet`. All ranks go on or all leave: the first rank to write the outcome to the store decides.

        Returns at once if the store has died with torchrun; later collectives have their own time limit.
        """
        before = self._own.phase
        self._come(f"{before}, waiting for the others")
        with contextlib.suppress(dist.DistError):
            self._meet(self._meetings, may_leave)
        self._own.phase = before

    def _come(self, phase: str) -> None:
        """Enter the next meeting."""
        self._meetings += 1
        self._own.marks += 1
        self._own.phase = phase

    def _meet(self, number: int, may_leave: bool) -> None:
        pause_s = 0.001
        if self._store.add(f"{number}/here", 1) == self.ranks:
            self._settle(number, "go")
        while not self._store.check([f"{number}/way"]):
            if self.verdict is not None:
                raise RankLostError(self.verdict)
            if may_leave and self._stop_requested:
                self._settle(number, "leave")
            time.sleep(pause_s)
            pause_s = min(0.05, 2 * pause_s)
        if self._store.get(f"{number}/way") == b"leave":
            raise Abandoned

    def _settle(self, number: int, outcome: str) -> str:
        """The outcome of a meeting, `go` or `leave`; writes `outcome` if no rank has written an outcome."""
        return self._store.compare_set(f"{number}/way", "", outcome).decode()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """See `Ranks.busy`; for at most `PATIENCE` times the timeout."""
        before, self._busy_until = self._busy_until, time.monotonic() + PATIENCE * self.timeout_s
        try:
            yield
        finally:
            self._busy_until = before

    # start and end

    def __enter__(self) -> Heartbeat:
        base = dist.distributed_c10d._get_default_store()
        number = dist.PrefixStore("dp_prior", base).add(f"watches of rank {self.rank}", 1)
        self._store = dist.PrefixStore(f"dp_prior/{number}", base)
        self._stacks = Stacks(self._path)
        talk = self._store.clone() if hasattr(self._store, "clone") else self._store
        self._threads = [
            threading.Thread(target=self._talk, args=(talk,), name="heartbeat", daemon=True),
            threading.Thread(target=self._watch, name="heartbeat-judge", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Meet the other ranks, or pass them the error, and stop.

        Raises:
            RankLostError: instead of an error that merely followed from the loss of another rank.
        """
        lost = None
        try:
            if error is None:
                try:
                    self.meet()
                except RankLostError as other:
                    self._own.failure = lost = other.verdict
            elif not self._is_leaving.is_set():
                lost = self._tell(error)
            self._is_leaving.set()
            self._own.is_done = True
            self._is_over.set()
            self._threads[0].join(2.0)  # the thread sends a last message
        finally:
            self._close()
        if lost is not None:
            raise RankLostError(lost) from error

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Pass an error to the other ranks at once, before anything is closed; raises as `__exit__` does."""
        try:
            yield
        except BaseException as error:
            lost = self._tell(error)
            if lost is not None:
                raise RankLostError(lost) from error
            raise

    def _tell(self, error: BaseException) -> Verdict | None:
        """Pass the root cause of an error to the other ranks. Returns the cause if another rank is to blame."""
        self._is_leaving.set()
        lost = None
        if isinstance(error, RankLostError):
            self._own.failure = error.verdict
        elif self._is_communication(error):
            self._own.failure = lost = self._await_verdict(error)
            self._end_lost(lost)  # the judge may come too late for it
        else:
            self._own.failure = self._explain(error)
        self._write_stacks(self._own.failure)
        return lost

    def _is_communication(self, error: BaseException) -> bool:
        """Whether an error only follows from the state of another rank."""
        if self.verdict is not None or isinstance(error, dist.DistError):
            return True
        return type(error) is RuntimeError and _COMMUNICATION.search(str(error)) is not None  # as gloo raises it

    def _await_verdict(self, error: BaseException) -> Verdict:
        """Wait a few seconds for the root cause of a communication error."""
        end = time.monotonic() + SILENT_S + 2
        while time.monotonic() < end:
            if self.verdict is not None:
                return self.verdict
            if gone := silent(self._peers.values(), time.monotonic()):
                return blame(self._own, self._peers.values(), gone, "shows no sign of life")
            time.sleep(0.05)
        return Verdict(self.rank, LOST, f"rank {self.rank} of {self.ranks} lost contact with the others: {error}")

    def _close(self) -> None:
        self._is_over.set()
        self._threads[1].join(2.0)  # so that the judge does not restart the timer
        if self._ending is not None:
            self._ending.join(2 * _GRACE_S)  # else a suspended rank stays until torchrun's kill 30 s later
        for peer in self._peers.values():
            if peer.pidfd is not None:
                with contextlib.suppress(OSError):
                    os.close(peer.pidfd)
                peer.pidfd = None
        self._stacks.close()

    # the thread that talks to the store

    def _talk(self, store: Any) -> None:
        pulse = 0
        while True:
            is_last = self._is_over.is_set()
            pulse += 1
            if time.monotonic() < max(self._busy_until, self._start_until):
                self._beats += 1
            local = self._own
            message = {
                "pulse": pulse,
                "beats": self._beats,
                "asks": self._stop.is_asked(),
                "marks": local.marks,
                "phase": local.phase,
                "process": local.process,
                "is_done": local.is_done,
                "failure": local.failure and vars(local.failure),
                "pid": os.getpid(),
                "space": pid_namespace(),
            }
            try:
                if store is not None:
                    self._exchange(store, json.dumps(message))
            except RuntimeError:
                store = None  # the store is gone for good; the judge handles silent peers
            self._stop_requested = message["asks"] or any(peer.asks for peer in self._peers.values())
            if is_last:
                return
            self._is_over.wait(INTERVAL_S)

    def _exchange(self, store: Any, message: str) -> None:
        store.set(f"rank {self.rank}", message)
        reachable = [r for r in self._peers if self._peers[r].pulse or store.check([f"rank {r}"])]
        texts = store.multi_get([f"rank {r}" for r in reachable]) if reachable else []
        for r, text in zip(reachable, texts, strict=True):
            self._peers[r].hear(json.loads(text), time.monotonic())

    # the thread that judges

    def _watch(self) -> None:
        progress, last = (-1, -1), time.monotonic()
        while not self._is_over.wait(INTERVAL_S):
            now = time.monotonic()
            self._stacks.arm(self.timeout_s)
            if now - last > 2 * SILENT_S:  # this process was suspended; do not blame other ranks for the pause
                self._own.moved = self._behind_since = now
                for peer in self._peers.values():
                    peer.moved = peer.heard = now
            last = now
            if (self._own.marks, self._beats) != progress:
                progress, self._own.moved = (self._own.marks, self._beats), now
            for peer in self._peers.values():
                if has_ended(peer.pidfd):
                    peer.has_ended = True
            local, *peers = map(copy, (self._own, *self._peers.values()))  # other threads modify the originals
            behind = furthest_behind(local, peers)
            if behind != self._behind:  # messages are older than a rank's own state: restart the timer
                self._behind, self._behind_since = behind, now
            verdict = judge(local, peers, now, behind_since=self._behind_since, timeout_s=self.timeout_s)
            if verdict is not None:
                self.verdict = verdict
                self._end(verdict)
                return

    def _end(self, verdict: Verdict) -> None:
        """Write the stacks, kill the blamed process, and exit after giving the main thread time to end by itself."""
        self._stacks.disarm()
        self._write_stacks(verdict)
        self._end_lost(verdict)
        if self._is_leaving.wait(_GRACE_S):
            limit = max(_GRACE_S, self.timeout_s)  # for saves in progress
            if self._is_over.wait(limit):
                return
        with contextlib.suppress(Exception):
            self._last_words(verdict)
        os._exit(verdict.code)

    def _end_lost(self, verdict: Verdict) -> None:
        """Begin to end the process of a lost rank, once; a suspended one would stay until torchrun's kill, and without
        its stacks."""
        peer = self._peers.get(verdict.rank)
        if peer is not None and verdict.code == LOST and self._ending is None:
            self._ending = threading.Thread(target=end_with_stacks, args=(peer.pidfd,), daemon=True)
            self._ending.start()

    def _write_stacks(self, verdict: Verdict) -> None:
        self._stacks.write(f"rank {self.rank} in {self._own.phase}", verdict)
