"""The remedies of a training that does not fit: each alone makes it fit, and what does not help is not named."""

import re
from types import SimpleNamespace

import pytest
import torch

from dp_prior.run.memory import Memory
from dp_prior_foreign.memory_remedies import memory_remedies
from tests.messages import told


def plans_of(n_ranks):
    """100 bytes of weights, gradients and averages, 200 of state, as divided."""
    share = -(-100 // n_ranks)
    return {
        "false": Memory(100, 100, 200, 100),
        "optimizer": Memory(100, 100, 2 * share, 100),
        "model": Memory(share, share, 2 * share, share),
    }


def remedies(room, n_ranks, n_sharing, shard="false", device="cpu"):
    return memory_remedies(
        plans_of, shard, SimpleNamespace(num_processes=n_ranks, device=torch.device(device)), n_sharing, room
    )


def test_ranks_that_share_a_machine_divide_less_among_more():
    [shard, fewer, machines] = remedies(1_500, 4, 4)
    assert told(shard, "train.shard", "'optimizer'", "350 B")
    assert told(fewer, "start 3 ranks") and told(machines, "8 ranks", "2 machines", "'model'")
    [shard, fewer, machines] = remedies(500, 2, 2)
    assert told(shard, "'model'", "250 B") and told(fewer, "start 1 rank") and told(machines, "2 machines")


def test_no_rank_is_added_to_the_machine_that_lacks_memory():
    """The bytes of a whole machine stay the same, however many ranks divide the model there."""
    assert [told(line, "2 machines") for line in remedies(400, 1, 1)] == [True]
    assert [told(line, "2 machines") for line in remedies(400, 4, 4)] == [True]
    assert [told(line, "8 ranks", "4 machines") for line in remedies(130, 2, 2)] == [True]


def test_accelerators_are_joined_by_others():
    [line] = remedies(250, 1, 1, device="cuda")
    assert told(line, "2 ranks", "'model'") and not told(line, "machines")
    [shard, more] = remedies(399, 2, 1, device="cuda")
    assert told(shard, "train.shard", "'model'", "250 B") and told(more, "4 ranks")


def test_nothing_is_named_where_nothing_helps():
    assert remedies(1, 4, 4) == remedies(1, 1, 1, device="cuda") == []


@pytest.mark.parametrize("room", [130, 250, 400, 600, 1_000, 1_500, 1_900])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (4, 4), (4, 2), (6, 3)])
@pytest.mark.parametrize("shard", ["false", "optimizer", "model"])
def test_each_remedy_makes_it_fit(shape, shard, room):
    n_ranks, n_sharing = shape
    if n_sharing * plans_of(n_ranks)[shard].total <= room:
        return
    for line in remedies(room, n_ranks, n_sharing, shard):
        numbers = [
            int(number) for number in re.findall(r"start (\d+)|on (\d+) machines", line) for number in number if number
        ]
        if line.startswith("set train.shard"):
            total = n_sharing * plans_of(n_ranks)[line.split("'")[1]].total
        elif len(numbers) == 2:
            total = numbers[0] // numbers[1] * plans_of(numbers[0])["model"].total
        else:
            total = numbers[0] * plans_of(numbers[0] * n_ranks // n_sharing)[shard].total
        assert total <= room, line
