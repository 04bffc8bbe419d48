"""A chunk by one graph is the chunk in torch; whatever the graph cannot draw is drawn evaluation by evaluation."""

import copy
import logging
import pickle

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import DDIM, DDPM, UniPC
from dp_prior.diffusion.target import Target
from dp_prior.inference.agent import Agent
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import chunk_sampling
from dp_prior_robot.export.example_rows import observations
from tests.messages import told
from tests.plugins.dp_prior_robot.export.policies import build, needs_onnx

pytestmark = needs_onnx

UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
EXPORTED = {**UNET, "down_dims": [8]}
"""Of agents, which export their network: torch takes a second for each layer."""
DIFFUSION = {"schedule": {"type": "cosine", "steps": 10}, "objective": {"type": "v"}}
GUIDED = {
    "cond_dropout": {"position": 0.1, "embedding": 0.1},
    "diffusion": {**DIFFUSION, "guidance": {"scale": 2.0}},
}


@pytest.fixture
def accelerated(switched_on, quick, monkeypatch):
    """Makes agents accelerate even small networks, by measurements that onnxruntime and the graph win."""
    monkeypatch.setattr(chunk_sampling, "median_seconds", lambda ways, turns: (1.0, 0.1))


class Fixed(DDIM):
    """A sampler of another package."""


def with_graph(policy, is_faster=lambda name, measure: True):
    """A policy that draws by the graph alone, without an export of its network."""
    tokens = policy.encode(observations(policy, 0, 1))
    policy.sampling = chunk_sampling.ChunkSampling(policy, tuple(tokens.shape[1:]), lambda: True, is_faster)
    return policy


def counted(policy):
    """The inputs of every chunk that the graph of a policy draws from now on."""
    graph, chunks = policy.sampling._graph, []
    policy.sampling._graph = lambda values: (chunks.append(values), graph(values))[1]
    return chunks


@torch.no_grad()
def pair(**change):
    """A policy with a graph of its chunks, the same in torch, and the inputs of the graph."""
    policy = with_graph(build(backbone=UNET, **change))
    return policy, build(backbone=UNET, **change), counted(policy)


def loaded():
    policy = build(backbone=EXPORTED)
    policy.is_loaded = True
    return policy


def predicted(policy, rows=1, **how):
    random = Randomness.from_counts(0, "test", torch.arange(rows))
    return policy.predict(observations(policy, 0, rows), random, **how) / 100


def assert_alike(policy, eager, **how):
    torch.testing.assert_close(predicted(policy, **how), predicted(eager, **how), rtol=0, atol=1e-5)


@torch.no_grad()
def test_one_robot_is_drawn_by_one_graph_with_any_sampler_from_noise_and_from_a_chunk():
    policy, eager, chunks = pair()
    previous = predicted(eager) * 100
    hows = [{"sampler": sampler} for sampler in (None, DDIM(steps=2), DDPM(), UniPC(steps=4, order=3))]
    hows += [{"previous": previous}, {"previous": previous, "sampler": UniPC(steps=6)}]
    for how in hows:
        chunks.clear()
        for _ in range(2):
            assert_alike(policy, eager, **how)
        assert len(chunks) == 3, "compared with torch first"


@torch.no_grad()
def test_agents_act_as_in_torch_and_measure_at_load(accelerated):
    policy, eager, actions = loaded(), build(backbone=EXPORTED), {}
    Agent(policy)
    assert len(policy.sampling._steps) == 1
    chunks = counted(policy)
    for key, model in (("graph", policy), ("torch", eager)):
        agent = Agent(model, sampler=DDIM(steps=3), warm_start=True)
        agent.reset(2)
        steps = [observations(model, seed, 1) for seed in range(9)]
        rows = [{name: value[0, -1].numpy() for name, value in step.items()} for step in steps]
        actions[key] = np.stack([agent.act(row) for row in rows]) / 100
    np.testing.assert_allclose(actions["graph"], actions["torch"], rtol=0, atol=1e-5)
    assert chunks
    chunks.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(predicted(policy), predicted(eager))
    next(policy.backbone.parameters()).mul_(1.5), next(eager.backbone.parameters()).mul_(1.5)
    assert torch.equal(predicted(policy), predicted(eager)) and not chunks


@torch.no_grad()
def test_what_the_graph_does_not_draw_is_drawn_as_before():
    policy, eager, chunks = pair()
    values = predicted(eager) * 100
    mask = torch.zeros_like(values, dtype=torch.bool)
    mask[:, 0] = True
    assert_alike(policy, eager, rows=2)
    assert_alike(policy, eager, known=(values, mask))
    target = Target(values, torch.ones(values.shape[1], 1), max_weight=5.0)
    assert torch.equal(predicted(policy, target=target), predicted(eager, target=target))
    with pytest.raises(ConfigError):
        predicted(policy, guidance_scale=3.0)
    for sampler in (Fixed(steps=2), DDIM(steps=2, compile="default")):
        assert not policy.sampling._fits(policy, torch.zeros(1, *policy.x_shape), Draw(sampler))
    policy.process = copy.deepcopy(policy.process)
    assert_alike(policy, eager)
    assert not chunks


