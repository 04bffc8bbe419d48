"""The network of an agent in onnxruntime denoises as in torch."""

import logging

import numpy as np
import pytest
import torch

from dp_prior.inference.agent import Agent
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.conditioning import ChunkConditions
from dp_prior_robot.export.example_rows import observations
from tests.plugins.dp_prior_robot.export.accelerated import acted, loaded
from tests.plugins.dp_prior_robot.export.policies import build, needs_onnx

pytestmark = [needs_onnx, pytest.mark.usefixtures("switched_on")]


@pytest.mark.slow
def test_a_first_observation_at_which_it_differs_leaves_the_policy_in_torch(quick, monkeypatch, caplog):
    policy, eager = loaded(), build()
    agent = Agent(policy)
    run = policy.runtime._run
    policy.runtime._run = lambda inputs: run(inputs) + 1e-3
    expected = acted(Agent(eager), eager)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(acted(agent, policy), expected)
    assert len([line for line in caplog.messages if "differs" in line]) == 1


@torch.no_grad()
def test_both_networks_of_guidance_compute_the_timesteps_of_a_chunk_at_once(quick, monkeypatch):
    policy = loaded("guided, self-conditioned")
    Agent(policy)
    batches, at = [], ChunkConditions.at

    def counted(conditions, t, tokens, compute):
        return at(conditions, t, tokens, lambda *inputs: (batches.append(len(inputs[0])), compute(*inputs))[1])

    obs, random = observations(policy, 0, 1), Randomness.from_counts(0, "test", torch.arange(1))
    policy.predict(obs, random)
    monkeypatch.setattr(ChunkConditions, "at", counted)
    policy.predict(obs, random)
    assert batches == [3, 3]
