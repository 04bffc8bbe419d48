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


def test_a_training_that_does_not_fit_is_refused_before_it_is_tried(tmp_path, monkeypatch):
    parts = experiment(tiny(tmp_path)).parts
    ranks = SimpleNamespace(num_processes=4, device=torch.device("cpu"))
    parts = SimpleNamespace(model=parts.model, ranks=ranks)
    config = TrainingConfig(steps=1)
    plans = planned(parts.model, parts.model, config.optimizer.create(parts.model), 1, 4)
    monkeypatch.setattr(memory, "device_memory", lambda device: plans["model"].total)
    check_room(TrainingConfig(steps=1, shard="model"), parts)
    with pytest.raises(
        ConfigError, match=naming(amount(plans["false"].total), "'model'", amount(plans["model"].total))
    ):
        check_room(config, parts)
    monkeypatch.setattr(memory, "device_memory", lambda device: 1)
    with pytest.raises(ConfigError, match=naming("cpu", "1 B", "train.shard", "'model'")):
        check_room(config, parts)


def test_a_check_says_what_a_rank_keeps(tmp_path):
    output = train(write(tmp_path, train__shard="model"), "--check").output
    assert told(output, "memory", "weights", "gradients", "optimizer", "averages", "train.shard")


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 B"), (999, "999 B"), (5_400_000, "5.4 MB"), (12e9, "12 GB")])
def test_amounts_have_three_digits_at_most(n_bytes, text):
    assert amount(int(n_bytes)) == text
