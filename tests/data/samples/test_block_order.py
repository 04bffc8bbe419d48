import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.samples.block_order import BlockOrder
from tests.examples import examples


def order(n, seed=0, block_rows=4, shuffle_blocks=3):
    return BlockOrder(seed, n, block_rows=block_rows, shuffle_blocks=shuffle_blocks)


@examples(100)
@given(n=st.integers(1, 120), rows=st.integers(1, 9), blocks=st.integers(1, 5), epoch=st.integers(0, 2**40))
def test_an_epoch_is_a_permutation_however_it_is_cut(n, rows, blocks, epoch):
    whole = order(n, 0, rows, blocks).ids(epoch, 0, n)
    assert sorted(whole) == list(range(n))
    for cut in range(0, n, 7):
        assert np.array_equal(order(n, 0, rows, blocks).ids(epoch, cut, min(cut + 11, n)), whole[cut : cut + 11])


def test_positions_of_a_window_go_round_its_blocks():
    ids = order(120).ids(0, 0, 120)
    for window in ids.reshape(-1, 12):
        blocks = window.reshape(4, 3) // 4
        assert (blocks == blocks[0]).all() and len(set(blocks[0])) == 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_that_divide_the_blocks_read_blocks_of_their_own(ranks):
    ids = order(120).ids(2, 0, 108)  # the last window may be anything
    read = [set(ids[rank::ranks] // 4) for rank in range(ranks)]
    assert sum(map(len, read)) == len(set().union(*read))


def test_seed_and_epoch_change_blocks_and_rows_and_the_order_stays_between_versions():
    orders = {tuple(order(50, seed).ids(epoch, 0, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert order(14, block_rows=2, shuffle_blocks=2).ids(0, 0, 14).tolist() == PINNED


def test_a_set_smaller_than_a_window_is_shuffled_throughout():
    first = np.array([order(10).ids(epoch, 0, 10) for epoch in range(2000)])
    assert np.abs(first.mean(0) - 4.5).max() < 0.35  # standard error 0.064


def test_no_more_than_two_windows_are_held():
    one = order(1000)
    for start in range(0, 1000, 5):
        one.ids(0, start, start + 5)
    assert one._window.cache_info().currsize <= 2


PINNED = [6, 0, 7, 1, 9, 2, 8, 3, 4, 12, 5, 13, 10, 11]
