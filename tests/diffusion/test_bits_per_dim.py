"""The variational bound: the sum of its parts, and the entropy where the denoiser is exact."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.bits_per_dim import bits_per_dim
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.variance import FixedLarge, LearnedRange
from dp_prior.tensors.randomness import Randomness


def rows(count: int) -> Randomness:
    return Randomness.from_counts(0, "test", torch.arange(count))


def doubled(x_t, t):
    """A network with a raw variance."""
    return torch.cat([torch.tanh(x_t), torch.sin(3 * x_t)], -1)


def network(x_t, t):
    return torch.tanh(x_t + t.view(-1, 1, 1) / 100)


def example():
    x_0 = torch.randn(6, 5, 2, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[0] = False
    return x_0, mask


def half_known():
    """(5, 2): the second channel of the first two steps."""
    known = torch.zeros(5, 2, dtype=torch.bool)
    known[:2, 1] = True
    return known


@pytest.mark.parametrize("schedule", [Cosine(steps=20), Linear(steps=50), Flow(steps=20)], ids=repr)
def test_bits_per_dim_is_the_sum_of_its_parts(schedule):
    process = DiffusionProcess(DiffusionConfig(schedule=schedule, objective={"type": "v"}, variance=LearnedRange()))
    x_0 = torch.rand(5, 3, 2) * 2 - 1
    bits = bits_per_dim(process, process.denoiser(doubled), x_0, None, rows(5))
    assert bits.vb.shape == bits.x_0_error.shape == bits.eps_error.shape == (5, schedule.steps)
    torch.testing.assert_close(bits.total, bits.prior + bits.vb.sum(1))
    torch.testing.assert_close(bits.eps_error, process.table.snr.float() * bits.x_0_error)
    alpha, sigma = process.table.levels[schedule.steps - 1]
    prior = kl_divergence(Normal(alpha * x_0.double(), sigma), Normal(0.0, 1.0)).mean((1, 2)) / math.log(2)
    torch.testing.assert_close(bits.prior.double(), prior, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_bits_per_dim_of_an_exact_denoiser_is_the_entropy():
    """With 1000 timesteps and the larger variance the bound is tight: -log2 p(x_0), within 0.02 bits on average."""
    process = DiffusionProcess(
        DiffusionConfig(schedule=Cosine(steps=1000), objective={"type": "x0"}, variance=FixedLarge(), clip=None)
    )
    alpha, sigma = process.table.alpha.float(), process.table.sigma.float()

    def exact(x_t, t):
        a, s = (level[t].view(-1, 1, 1) for level in (alpha, sigma))
        return 0.4 + a * 0.25 / (a**2 * 0.25 + s**2) * (x_t - a * 0.4)

    x_0 = 0.4 + 0.5 * torch.randn(1000, 4, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(1000, 4, generator=torch.Generator().manual_seed(1)) > 0.3
    bits = bits_per_dim(process, process.denoiser(exact), x_0, mask, rows(1000)).total
    entropy = -Normal(0.4, 0.5).log_prob(x_0[mask]).mean() / math.log(2)
    assert (bits * mask.sum(1)).sum().item() / mask.sum().item() == pytest.approx(entropy.item(), abs=0.02)


def test_errors_given_known_elements_are_means_over_the_others():
    schedule = {"type": "cosine", "steps": 3}
    process = DiffusionProcess(DiffusionConfig(schedule=schedule, objective={"type": "x0"}, clip=None))
    (x_0, mask), known = example(), half_known()
    denoiser = process.denoiser(lambda x_t, t: torch.full_like(x_t, 0.25), Draw.of_known(x_0, known))
    found = bits_per_dim(process, denoiser, x_0, mask, rows(6), known=known).x_0_error
    counted = (mask[..., None] & ~known).expand_as(x_0)
    for one, x, where in zip(found, x_0, counted, strict=True):
        mean = (x[where] - 0.25).square().sum() / where.sum().clamp(min=1)  # a row is all padding
        torch.testing.assert_close(one, mean.expand(3))


def test_bound_given_known_elements_is_about_the_others_alone():
    process = DiffusionProcess(DiffusionConfig(schedule=Cosine(steps=10)))
    (x_0, mask), known = example(), half_known()

    def answering(noise):
        return lambda x_t, t: torch.where(known, noise, network(x_t, t))

    def total(noise, known):
        denoiser = process.denoiser(answering(noise), Draw.of_known(x_0, known))
        return bits_per_dim(process, denoiser, x_0, mask, rows(6), known=known).total

    assert torch.equal(total(0.0, known), total(9.0, known))
    assert not torch.allclose(total(0.0, known), total(0.0, None))


def test_each_timestep_has_noise_of_its_own():
    """What the network sees of x_0 = 0, divided by sigma, is the noise: standard normal, and independent over t."""
    process, seen = DiffusionProcess(DiffusionConfig(schedule=Cosine(steps=6))), {}

    def noting(x_t, t):
        seen[int(t[0])] = x_t / process.table.levels[int(t[0])][1]
        return x_t

    bits_per_dim(process, process.denoiser(noting), torch.zeros(500, 4, 2), None, rows(500))
    noise = torch.stack([seen[t].flatten() for t in range(6)])
    correlation = torch.corrcoef(noise) - torch.eye(6)
    assert correlation.abs().max() < 5 / 4000**0.5
    torch.testing.assert_close(noise.std(1), torch.ones(6), rtol=0.06, atol=0)
