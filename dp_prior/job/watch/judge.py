"""Decides from the states of all ranks whether one is lost, and which: a pure function of states and time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

LOST = 76  # exit code: a rank was lost
PATIENCE = 10  # times the timeout: limit of work that cannot send heartbeats, such as a save
INTERVAL_S = 0.5  # between two heartbeats
SILENT_S = 4.0  # a process not heard for this long is dead, suspended or cut off


@dataclass(frozen=True)
class Verdict:
    """Why a run cannot go on with all its ranks.

    Attributes:
        rank: the rank to blame, the lowest if there are several.
        code: exit code of all ranks: that of the error on the blamed rank, or 76.
        message: what happened to which rank, and the phase in which it was last seen.
        reason: `rank lost`, or the reason of the blamed rank's error in `exit.json`.
        trace: the traceback of that error.
    """

    rank: int
    code: int
    message: str
    reason: str = "rank lost"
    trace: str | None = None


class RankLostError(RuntimeError):
    """Another rank is lost, so this one cannot go on; `verdict` says which and why."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass
class Sighting:
    """What is known of one rank now. Times are seconds of this process's monotonic clock.

    Attributes:
        marks: number of phases it has entered; all ranks enter the same phases in the same order.
        moved: when it last made progress.
        heard: when its process was last heard of.
        phase: where in the loop it is.
        process: its process and host, for messages.
        is_done: it has left the run in order.
        has_ended: its process is over.
        failure: the error it has reported.
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
    own: Sighting, peers: Collection[Sighting], now: float, *, behind_since: float, timeout_s: float
) -> Verdict | None:
    """The rank that is lost, or None while all is well.

    In order: an error that a peer has reported; a peer whose process has ended; ranks without progress for longer than
    the timeout. Only the ranks that are furthest behind can stall the others, so progress counts for those alone.
    Blame then goes to the silent peers if there are any, else to those furthest behind.

    Args:
        own: this rank.
        peers: all other ranks.
        now: the monotonic clock.
        behind_since: when `furthest_behind` last changed.
        timeout_s: time without progress after which a rank is lost; `PATIENCE` times that before the first phase.
    """
    for peer in peers:
        if peer.failure is not None:
            return peer.failure
    working = [peer for peer in peers if not peer.is_done]
    ended = [peer for peer in working if peer.has_ended]
    if ended and now - max(peer.heard for peer in ended) > 3 * INTERVAL_S:  # its last message, if any, has arrived
        return blame(own, peers, ended, "was killed or has crashed")
    if not working:
        return None
    behind = furthest_behind(own, peers)
    suspects = [one for one in (own, *working) if one.rank in behind]
    idle_s = [now - max(one.moved, behind_since) for one in suspects]
    limit_s = timeout_s * (PATIENCE if suspects[0].marks == 0 else 1)  # before the first phase it loads its data
    if min(idle_s) <= limit_s:
        return None
    return blame(own, peers, silent(peers, now) or suspects, f"shows no sign of life for {max(idle_s):.0f} s")


def furthest_behind(own: Sighting, peers: Iterable[Sighting]) -> frozenset[int]:
    """The ranks at work that have entered the fewest phases."""
    marks = {one.rank: one.marks for one in (own, *peers) if one is own or not one.is_done}
    return frozenset(rank for rank in marks if marks[rank] == min(marks.values()))


def silent(peers: Iterable[Sighting], now: float) -> list[Sighting]:
    """Peers whose process is not heard any more."""
    return [peer for peer in peers if not peer.is_done and now - peer.heard > SILENT_S]


def blame(own: Sighting, peers: Collection[Sighting], blamed: Collection[Sighting], what: str) -> Verdict:
    """A verdict that names the blamed ranks, and where all ranks were."""
    ranks = {one.rank: one for one in (own, *peers)}
    guilty = sorted(one.rank for one in blamed)
    lines = [f"rank {r} of {len(ranks)} {ranks[r].process} {what}; last seen in {ranks[r].phase}" for r in guilty]
    others = [f"rank {r} in {ranks[r].phase}" for r in sorted(ranks) if r not in guilty]
    seen = f". Meanwhile: {', '.join(others)}" if others else ""
    return Verdict(guilty[0], LOST, "; ".join(lines) + seen)
