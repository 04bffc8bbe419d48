"""A part with a learning rate and weight decay of its own moves as if the whole network were trained with these."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.networks.encoders.encoder import FineTuned
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.training.muon import MuonConfig
from dp_prior.training.optimizer import (
    AdamWConfig,
    TunedPartConfig,
    learning_rate,
    set_learning_rate,
    update,
)
from dp_prior.training.tuned_parts import part_of_each, tuned_parts
from tests import tiny
from tests.cases import every
from tests.messages import naming

OPTIMIZERS = pytest.mark.parametrize("optimizer", [AdamWConfig, MuonConfig])
PARTS = {"down": {"lr_scale": 0.5, "weight_decay": 0.3}, "down.1": {"lr_scale": 0.25}, "up": {"weight_decay": 0.0}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.LayerNorm(5))
        self.downward, self.up = nn.Linear(5, 3), nn.Linear(3, 2)


def parts(given):
    return {name: TunedPartConfig(**one) for name, one in given.items()}


def trained(config, rate=0.02, steps=3, net=None):
    """The parameters by name after some steps."""
    net = net or Net()
    optimizer = config.create(net)
    for seed in range(steps):
        set_learning_rate(optimizer, rate)
        generator = torch.Generator().manual_seed(seed)
        for parameter in net.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        update(optimizer, math.inf)
    return dict(net.named_parameters())


@OPTIMIZERS
def test_every_part_moves_as_in_a_network_trained_with_its_settings_alone(optimizer):
    found = trained(optimizer(weight_decay=0.1, parts=parts(PARTS)))
    alone = {
        "down.0": trained(optimizer(weight_decay=0.3), 0.01),
        "down.1": trained(optimizer(weight_decay=0.1), 0.005),  # the longer name decides, by all that it says
        "down.2": trained(optimizer(weight_decay=0.3), 0.01),
        "downward": trained(optimizer(weight_decay=0.1)),  # begins alike, and is not below
        "up": trained(optimizer(weight_decay=0.0)),
    }
    for name, parameter in found.items():
        assert torch.equal(parameter, alone[name.rpartition(".")[0]][name]), name


@OPTIMIZERS
@pytest.mark.parametrize("setting", [{"lr_scale": 0.5}, {"weight_decay": 0.5}])
def test_every_field_of_a_part_changes_its_step(optimizer, setting):
    found, plain = trained(optimizer(parts=parts({"up": setting}))), trained(optimizer())
    assert {name for name in found if not torch.equal(found[name], plain[name])} >= {"up.weight"}


@OPTIMIZERS
def test_a_part_that_changes_nothing_changes_no_bit(optimizer):
    found, plain = trained(optimizer(parts=parts({"down": {}, "up": {}}))), trained(optimizer())
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_the_multiple_of_an_encoder_is_multiplied_and_the_rate_is_that_of_the_schedule():
    net = Net()
    net.down = FineTuned()
    net.down.layer, net.down.lr_scale = nn.Linear(3, 4), 0.5
    optimizer = AdamWConfig(parts=parts({"down": {"lr_scale": 0.25}})).create(net)
    set_learning_rate(optimizer, 0.5)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in [group["part"]]}
    assert rates == {"": 0.5, "down": 0.0625} and learning_rate(optimizer) == 0.5


@every(name=["dwn", "down.9", "dow", "frozen", ""])
def test_a_part_without_trained_parameters_is_refused_with_the_parts_that_exist(name):
    net = Net()
    net.frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match=naming("train.optimizer.parts", repr(name), "down.0, down.1", "up.weight")):
        AdamWConfig(parts=parts({name: {}})).create(net)


@pytest.mark.parametrize("setting", [{"lr_scale": 0.0}, {"weight_decay": -1.0}])
def test_settings_out_of_range_are_refused_where_they_are(setting):
    (name, value), text = *setting.items(), json.dumps({"parts": {"encoder": setting}})
    with pytest.raises(ConfigError, match=naming(f"parts.encoder.{name}", str(value), "0")):
        AdamWConfig.from_json(text)


def test_parts_of_a_policy_have_the_names_of_its_observations():
    encoders = {"a": {"type": "state", "hidden_dims": [4], "output_dim": 3}, "b": {"type": "state", "output_dim": 3}}
    record = PolicyConfig.from_json(json.dumps({"horizon": 4, "n_obs_steps": 1, "n_action_steps": 2,
                                                "encoders": encoders, "backbone": {"type": "mlp"}}))  # fmt: skip
    policy = record.create(Spec(x_shape=(4, 2), cond_shapes={"b": (1, 2), "a": (1, 5)}))
    named = part_of_each(policy, ["encoder.b", "encoder"])
    assert {name for name, part in named.items() if part == "encoder.b"} == {
        name for name in named if name.startswith("encoder.encoders.1.")
    }
    assert set(named) == {name for name, _ in policy.named_parameters() if name.startswith("encoder.")}
    optimizer = AdamWConfig(weight_decay=0.5, parts=parts({"encoder": {"lr_scale": 0.1}})).create(policy)
    others, encoder = (
        sum(p.numel() for name, p in policy.named_parameters() if name.startswith("encoder.") == is_encoder) / 1e6
        for is_encoder in (False, True)
    )
    assert tuned_parts(optimizer.param_groups, nn.Parameter.numel) == (
        f"encoder: {encoder:.2f} M at 0.1 x lr, weight decay 0.5; "
        f"all others: {others:.2f} M at 1 x lr, weight decay 0.5"
    )
    assert {group["part"] for group in AdamWConfig().create(policy).param_groups} == {""}


@pytest.mark.slow
@OPTIMIZERS
def test_a_run_with_parts_that_was_killed_ends_bit_for_bit_as_one_that_was_not(optimizer, tmp_path):
    given = {"type": optimizer().type, "parts": {"backbone": {"weight_decay": 0.1}, "backbone.blocks": {"lr_scale": 2}}}
    places = [tmp_path / name for name in ("straight", "broken", "plain")]
    for place in places:
        place.mkdir()
    settings = {"train__steps": 8, "train__save_every": {"steps": 3}}
    straight, broken = (tiny.write(place, train__optimizer=given, **settings) for place in places[:2])
    done = tiny.train(straight)
    assert done.exit_code == 0 and "backbone.blocks: " in done.output and "at 2 x lr" in done.output, done.output
    assert tiny.train_and_die(broken, "delivery of a checkpoint") < 0
    assert tiny.train(broken).exit_code == 0
    found, expected = (tiny.state(place / "run") for place in places[:2])
    tiny.assert_equal(found, expected)
    # A run without parts goes on with parts, whose settings change, not the tensors.
    plain = tiny.write(places[2], train__optimizer={"type": optimizer().type}, **settings)
    assert tiny.train(plain).exit_code == 0
    config = json.loads(plain.read_text())
    config["train"] |= {"steps": 10, "optimizer": copy.deepcopy(given)}
    plain.write_text(json.dumps(config))
    done = tiny.train(plain)
    assert done.exit_code == 0 and "train.optimizer.parts" in done.output and "schedule-changing" in done.output


def test_a_part_of_which_longer_entries_name_all_is_refused():
    entries = ["up.weight", "up", "up.bias"]
    with pytest.raises(ConfigError, match=naming("train.optimizer.parts", "'up'")):
        part_of_each(Net(), entries)
    assert part_of_each(Net(), ["up.weight", "up"]) == {"up.weight": "up.weight", "up.bias": "up"}
