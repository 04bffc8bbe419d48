import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.samples.weighted_order import FollowingOrder, Share, WeightedOrder, shares
from tests.messages import naming

GROUPS = np.arange(5), np.arange(5, 30)


def divide(successes):
    """Two texts of 5 and 25 samples; the share of each is its number of episodes that failed."""
    told = successes.get("rollout") or {"a": [0, 1], "b": [0, 1]}
    counts = shares(30, [told[text][1] - told[text][0] for text in ("a", "b")])
    return [Share(ids, count) for ids, count in zip(GROUPS, counts, strict=True)]


def rows(**solved):
    return [{"instruction": text, "success_rate": n / 10, "episodes": 10} for text, n in solved.items()]


def following():
    return FollowingOrder(4, {"rollout": ("a", "b")}, divide)


def test_an_order_that_follows_is_that_of_the_shares_measured_last():
    start = following()
    first = start.after({"rollout/by_instruction": rows(a=9, b=8), "other/by_instruction": rows(a=0, b=0)})
    again = first.after({"rollout/by_instruction": rows(a=3, b=9)})
    for order, counts in ((start, (15, 15)), (first, (10, 20)), (again, (26, 4))):
        expected = WeightedOrder(4, [Share(ids, count) for ids, count in zip(GROUPS, counts, strict=True)])
        for epoch in (0, 7):
            assert np.array_equal(order.ids(epoch, 3, 25), expected.ids(epoch, 3, 25))
    assert again.successes == {"rollout": {"a": [3, 10], "b": [9, 10]}}
    assert np.array_equal(start.resumed(again.successes).ids(2, 0, 30), again.ids(2, 0, 30))
    assert np.array_equal(again.resumed({}).ids(2, 0, 30), start.ids(2, 0, 30))


UNTOLD = {"rollout/by_instruction": rows(a=np.nan, b=np.nan)}


@pytest.mark.parametrize("tables", [{}, UNTOLD, {"told_wrongly/by_instruction": rows(a=1, b=1)}])
def test_evaluations_that_are_not_followed_change_no_order(tables):
    order = following()
    assert order.after(tables) is order


def test_a_long_instruction_is_followed_by_its_first_characters():
    text = "put it there, " * 40
    table = {"rollout/by_instruction": [{"instruction": text[:256], "success_rate": 0.5, "episodes": 10}]}

    def halves(successes):
        return divide({})

    start = FollowingOrder(4, {"rollout": (text, "b")}, halves)
    assert start.after(table).successes == {"rollout": {text[:256]: [5, 10]}}
    table["rollout/by_instruction"][0]["instruction"] = text[:255]
    with pytest.raises(ConfigError, match=naming("data", "language.weights", "'rollout'")):
        start.after(table)
