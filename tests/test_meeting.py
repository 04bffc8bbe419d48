"""Ranks that are threads meet in every collective; one that ends, for whatever reason, leaves no other one waiting."""

import pytest
import torch

from tests.evaluation.fakes import on_ranks
from tests.meeting import AbsentRankError
from tests.messages import naming


def test_every_rank_gets_the_parts_of_all_in_every_collective():
    def run(models, ranks):
        return [ranks.gather(torch.tensor([10 * turn + ranks.process_index])).tolist() for turn in range(50)]

    assert on_ranks(3, run, {}) == [[[10 * turn, 10 * turn + 1, 10 * turn + 2] for turn in range(50)]] * 3


@pytest.mark.parametrize("turns", [0, 1, 7])
@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_fails_is_told_by_its_own_error_and_by_no_wait_of_the_others(failing, turns):
    def run(models, ranks):
        gathered = []
        for turn in range(20):
            if turn == turns and ranks.process_index == failing:
                raise OSError("of this rank alone")
            gathered.append(ranks.gather(torch.tensor([turn])).tolist())

    results = on_ranks(3, run, {})
    assert isinstance(results.pop(failing), OSError)
    for error in results:
        with pytest.raises(AbsentRankError, match=naming(f"rank {failing}", 2 * turns + 1)):
            raise error


def test_a_rank_that_leaves_out_a_collective_is_told():
    def run(models, ranks):
        if ranks.process_index:
            ranks.gather(torch.zeros(1))

    first, second = on_ranks(2, run, {})
    assert first is None and isinstance(second, AbsentRankError)
