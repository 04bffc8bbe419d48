"""How much of an evaluation is done: nested parts count alike, and the share never decreases."""

import pytest

from dp_prior.job.work import Done, Work


def test_nested_parts_of_equal_size_count_alike_and_end_at_the_whole():
    work, told = Work(), []
    work.show = told.append
    with work.named("rollout", 12):
        for _ in work.parts(range(2)):
            for _ in work.parts("abc"):
                work.tell(0.5)
        work.tell(1.0)
    shares = [done.share for done in told]
    assert shares == sorted(shares) and shares[-1] == 1
    halves = [number / 6 for number in range(6)] + [(number + 0.5) / 6 for number in range(6)]
    assert sorted(set(shares) - {1.0}) == pytest.approx(sorted(halves))
    assert {str(done) for done in told} == {f"rollout {done}/12" for done in range(13)}


def test_a_second_loop_within_a_part_waits_instead_of_going_back():
    work, told = Work(), []
    work.show = told.append
    with work.named("action_error"):
        for _ in work.parts(range(4)):
            pass
        for _ in work.parts(range(4)):
            pass
    assert [done.share for done in told] == [0, 0.25, 0.5, 0.75, 0.75, 0.75, 0.75, 0.75]
    assert str(told[1]) == "action_error 25%"


def test_work_without_a_name_and_work_that_nobody_sees_say_nothing():
    work, told = Work(), []
    assert list(work.parts("ab")) == ["a", "b"]
    with work.named("unseen"):
        assert list(work.parts("ab")) == ["a", "b"]
    work.show = told.append
    assert list(work.parts("ab")) == ["a", "b"] and not told
    with work.named("seen"):
        work.tell(0.5)
    assert told == [Done("seen", 0.5)]


def test_an_abandoned_loop_does_not_count_in_the_next_work():
    work, told = Work(), []
    work.show = told.append
    with pytest.raises(ValueError), work.named("first"):
        for _ in work.parts(range(10)):
            raise ValueError
    with work.named("second"):
        list(work.parts(range(2)))
    assert [done.share for done in told if done.name == "second"] == [0, 0.5]
