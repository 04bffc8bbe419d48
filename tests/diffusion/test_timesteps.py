"""Timesteps are drawn with the stated probabilities, each from its own row."""

import torch

from dp_prior.diffusion.timesteps import UniformTimesteps
from dp_prior.randomness import Randomness

RANDOM = Randomness.from_counts(0, "test", torch.arange(100_000))


def test_uniform_timesteps_are_equally_likely():
    counts = torch.bincount(UniformTimesteps().create(100).draw(RANDOM), minlength=100)
    assert len(counts) == 100 and counts.sum() == 100_000
    assert (counts - 1000).abs().max() < 4.5 * 1000**0.5  # 4.5 standard errors, 100 of them


def test_a_row_draws_the_same_timestep_in_any_batch():
    sampler = UniformTimesteps().create(100)
    t = sampler.draw(RANDOM)
    assert t.dtype == torch.int64
    assert torch.equal(sampler.draw(RANDOM[7:19]), t[7:19])
