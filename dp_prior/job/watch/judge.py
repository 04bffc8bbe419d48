"""Decides from the states of all ranks whether a rank is lost, and which: a pure function of states and time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dp_prior.job.stop import LOST, PATIENCE, Verdict

INTERVAL_S = 0.5  # between two heartbeats
SILENT_S = 4.0  # a process not heard for this long is dead, suspended or cut off


@dataclass
class Sighting:
    """The present knowledge about one rank. Times are seconds of this process's monotonic clock.

    Attributes:
        marks: number of phases entered; all ranks enter the same phases in the same order.
        moved: time of the last progress.
        heard: time of the last message.
        phase: place in the training loop.
        process: process and host, for messages.
        is_done: whether the rank has left the run in order.
        has_ended: whether the process is over.
        failure: the reported error, if any.
    """

    rank: int
    marks: int
    moved: float
    heard: float
    phase: str = "nowhere"
    process: str = "(never heard of)"
    is_done: bool = False
    has_ended: bool = False
    failure: Verdict | None = None


def judge(
    local: Sighting, peers: Collection[Sighting], now: float, *, behind_since: float, timeout_s: float
) -> Verdict | None:
    """The verdict on a lost rank; None while all is well.

    In order: an error that a peer has reported; a peer whose process has ended; ranks without progress for longer than
    the timeout. Only the ranks furthest behind can stall the rest, so only their progress counts. On a stall, silent
    peers are blamed if there are any, else the ranks furthest behind.

    Args:
        local: this rank.
        peers: all other ranks.
        now: the monotonic clock.
        behind_since: when `furthest_behind` last changed.
        timeout_s: time without progress after which a rank is lost; before the first phase `PATIENCE` times as long.
    """
    for peer in peers:
        if peer.failure is not None:
            return peer.failure
    working = [peer for peer in peers if not peer.is_done]
    ended = [peer for peer in working if peer.has_ended]
    if ended and now - max(peer.heard for peer in ended) > 3 * INTERVAL_S:  # a last message would have arrived
        return blame(local, peers, ended, "was killed or has crashed")
    if not working:
        return None
    behind = furthest_behind(local, peers)
    suspects = [sighting for sighting in (local, *working) if sighting.rank in behind]
    idle_s = [now - max(suspect.moved, behind_since) for suspect in suspects]
    limit_s = timeout_s * (PATIENCE if suspects[0].marks == 0 else 1)  # data are loaded before the first phase
    if min(idle_s) <= limit_s:
        return None
    return blame(local, peers, silent(peers, now) or suspects, f"shows no sign of life for {max(idle_s):.0f} s")


def furthest_behind(local: Sighting, peers: Iterable[Sighting]) -> frozenset[int]:
    """The ranks at work that have entered the fewest phases."""
    marks = {sighting.rank: sighting.marks for sighting in (local, *peers) if sighting is local or not sighting.is_done}
    return frozenset(rank for rank in marks if marks[rank] == min(marks.values()))


def silent(peers: Iterable[Sighting], now: float) -> list[Sighting]:
    """Peers without a message for `SILENT_S`."""
    return [peer for peer in peers if not peer.is_done and now - peer.heard > SILENT_S]


def blame(local: Sighting, peers: Collection[Sighting], blamed: Collection[Sighting], problem: str) -> Verdict:
    """A verdict that names the blamed ranks, and the phase of every rank."""
    ranks = {sighting.rank: sighting for sighting in (local, *peers)}
    guilty = sorted(sighting.rank for sighting in blamed)
    lines = [f"rank {r} of {len(ranks)} {ranks[r].process} {problem}; last seen in {ranks[r].phase}" for r in guilty]
    meanwhile = [f"rank {r} in {ranks[r].phase}" for r in sorted(ranks) if r not in guilty]
    remark = f". Meanwhile: {', '.join(meanwhile)}" if meanwhile else ""
    return Verdict(guilty[0], LOST, "; ".join(lines) + remark)
