"""Actions that bear their own numbers, so that each place of a chunk and of a prefix shows what belongs there."""

import numpy as np
import pytest

from dp_prior_client.chunk_plan import ChunkPlan
from tests.cases import every


def numbered(first, count):
    """(count, 1) actions first, first + 1 ..."""
    return np.arange(first, first + count, dtype=np.float32)[:, None]


def running(past=1, horizon=8, commanded=0, present=0):
    """A plan whose chunk has the action `n` at the place of the action number n; one command a second from 0 on."""
    plan = ChunkPlan(past)
    plan.begin(numbered(present - past, horizon), present)
    for second in range(commanded):
        plan.command(plan.ahead[0], second)
    return plan


@every(seed=range(20))
def test_the_next_action_is_that_of_its_number_whatever_was_in_flight(seed):
    random = np.random.default_rng(seed)
    past, horizon = int(random.integers(0, 3)), int(random.integers(6, 12))
    plan, time, seen = ChunkPlan(past), 0, -1.0
    plan.begin(numbered(-past, horizon), 0)
    for number in range(60):
        assert plan.commanded == number and len(plan.ahead)
        assert plan.ahead[0] == number and (plan.chunk[plan.index :] == plan.ahead).all()
        plan.command(plan.ahead[0], time)
        time += random.random()
        if len(plan.ahead) <= 2:
            seen = max(seen, time - 3 * random.random())
            present, prefix, delay = plan.continuation(seen, 1)
            in_flight = plan.commanded - present
            if prefix is None:
                assert present < past or in_flight + len(plan.ahead) == 0
            else:  # from the oldest observation's step on
                np.testing.assert_array_equal(prefix, numbered(present - past, len(prefix)))
                assert len(prefix) == past + in_flight + len(plan.ahead)
                assert delay == min(in_flight + min(1, len(plan.ahead)), horizon - past - 1)
            if horizon - past > in_flight:
                plan.begin(numbered(present - past, horizon), present)
            else:  # it would end before the next action
                plan.begin(numbered(plan.commanded - past, horizon), plan.commanded)


@pytest.mark.parametrize(("unseen", "present"), [(-1.0, 0), (0.0, 1), (2.5, 3), (9.0, 4)])
def test_the_present_is_after_all_commands_of_which_the_effect_is_seen(unseen, present):
    assert running(commanded=4).continuation(unseen, 1).present == present


def test_the_delay_is_bounded_by_what_the_policy_knows_and_leaves_an_action_to_execute():
    assert running(commanded=4).continuation(2.5, 2).delay == 1 + 2
    assert running(commanded=4).continuation(2.5, 2, max_delay=2).delay == 2
    assert running(commanded=4).continuation(0.5, 9).delay == 8 - 1 - 1
    assert running(horizon=6, commanded=4).continuation(9.0, 5).delay == 1  # no more than are ahead


def test_nothing_after_the_delay_is_continued_once_it_is_outdated():
    plan = running(commanded=4)
    whole, outdated = (plan.continuation(2.5, 1, is_outdated=old) for old in (False, True))
    assert whole.delay == outdated.delay == 2 and len(whole.prefix) == 1 + 4
    np.testing.assert_array_equal(outdated.prefix, whole.prefix[: 1 + 2])
    assert running(past=0).continuation(9.0, 0, is_outdated=True) == (0, None, 0)


def test_without_a_chunk_or_with_too_few_commands_nothing_is_continued():
    plan = ChunkPlan(1)
    assert plan.ahead is None and plan.continuation(0.0, 1) == (0, None, 0)
    assert running(past=2, commanded=1).continuation(9.0, 1) == (1, None, 0)
    plan = running(commanded=3)
    plan.drop()
    assert plan.ahead is None and plan.chunk is None and plan.continuation(9.0, 1) == (3, None, 0)
    plan.reset()
    assert plan.commanded == 0


def test_a_chunk_that_ended_before_the_present_has_nothing_ahead():
    plan = running(horizon=4, commanded=3)
    assert plan.ahead.shape == (0, 1)
    plan.begin(numbered(-2, 2), 0)  # asked for long ago
    assert plan.ahead.shape == (0, 1) and plan.index == 4
