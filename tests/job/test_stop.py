"""The request to stop: the first reason counts, and the maximum over all ranks is the request of one of them."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.job.stop import STOP_REASONS, TIME_LIMIT, Stop, StoppedEarly


def asked(reason):
    stop = Stop()
    if reason is not None:
        stop.ask(reason)
    return stop


@given(st.lists(st.none() | st.sampled_from(STOP_REASONS), min_size=1, max_size=6))
def test_all_ranks_agree_on_the_request_of_one_that_was_asked(reasons):
    ranks = [asked(reason) for reason in reasons]
    most = max(stop.encode(rank) for rank, stop in enumerate(ranks))
    assert most < 1 << 62 and {stop.accept(most) for stop in ranks} == {any(reasons)}
    assert len({(stop.reason, stop.rank) for stop in ranks}) == 1
    if any(reasons):
        assert reasons[ranks[0].rank] == ranks[0].reason
    else:
        assert (ranks[0].reason, ranks[0].rank) == (None, None)


@given(st.lists(st.sampled_from(STOP_REASONS), min_size=1, max_size=4))
def test_the_first_reason_counts(reasons):
    stop = Stop()
    assert not stop.is_asked()
    for reason in reasons:
        stop.ask(reason)
    assert stop.is_asked() and stop.reason == reasons[0]


@pytest.mark.parametrize("reason", [None, "SIGTERM"])
def test_a_near_deadline_is_a_request_unless_there_is_one(reason, monkeypatch):
    stop = asked(reason)
    monkeypatch.setattr(stop.deadline, "is_near", lambda: True)
    assert stop.is_asked() and stop.reason == (reason or TIME_LIMIT)


@pytest.mark.parametrize("rank", [0, 7, (1 << 32) - 1])
def test_the_reason_and_any_rank_survive_the_journey_and_are_told(rank):
    error = StoppedEarly("SIGINT", rank)
    assert (error.reason, error.rank) == ("SIGINT", rank) and "SIGINT" in str(error)
    other = Stop()
    assert other.accept(asked("SIGINT").encode(rank)) and (other.reason, other.rank) == ("SIGINT", rank)


def test_a_stop_leaves_the_work_behind():
    stop, begun, end = Stop(), threading.Event(), threading.Event()

    def last():
        begun.set()
        stop.ask("SIGTERM")
        end.wait(60)

    assert stop.leaving(lambda: 3) == 3
    with pytest.raises(StoppedEarly) as stopped:
        stop.leaving(last)
    assert begun.is_set() and (stopped.value.reason, stopped.value.rank) == ("SIGTERM", 0)
    end.set()