@torch.no_grad()
@pytest.mark.parametrize("guidance_scale", [None, 1.0])
def test_guidance_is_left_to_its_two_networks_and_a_scale_of_1_is_none(guidance_scale):
    policy, eager, chunks = pair(**GUIDED)
    assert_alike(policy, eager, guidance_scale=guidance_scale)
    assert bool(chunks) == (guidance_scale == 1.0)


@torch.no_grad()
def test_a_range_that_changes_with_the_normalizer_is_read_at_every_chunk():
    policy, eager, chunks = pair(diffusion={**DIFFUSION, "clip": {"type": "bounds"}})
    before = predicted(policy)
    for model in (policy, eager):
        for name, value in model.normalizer.named_buffers():
            if name in ("x/min", "x/max"):
                value.mul_(0.5)
    assert_alike(policy, eager)
    assert chunks and not torch.equal(predicted(policy), before)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        {"diffusion": {**DIFFUSION, "self_condition": 0.5}},
        {"diffusion": {**DIFFUSION, "clip": {"type": "dynamic"}}},
        {"diffusion": {**DIFFUSION, "variance": {"type": "learned_range"}}},
    ],
    ids=["self-conditioned", "dynamic clip", "learned variance"],
)
def test_other_processes_have_no_graph(change):
    assert not chunk_sampling.is_supported(build(backbone=UNET, **change))


@torch.no_grad()
def test_samplers_of_many_steps_are_not_compared_and_measured(monkeypatch):
    policy, eager, chunks = pair()
    monkeypatch.setattr(chunk_sampling, "MOST_STEPS", 4)
    for steps, count in ((4, 2), (5, 0)):
        assert_alike(policy, eager, sampler=DDIM(steps=steps))
        assert len(chunks) == count
        chunks.clear()


@torch.no_grad()
def test_other_networks_and_large_ones_have_no_graph(monkeypatch):
    policy = build(backbone=UNET)
    assert chunk_sampling.is_supported(policy) and not chunk_sampling.is_supported(build())
    assert not chunk_sampling.is_supported(
        build(backbone=UNET, sampler={"type": "ddim", "steps": 3, "compile": "default"})
    )
    monkeypatch.setattr(chunk_sampling, "MOST_WEIGHTS", 100)
    assert not chunk_sampling.is_supported(policy)


@torch.no_grad()
def test_a_chunk_that_differs_is_one_line_and_evaluations_go_on(caplog):
    policy, eager, chunks = pair()
    graph = policy.sampling._graph
    policy.sampling._graph = lambda values: {"sample": graph(values)["sample"] + 1e-3}
    policy.sampling._steps.clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_alike(policy, eager)
    [line] = caplog.messages
    assert told(line, "ValueError: onnxruntime differs") and policy.sampling._has_failed


@torch.no_grad()
def test_a_graph_that_cannot_be_made_is_one_line_and_evaluations_go_on(accelerated, monkeypatch, caplog):
    monkeypatch.setattr(chunk_sampling, "chunk_graph", lambda *arguments: 1 / 0)
    policy = loaded()
    with caplog.at_level(logging.WARNING):
        Agent(policy)
    lines = [record.message for record in caplog.records if record.name.endswith("chunk_sampling")]
    assert len(lines) == 1 and told(lines[0], "ZeroDivisionError") and policy.runtime is not None
    assert_alike(policy, build(backbone=EXPORTED))


@torch.no_grad()
def test_a_slower_graph_is_measured_once_and_not_used():
    names = []
    policy = with_graph(build(backbone=UNET), lambda name, measure: (names.append(name), measure())[1][0] < 0)
    chunks, eager = counted(policy), build(backbone=UNET)
    for _ in range(3):
        assert torch.equal(predicted(policy), predicted(eager))
    assert len(names) == 1 and "3 evaluations" in names[0] and len(chunks) == 1 + chunk_sampling.TURNS


@torch.no_grad()
def test_the_measurement_is_remembered_and_logged(accelerated, monkeypatch, caplog):
    for seconds, is_chosen in (((1.0, 0.2), True), ((0.2, 1.0), False)):
        monkeypatch.setattr(chunk_sampling, "median_seconds", lambda ways, turns, seconds=seconds: seconds)
        policy = loaded()
        caplog.clear()
        with caplog.at_level(logging.INFO):
            Agent(policy)
        [steps] = policy.sampling._steps.values()
        assert (steps is not None) == is_chosen and told(caplog.text, "1000.00 ms", "200.00 ms")
        [remembered] = [key for key in policy.runtime._choices if "chunk" in key]
        assert policy.runtime._choices[remembered] == is_chosen


def test_copies_and_pickles_have_no_graph():
    policy, _, _ = pair()
    for copied in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert copied.sampling is None
