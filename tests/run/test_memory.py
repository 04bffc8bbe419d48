"""The memory of a rank is told before training, and a training that does not fit its device is refused."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.run import memory
from dp_prior.run.memory import Memory, amount, check_room, planned
from dp_prior.training.muon import MuonConfig
from dp_prior.training.optimizer import AdamWConfig
from dp_prior.training.training_config import TrainingConfig
from tests.messages import naming, told
from tests.tiny import experiment, tiny, train, write


def test_the_bytes_of_each_kind_are_those_of_the_tensors():
    """A matrix of 12 numbers, in uneven parts, and a frozen one of 8; two averages, two ranks."""
    model = nn.ModuleDict({"trained": nn.Linear(4, 3, bias=False), "frozen": nn.Linear(4, 2, bias=False)})
    model["frozen"].requires_grad_(False)
    plans = planned(model, model, AdamWConfig().create(model), n_averages=2, n_ranks=2)
    assert plans["false"] == Memory(weights=80, gradients=48, optimizer=96, averages=160)
    assert plans["optimizer"] == Memory(weights=80, gradients=48, optimizer=96, averages=160)
    assert plans["model"] == Memory(weights=48, gradients=32, optimizer=64, averages=96)
    assert planned(model, model, MuonConfig().create(model), 0, 2)["model"].optimizer == 32


def test_the_state_of_an_optimizer_is_that_of_the_rank_that_has_the_most():
    model = nn.ModuleList(nn.Linear(size, 10, bias=False) for size in (5, 3, 1))
    plans = planned(model, model, AdamWConfig().create(model), n_averages=0, n_ranks=2)
    assert plans["optimizer"].optimizer == 2 * 4 * 50 and plans["false"].optimizer == 2 * 4 * 90


def ranks_of(number, on_machine, device="cpu"):
    return SimpleNamespace(num_processes=number, num_local_processes=on_machine, device=torch.device(device))


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a training of the tiny policy, of some ranks, in some bytes of memory."""
    model = experiment(tiny(tmp_path)).parts.model

    def checked(room, ranks, **train):
        monkeypatch.setattr(memory, "memory_bytes", lambda: room)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=room))
        check_room(TrainingConfig(steps=1, **train), SimpleNamespace(model=model, ranks=ranks))

    return checked


@pytest.fixture
def plans(tmp_path):
    """The memory of the tiny policy, by `train.shard`, of some ranks."""
    config = TrainingConfig(steps=1)
    model = experiment(tiny(tmp_path)).parts.model
    return lambda n_ranks: planned(model, model, config.optimizer.create(model), 1, n_ranks)


def test_ranks_without_an_accelerator_share_the_memory_of_their_machine(check, plans):
    whole = plans(4)["false"].total
    check(4 * whole, ranks_of(4, 4))
    check(2 * whole, ranks_of(4, 2))
    with pytest.raises(ConfigError, match=naming(amount(whole), "4 ranks", amount(4 * whole - 1))):
        check(4 * whole - 1, ranks_of(4, 4))
    with pytest.raises(ConfigError, match=naming(amount(whole), "2 ranks", amount(2 * whole - 1))):
        check(2 * whole - 1, ranks_of(4, 2))
    with pytest.raises(ConfigError, match=naming("cpu", amount(whole - 1))):
        check(whole - 1, ranks_of(1, 1))
    parted = plans(4)["model"].total
    check(4 * parted, ranks_of(4, 4), shard="model")


def test_an_accelerator_belongs_to_one_rank(check, plans):
    whole = plans(4)["false"].total
    check(whole, ranks_of(4, 4, "cuda"))
    with pytest.raises(ConfigError, match=naming("cuda", amount(whole), amount(whole - 1))):
        check(whole - 1, ranks_of(4, 4, "cuda"))


def test_a_remedy_is_named_where_it_helps(check, plans):
    """What else helps: tests of `memory_remedies`."""
    parted = plans(2)["model"].total
    with pytest.raises(ConfigError, match=naming("train.shard", "'model'", amount(parted))):
        check(2 * parted, ranks_of(2, 2))
    with pytest.raises(ConfigError, match=naming("smaller")) as caught:
        check(1, ranks_of(2, 2))
    assert not told(str(caught.value), "train.shard") and not told(str(caught.value), "start")


def test_a_check_says_what_a_rank_keeps(tmp_path):
    output = train(write(tmp_path, train__shard="model"), "--check").output
    assert told(output, "memory", "weights", "gradients", "optimizer", "averages", "train.shard")


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 B"), (999, "999 B"), (5_400_000, "5.4 MB"), (12e9, "12 GB")])
def test_amounts_have_three_digits_at_most(n_bytes, text):
    assert amount(int(n_bytes)) == text
