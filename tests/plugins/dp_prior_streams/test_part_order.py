import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dp_prior_streams.part_order import PartOrder
from tests.examples import examples

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=14).filter(any)


def order(sizes, seed=0, mixed_parts=3, groups=None):
    part_of = np.repeat(np.arange(len(sizes)), sizes)
    return PartOrder(seed, part_of, np.arange(len(sizes)) if groups is None else groups, mixed_parts=mixed_parts)


@examples(100)
@given(sizes=SIZES, mixed=st.integers(1, 6), epoch=st.integers(0, 2**40), seed=st.integers(0, 5))
def test_an_epoch_is_a_permutation_however_it_is_cut(sizes, mixed, epoch, seed):
    n = sum(sizes)
    whole = order(sizes, seed, mixed).ids(epoch, 0, n)
    assert sorted(whole) == list(range(n))
    for cut in range(0, n, 5):
        assert np.array_equal(order(sizes, seed, mixed).ids(epoch, cut, min(cut + 7, n)), whole[cut : cut + 7])


@examples(100)
@given(sizes=SIZES, mixed=st.integers(1, 6), size=st.integers(1, 9))
def test_an_epoch_needs_each_part_once_and_says_which_in_time(sizes, mixed, size):
    shuffled, part_of = order(sizes, 1, mixed), np.repeat(np.arange(len(sizes)), sizes)
    expected, removed, before = [], set(), set()
    for begin in range(0, sum(sizes), size):
        end = min(begin + size, sum(sizes))
        needed, later = shuffled.parts(0, begin, end)
        assert set(part_of[shuffled.ids(0, begin, end)]) <= set(needed)
        removed |= before - set(needed)
        assert not removed & set(needed)
        arriving = [part for part in needed if part not in before]
        assert arriving == (expected or arriving)[: len(arriving)]
        before, expected = set(needed), later
    following = shuffled.parts(1, 0, 1)[0]
    assert removed | before == set(part_of) and expected == following


def test_as_many_parts_as_asked_for_are_mixed_and_one_more_at_a_boundary():
    shuffled = order([40] * 20, mixed_parts=4)
    counts = [len(shuffled.parts(0, begin, begin + 10)[0]) for begin in range(0, 790, 7)]
    assert max(counts) == 5 and min(counts) == 4
    drawn = [len(set(shuffled.ids(0, begin, begin + 40) // 40)) for begin in range(0, 800, 40)]
    assert np.mean(drawn) > 3.5


def test_parts_of_a_group_arrive_next_to_one_another():
    groups = np.arange(12) // 3
    arrival, _ = order([5] * 12, groups=groups)._arrangement(7)
    assert (np.diff(groups[arrival]) != 0).sum() == 3
    assert arrival.tolist() != sorted(arrival.tolist())


def test_seed_and_epoch_change_the_order_and_it_stays_between_versions():
    orders = {tuple(order([5] * 8, seed).ids(epoch, 0, 40)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert order([3, 0, 4, 2, 5], mixed_parts=2).ids(0, 0, 14).tolist() == PINNED


PINNED = [2, 0, 1, 12, 9, 11, 10, 6, 13, 4, 8, 3, 7, 5]
