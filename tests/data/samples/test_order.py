import numpy as np

from dp_prior.data.samples.order import FullOrder, epoch_order


def test_every_epoch_is_a_permutation_of_its_own_however_it_is_cut():
    order = FullOrder(3, 40)
    for epoch in (5, 0, 5, 2**40):
        whole = epoch_order(3, epoch, 40)
        assert sorted(whole) == list(range(40))
        assert np.array_equal(np.concatenate([order.ids(epoch, 0, 7), order.ids(epoch, 7, 40)]), whole)
    assert len({tuple(epoch_order(seed, epoch, 40)) for seed in range(4) for epoch in range(4)}) == 16


def test_the_order_stays_between_versions():
    assert epoch_order(0, 0, 10).tolist() == [0, 4, 2, 5, 9, 1, 6, 7, 8, 3]
