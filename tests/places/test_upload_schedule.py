"""When an attempt may follow another."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.places.destination import DeliveryReport
from dp_prior.places.upload_schedule import FIRST_WAIT_S, LONGEST_WAIT_S, Schedule


@example([], 2)
@example([(0.0, 2)] * 60, 2)
@given(st.lists(st.tuples(st.floats(0, 900), st.integers(0, 2)), max_size=60), st.integers(2, 20))
def test_no_hour_holds_more_commits_than_allowed(attempts, most):
    schedule, now, moments = Schedule(most), 0.0, []
    for gap, commits in attempts:
        now += gap
        wait = schedule.wait(now)
        now += wait
        assert schedule.wait(now) == pytest.approx(0.0, abs=1e-6)
        schedule.ended(DeliveryReport("", commits=commits), now, random.Random(0))
        moments += [now] * commits
        assert sum(now - 3599.999 < moment for moment in moments) <= most


def test_waits_double_with_jitter_up_to_a_bound_and_a_success_forgets_them():
    schedule, dice = Schedule(10**9), random.Random(0)
    for failures in range(40):
        schedule.ended(DeliveryReport("", "unavailable"), 0.0, dice)
        expected = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**failures)
        assert 0.5 * expected <= schedule.wait(0.0) <= 1.5 * expected
        assert schedule.wait(1e9) == 0.0
    schedule.ended(DeliveryReport("done"), 0.0, dice)
    assert schedule.wait(0.0) == 0.0
    schedule.ended(DeliveryReport("", "unavailable"), 0.0, dice)
    assert schedule.wait(0.0) <= 1.5 * FIRST_WAIT_S


@given(st.sampled_from(["refused", "unavailable", "offline", "damaged"]), st.floats(0, 1e5))
def test_a_pause_that_a_place_asks_for_is_kept_and_only_a_change_ends_a_refusal(trouble, pause):
    schedule = Schedule(10)
    schedule.ended(DeliveryReport("", trouble, retry_after=pause), 0.0, random.Random(0))
    wait = schedule.wait(0.0)
    assert wait is None if trouble in ("refused", "offline") else wait >= pause


def test_who_hurries_waits_only_for_what_the_place_has_asked():
    schedule = Schedule(10)
    for pause, rest in ((None, 0.0), (500.0, 500.0)):
        for _ in range(12):
            schedule.ended(DeliveryReport("", "unavailable", retry_after=pause), 0.0, random.Random(0))
        assert schedule.wait(0.0) >= 0.5 * LONGEST_WAIT_S
        schedule.hurry()
        assert schedule.wait(0.0) == rest


def test_a_clock_that_is_set_back_makes_no_pause_longer():
    schedule = Schedule(10)
    schedule.ended(DeliveryReport("", "unavailable"), 1e9, random.Random(0))
    assert schedule.wait(1e9) > 0.0 == schedule.wait(1e9 - 7 * 86400)
