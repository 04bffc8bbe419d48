"""Ranks that each hold all: what the optimizer and the averages see is the model itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior.training.optimizer import AdamWConfig
from dp_prior.training.replicas import Replicas
from tests.tiny import experiment, tiny


@pytest.mark.parametrize("shard", ["optimizer", "model", False])
def test_a_single_rank_divides_nothing(shard, tmp_path):
    trainer = experiment(tiny(tmp_path, train__shard=shard)).parts.trainer(None, None)
    assert type(trainer.replicas) is Replicas and trainer.local is trainer.online


def test_what_a_rank_holds_is_the_model_itself():
    model, region = nn.Linear(3, 2), nn.Sequential()
    division = Replicas(SimpleNamespace(distributed=lambda module: module))
    optimizer = AdamWConfig().create(model)
    division.divide(optimizer)
    assert optimizer.replicas is division and all(map(optimizer.updates, optimizer.parameters))
    assert division.distributed(region, model) == (region, model)
    assert division.whole(model) is model and division.size(model.weight) == 6
    assert division.part(model.weight, model.weight) is division.gathered(model.weight, model.weight)
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert division.total_norm(gradients).item() == 5.0
    assert optimizer.collected() is optimizer.state
    division.load(model, {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "", "")
    assert model.weight.sum().item() == 6.0
