"""The encoder of an agent in onnxruntime encodes as in torch."""

import copy
import logging

import pytest
import torch

from dp_prior.inference.agent import Agent
from dp_prior.networks.encoders.resnet import FrozenBatchNorm
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import onnx_runtime
from dp_prior_robot.export.example_rows import observations
from tests.messages import told
from tests.plugins.dp_prior_robot.export.accelerated import (
    assert_acts_alike,
    loaded,
)
from tests.plugins.dp_prior_robot.export.policies import needs_onnx

pytestmark = [needs_onnx, pytest.mark.usefixtures("switched_on")]


@torch.no_grad()
def test_the_encoder_of_an_agent_encodes_as_in_torch_unless_conditions_are_dropped(encoding):
    policy, eager, obs, computed = encoding
    torch.testing.assert_close(policy.encode(obs), eager.encode(obs), rtol=0, atol=1e-5)
    computed.clear()
    torch.testing.assert_close(policy.encode(obs), eager.encode(obs), rtol=0, atol=1e-5)
    assert computed == [3]
    random = Randomness.from_counts(0, "test", torch.arange(3))
    assert torch.equal(policy.encode(obs, keep=False), eager.encode(obs, keep=False))
    assert torch.equal(policy.encode(obs, random), eager.encode(obs, random))
    with torch.enable_grad():
        assert torch.equal(policy.encode(obs), eager.encode(obs))
    assert copy.deepcopy(policy).encoding is None and computed == [3]
    next(policy.encoder.parameters()).mul_(2)
    assert not torch.equal(policy.encode(obs), eager.encode(obs)) and computed == [3]


@torch.no_grad()
def test_an_encoder_that_differs_at_first_is_one_line_and_torch_goes_on(encoding, caplog):
    policy, eager, obs, computed = encoding
    run = policy.encoding._run
    policy.encoding._run = lambda values: run(values) + 1e-3
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(policy.encode(obs), eager.encode(obs))
    [line] = caplog.messages
    assert told(line, "encoder", "differs") and policy.runtime is not None


@torch.no_grad()
def test_buffers_that_change_are_not_for_the_export(quick, monkeypatch):
    monkeypatch.setattr(onnx_runtime, "FEWEST_ENCODER_WEIGHTS", 0)
    monkeypatch.setattr(onnx_runtime, "FEWEST_WEIGHTS", 10**9)  # the encoder alone is exported
    policy, eager = loaded("images"), loaded("images")
    for module in [*policy.encoder.modules(), *eager.encoder.modules()]:
        for name, child in module.named_children():
            if isinstance(child, torch.nn.GroupNorm):  # as in a pretrained network
                setattr(module, name, FrozenBatchNorm(child.num_channels).requires_grad_(False))
    Agent(policy)
    obs, before = observations(policy, 0, 1), eager.encode(observations(policy, 0, 1))
    assert_acts_alike(policy.encode(obs).numpy(), before.numpy())
    for model in (policy, eager):
        for name, buffer in model.encoder.named_buffers():
            if name.endswith("running_var"):
                buffer.mul_(4)
    assert torch.equal(policy.encode(obs), eager.encode(obs)) and not torch.equal(policy.encode(obs), before)
