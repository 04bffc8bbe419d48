"""The judge alone: who is lost, by table and by law, without threads or clocks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.job.stop import LOST, PATIENCE, Verdict
from dp_prior.job.watch.judge import INTERVAL_S, SILENT_S, Sighting, furthest_behind, judge
from tests.messages import told

NOW, TIMEOUT_S = 1000.0, 60.0
FAILURE = Verdict(2, 65, "bad data", "data", "trace")


def rank(number, marks=5, idle_s=0.0, silent_s=0.0, **more):
    """A rank that last moved and was last heard this many seconds ago."""
    return Sighting(number, marks, NOW - idle_s, NOW - silent_s, "backward, step 3", f"(process {number} on a)", **more)


def verdict(own, *peers, behind_since=0.0):
    return judge(own, peers, NOW, behind_since=behind_since, timeout_s=TIMEOUT_S)


LATE = TIMEOUT_S + 1


@pytest.mark.parametrize(
    ("own", "peers", "blamed"),
    [
        (rank(0), [rank(1)], None),
        (rank(0), [rank(1, marks=4, idle_s=TIMEOUT_S - 1)], None),
        (rank(0), [rank(1, marks=4, idle_s=LATE)], 1),  # hangs: it is furthest behind
        (rank(0, marks=4, idle_s=LATE), [rank(1)], 0),  # this rank itself hangs
        (rank(0, idle_s=LATE), [rank(1, marks=6, idle_s=LATE)], 0),
        (rank(0, idle_s=LATE), [rank(1, marks=4)], None),  # the one that is behind still beats
        (rank(0, idle_s=LATE), [rank(1, idle_s=LATE)], 0),  # both in the same phase: the lowest is named first
        (rank(0, marks=4, idle_s=LATE), [rank(1, silent_s=SILENT_S + 1)], 1),  # cut off, although rank 0 is behind
        (rank(0), [rank(1, marks=0, idle_s=LATE)], None),  # reads its data
        (rank(0), [rank(1, marks=0, idle_s=PATIENCE * TIMEOUT_S + 1)], 1),
        (rank(0), [rank(1, silent_s=4 * INTERVAL_S, has_ended=True)], 1),
        (rank(0), [rank(1, silent_s=INTERVAL_S, has_ended=True)], None),  # its last message may be on its way
        (rank(0), [rank(1, silent_s=9, idle_s=LATE, has_ended=True, is_done=True)], None),  # it left in order
        (rank(0), [rank(1, marks=4, idle_s=LATE, is_done=True), rank(2)], None),
        (rank(0), [rank(1, silent_s=9, has_ended=True), rank(2, failure=FAILURE)], 2),  # an error is the root cause
    ],
)
def test_who_is_lost(own, peers, blamed):
    found = verdict(own, *peers)
    assert (None if found is None else found.rank) == blamed


def test_a_reported_error_is_passed_on_as_it_is():
    assert verdict(rank(0), rank(2, failure=FAILURE)) is FAILURE


def test_message_names_process_host_phase_and_the_others():
    found = verdict(rank(0), rank(1, silent_s=9, has_ended=True), rank(2, marks=7))
    assert found.code == LOST and found.reason == "rank lost"
    assert told(found.message, "rank 1 of 3 (process 1 on a)", "killed", "rank 0 in", "rank 2 in")
    assert found.message.count("backward, step 3") == 3


def test_a_rank_that_has_just_fallen_behind_gets_the_whole_timeout():
    own, peer = rank(0, marks=9), rank(1, marks=4, idle_s=10 * TIMEOUT_S)
    assert verdict(own, peer, behind_since=NOW - TIMEOUT_S) is None
    assert verdict(own, peer, behind_since=NOW - LATE).rank == 1


seconds = st.floats(0, 10 * PATIENCE * TIMEOUT_S)


@st.composite
def sightings(draw):
    """Any number of ranks in any state; one that moved was heard."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        silent_s = draw(seconds)
        idle_s = silent_s + draw(seconds)
        flags = {"is_done": draw(st.booleans()), "has_ended": draw(st.booleans())} if number else {}
        found.append(rank(number, draw(st.integers(0, 3)), idle_s, silent_s if number else 0.0, **flags))
    return found


@given(sightings(), seconds)
def test_a_rank_that_beats_is_never_blamed_for_anothers_silence(ranks, ago):
    """Blame falls on a rank that ended, is silent, or is furthest behind and idle; never on one that works ahead."""
    own, *peers = ranks
    found = verdict(own, *peers, behind_since=NOW - ago)
    if found is not None:
        blamed = ranks[found.rank]
        is_behind = blamed.rank in furthest_behind(own, peers)
        assert not blamed.is_done
        assert blamed.has_ended or NOW - blamed.heard > SILENT_S or (is_behind and NOW - blamed.moved > TIMEOUT_S)


@given(sightings(), seconds)
def test_no_rank_is_lost_while_one_of_those_furthest_behind_moves(ranks, ago):
    own, *peers = (replace(one, has_ended=False) for one in ranks)
    behind = furthest_behind(own, peers)
    moving = [replace(one, moved=NOW, heard=NOW) if one.rank in behind else one for one in (own, *peers)]
    assert verdict(*moving, behind_since=NOW - ago) is None


@given(sightings(), seconds, st.randoms())
def test_the_order_of_peers_does_not_matter(ranks, ago, random):
    own, *peers = ranks
    first = verdict(own, *peers, behind_since=NOW - ago)
    random.shuffle(peers)
    assert verdict(own, *peers, behind_since=NOW - ago) == first


@given(sightings(), seconds)
def test_all_ranks_hang_together_only_after_the_timeout(ranks, ago):
    own, *peers = (replace(one, marks=max(1, one.marks), has_ended=False, heard=NOW) for one in ranks)
    working = [own, *(peer for peer in peers if not peer.is_done)]
    behind = [one for one in working if one.rank in furthest_behind(own, peers)]
    idle_s = min(NOW - max(one.moved, NOW - ago) for one in behind)
    found = verdict(own, *peers, behind_since=NOW - ago)
    assert (found is not None) == (idle_s > TIMEOUT_S and len(working) > 1)
    assert found is None or found.rank == min(one.rank for one in behind)
