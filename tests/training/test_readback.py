"""Values of a step are read in order, none lost: at once on a CPU, LAG steps late where copies are."""

import pytest
import torch

from dp_prior.training.readback import LAG, Readback


class Late:
    """An event of a GPU."""

    def synchronize(self):
        pass


class LateReadback(Readback):
    """One whose values are copied as from a GPU."""

    def put(self, values, *label):
        self._copies.append((values, Late(), label))


@pytest.mark.parametrize(("kind", "lag"), [(Readback, 0), (LateReadback, LAG)])
def test_every_step_is_read_once_in_order(kind, lag):
    readback, found = kind(), []
    for step in range(1, 9):
        readback.put(torch.tensor([10 * step]), step, -step)
        found.append(readback.take())
    assert found == [None] * lag + [([10 * step], (step, -step)) for step in range(1, 9 - lag)]
    assert readback.take() is None


def test_what_is_on_its_way_can_be_waited_for():
    readback = LateReadback()
    assert not readback.settle()
    for step in (1, 2):
        readback.put(torch.tensor([step]), step)
    assert readback.take() is None and readback.settle()
    assert [readback.take(), readback.take()] == [([1], (1,)), ([2], (2,))] and not readback.settle()
