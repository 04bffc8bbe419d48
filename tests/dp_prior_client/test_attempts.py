"""Attempts on a clock that only the test moves: what is logged, when, and when the patience is over."""

import threading

import pytest

from dp_prior_client import attempts
from dp_prior_client.attempts import Attempts, FailedAttempt
from tests.messages import naming, told
from tests.waiting import until

URL = "ws://gpu-box:8000"


class Time:
    """A clock that sleep moves."""

    def __init__(self):
        self.now = 100.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def patient(time, patience_s=30.0):
    return Attempts(URL, patience_s, 10.0, clock=time.clock, sleep=time.sleep)


def away_until(time, end, reason="[Errno 111] Connection refused"):
    """An attempt that fails before a time."""

    def attempt():
        if time.now < end:
            raise FailedAttempt(reason) from OSError(reason)
        return time.now

    return attempt


def never():
    raise AssertionError("nothing hangs here")


def test_the_first_failure_is_logged_at_once_later_ones_at_doubling_intervals_and_the_end_with_its_duration(caplog):
    time = Time()
    tries = patient(time)
    at = []
    caplog.handler.emit = lambda record, emit=caplog.handler.emit: (at.append(time.now - 100), emit(record))
    assert tries.persist(away_until(time, 120), never) == time.now >= 120
    *lines, end = caplog.messages
    assert at[0] == 0 and 4 <= len(lines) <= 7
    assert all(late - early >= 1 for early, late in zip(at[:-2], at[1:-1], strict=True))
    assert all(told(line, URL, "[Errno 111] Connection refused") for line in lines)
    assert told(end, URL, "again", f"{time.now - 100:.1f} s")
    assert tries.trouble is None


def test_while_all_is_well_nothing_is_logged(caplog):
    time = Time()
    tries = patient(time)
    assert [tries.persist(lambda: 7, never) for _ in range(3)] == [7] * 3 and not caplog.messages


def test_the_trouble_grows_until_the_answer_and_an_outage_may_outlast_the_patience(caplog):
    time = Time()
    tries = patient(time, patience_s=3.0)
    with pytest.raises(ConnectionError, match=naming(URL, "no route")) as error:
        tries.persist(away_until(time, 110, "no route"), never)
    assert isinstance(error.value.__cause__, OSError) and 102 <= time.now <= 103
    assert told(tries.trouble, URL, "no route", f"{time.now - 100:.1f} s")
    time.now = 105.0
    assert told(tries.trouble, "5.0 s")
    time.now = 111.0
    assert tries.persist(away_until(time, 110), never) == 111.0
    assert told(caplog.messages[-1], "again", "11.0 s")


def test_a_final_failure_and_other_errors_end_the_attempts_at_once():
    time = Time()

    def refused():
        raise FailedAttempt("401", is_final=True)

    def broken():
        raise KeyError("chunk")

    with pytest.raises(ConnectionError, match=naming(URL, "401")):
        patient(time).persist(refused, never)
    with pytest.raises(KeyError):
        patient(time).persist(broken, never)
    with pytest.raises(ConnectionError, match=naming(URL, "Connection refused")):
        patient(time, patience_s=0).persist(away_until(time, 200), never)
    assert time.now == 100.0


def test_a_silent_attempt_is_logged_while_it_lasts_and_abandoned_if_it_does_not_end(caplog, monkeypatch):
    monkeypatch.setattr(attempts, "TELL_S", 0.01)
    is_abandoned = threading.Event()

    def hang():
        assert is_abandoned.wait(60)
        raise FailedAttempt("hung up", is_final=True)

    tries = Attempts(URL, 30.0, 0.02)
    with pytest.raises(ConnectionError, match=naming(URL, "hung up")):
        tries.persist(hang, is_abandoned.set)
    assert told(caplog.messages[0], URL, "silent for 0.01 s")


def test_silence_within_twice_the_time_of_the_last_answer_is_usual(caplog, monkeypatch):
    waits = []

    class Ended(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return True

    monkeypatch.setattr(attempts.threading, "Event", Ended)
    monkeypatch.setattr(attempts.threading, "Thread", lambda target, args, **_: type(
        "Now", (), {"start": lambda self: target(*args)})())  # fmt: skip
    time = Time()
    tries = patient(time)
    for took in (0.2, 3.0, 0.1, 0.1):
        tries.persist(lambda took=took: time.sleep(took), never)
    assert waits == pytest.approx([1.0, 1.0, 6.0, 1.0])


def test_an_attempt_that_ends_while_it_is_abandoned_is_followed_by_no_other_that_would_be_abandoned_too(monkeypatch):
    monkeypatch.setattr(attempts, "TELL_S", 0.01)
    may_end, has_returned, was_late = threading.Event(), threading.Event(), []

    def hang():
        assert may_end.wait(60)
        return 7

    def abandon():
        may_end.set()
        was_late.append(has_returned.wait(0.5))

    assert Attempts(URL, 30.0, 0.02).persist(hang, abandon) == 7
    has_returned.set()
    until(lambda: was_late)
    assert was_late == [False]
