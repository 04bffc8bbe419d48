"""What a sampler is given: any function of (x_t, t) as a denoiser, self-conditioning, and known elements."""

import torch

from dp_prior.diffusion.denoiser import Denoiser, SelfCondition, seeing
from dp_prior.diffusion.variance import FixedSmall

X_T = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


def halved(x_t, t):
    return x_t / 2 + t


def test_a_plain_function_becomes_a_denoiser_once_and_says_the_same():
    denoiser = Denoiser.of(halved)
    assert Denoiser.of(denoiser) is denoiser and denoiser.variance == FixedSmall()
    estimate = denoiser.estimate(X_T, 3)
    assert torch.equal(denoiser(X_T, 3), halved(X_T, 3)) and torch.equal(estimate.x_0, estimate.unclipped)
    assert estimate.raw_variance is None


def test_a_widened_network_sees_the_last_estimate_in_further_channels():
    seen = []
    memory = SelfCondition()
    network = memory.widen(lambda x_t, t: seen.append(x_t) or x_t[..., :2])
    for number in (0.0, 1.0, 2.0):
        network(X_T, 0)
        assert torch.equal(seen[-1], torch.cat([X_T, torch.full_like(X_T, number)], -1))
        stored = torch.full_like(X_T, number + 1)
        assert memory.store(stored) is stored


def test_known_elements_are_seen_without_noise_whatever_the_noisy_sample_holds_there():
    known, values = torch.tensor([True, False]), torch.full_like(X_T, 7.0)
    network = seeing(lambda x_t, t: x_t, values, known)
    for noisy in (X_T, X_T + 100, X_T * torch.tensor([float("nan"), 1.0])):
        found = network(noisy, 0)
        assert (found[..., 0] == 7.0).all() and torch.equal(found[..., 1], noisy[..., 1])
