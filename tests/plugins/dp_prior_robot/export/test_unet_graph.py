"""The graph of a chunk draws what torch draws, for every sampler and every form of the UNet."""

import math

import numpy as np
import pytest
import torch

from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import DDIM, DDPM, DPMSolver, Euler, Heun, UniPC
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import chunk_sampling
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.sessions import Graph
from dp_prior_robot.export.unet_graph import chunk_graph, step_modulation
from tests.plugins.dp_prior_robot.export.policies import build, needs_onnx

pytestmark = needs_onnx

UNET = {"type": "unet1d", "down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8}
SAMPLERS = [
    DDIM(steps=3),
    DDIM(steps=4, eta=0.7, use_clipped_model_output=False),
    DDPM(steps=4),
    DPMSolver(steps=4),
    DPMSolver(steps=4, stochastic=True),
    UniPC(steps=5, order=3),
    Euler(steps=3),
    Heun(steps=3),
]
FORMS = {
    "plain": {},
    "three levels": {"down_dims": [8, 16, 24]},
    "one level": {"down_dims": [8]},
    "a kernel beyond the ends": {"kernel_size": 7, "down_dims": [8, 16, 16]},
    "a bias alone modulates": {"film_scale": False},
    "other groups in the head": {"head_groups": 2},
}


def small_unet(**change):
    policy = build(backbone={**UNET, **change})
    with torch.no_grad():
        for parameter in policy.backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def drawn(policy, sampler, seed=0):
    """The sample by the graph, and by torch."""
    tokens = policy.encode(observations(policy, seed, 1))
    draw, random = Draw(sampler), Randomness.from_counts(seed, "test", torch.arange(1))
    noise = policy.process.noise(policy.x_shape, random)
    denoiser = policy.process.denoiser(
        lambda x_t, t: policy.backbone(x_t, t, tokens), draw, bounds=policy.normalizer.bounds("x")
    )
    sampling = chunk_sampling.ChunkSampling(policy, tuple(tokens.shape[1:]), lambda: True, lambda name, measure: True)
    steps = chunk_sampling._steps_of(policy, draw)
    by_graph = sampling._drawn(steps, tokens, noise, random, draw)
    return by_graph, policy.process.sample(denoiser, noise, random, draw)


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: f"{sampler.type} {sampler.steps}")
def test_every_linear_sampler_draws_as_in_torch(sampler):
    policy = small_unet()
    for seed in range(3):
        torch.testing.assert_close(*drawn(policy, sampler, seed), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_network_is_written(form):
    torch.testing.assert_close(*drawn(small_unet(**FORMS[form]), DDIM(steps=3)), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("clip", [None, {"type": "fixed", "bound": 0.3}, {"type": "bounds", "margin": 0.1}])
def test_the_range_of_the_estimates_is_an_input(clip):
    diffusion = {"schedule": {"type": "cosine", "steps": 10}, "objective": {"type": "eps"}, "clip": clip}
    policy = build(backbone=UNET, diffusion=diffusion)
    for use_clipped in (True, False):
        sampler = DDIM(steps=4, use_clipped_model_output=use_clipped)
        torch.testing.assert_close(*drawn(policy, sampler), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_network_that_is_not_finite_draws_nothing_finite():
    policy = small_unet()
    policy.backbone.head.out.bias.fill_(math.nan)
    by_graph, in_torch = drawn(policy, DDIM(steps=2))
    assert by_graph.isnan().all() and in_torch.isnan().all()


@torch.no_grad()
def test_modulations_are_the_sum_of_those_of_the_timestep_and_of_the_tokens():
    policy = small_unet()
    network, tokens = policy.backbone, policy.encode(observations(policy, 0, 1))
    of_step = torch.from_numpy(step_modulation(network, [3, 7]))
    features = torch.cat([network.step_embedding(torch.tensor([3, 7])), tokens.flatten(1).expand(2, -1)], dim=1)
    features = torch.nn.functional.mish(features)
    first = network.down[0].first.film.linear
    own = first.in_features - tokens[0].numel()
    of_tokens = features[:, own:] @ first.weight[:, own:].t()
    torch.testing.assert_close(of_step[:, : first.out_features] + of_tokens, first(features), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_graph_holds_the_weights_once_for_any_number_of_evaluations():
    policy = small_unet()
    tokens = policy.encode(observations(policy, 0, 1))
    content = chunk_graph(policy.backbone, policy.x_shape, tuple(tokens.shape[1:]))
    n_weights = sum(value.numel() for value in policy.backbone.parameters())
    assert len(content) < 4 * n_weights + 200_000
    graph = Graph(content)
    for sampler in (DDIM(steps=2), DDIM(steps=9)):
        tables = chunk_sampling._steps_of(policy, Draw(sampler)).tables
        size = math.prod(policy.x_shape)
        limits = {"low": np.full((1, size), -1, np.float32), "high": np.full((1, size), 1, np.float32)}
        start = np.zeros((1, *policy.x_shape), np.float32)
        inputs = {"start": start, "tokens": tokens.numpy(), "noise": np.zeros((0, size), np.float32)}
        assert graph({**inputs, **limits, **tables})["sample"].shape == (1, *policy.x_shape)
