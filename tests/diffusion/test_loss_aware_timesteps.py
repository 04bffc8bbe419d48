"""Timesteps follow the losses that were remembered."""

import math

import pytest
import torch

from dp_prior.diffusion.loss_aware_timesteps import LossSecondMoment
from dp_prior.diffusion.timesteps import UniformTimesteps
from tests.diffusion.test_timesteps import RANDOM, filled


def test_timesteps_are_uniform_until_every_history_is_full_and_in_evaluation():
    sampler = LossSecondMoment(history=3).create(20)
    sampler.update(torch.arange(19).repeat(5), torch.rand(95), torch.ones(95))
    torch.testing.assert_close(sampler.probability(), torch.full((20,), 0.05))
    sampler.update(torch.tensor([19, 19, 19]), torch.ones(3), torch.ones(3))
    assert not torch.equal(sampler.probability(), torch.full((20,), 0.05))
    t, factor = sampler.eval().draw(RANDOM)
    assert factor is None and torch.equal(t, UniformTimesteps().create(20).draw(RANDOM)[0])


def test_history_keeps_the_newest_losses_like_a_loop_does():
    torch.manual_seed(0)
    sampler = LossSecondMoment(history=4).create(6)
    kept = {t: [] for t in range(6)}
    for size in (1, 40, 7, 0, 200, 13):
        t, losses = torch.randint(6, (size,)), torch.rand(size)
        valid = torch.randint(3, (size,))
        losses[torch.rand(size) < 0.1] = float("nan")
        sampler.update(t, losses, valid)
        for step, loss, count in zip(t.tolist(), losses.tolist(), valid.tolist(), strict=True):
            if count and math.isfinite(loss):
                kept[step] = [*kept[step], loss][-4:]
    for step in range(6):
        assert sorted(sampler.losses[step].tolist()) == pytest.approx(sorted(kept[step]))


@pytest.mark.parametrize("loss", [1e20, 3e38, -1e30])
def test_a_huge_loss_keeps_the_probabilities_finite(loss):
    """Its square overflowed: the probability of its timestep was NaN, and every sample drew that timestep."""
    sampler = filled(uniform=0.1)
    sampler.update(torch.full((3,), 7), torch.full((3,), loss), torch.ones(3))
    expected = torch.full((20,), 0.1 / 20)
    expected[7] += 0.9
    torch.testing.assert_close(sampler.probability(), expected)
    t, factor = sampler.draw(RANDOM)
    assert factor.isfinite().all() and len(t.unique()) == 20


@pytest.mark.parametrize("uniform", [0.001, 0.3])
def test_losses_that_scatter_weigh_by_their_root_mean_square_and_not_by_their_mean(uniform):
    """Equation 18 of Nichol and Dhariwal 2021, row by row; losses of one mean and other spreads tell both apart."""
    sampler = LossSecondMoment(history=4, uniform=uniform).create(5)
    losses = torch.tensor(
        [[1.0, 1, 1, 1], [0, 0, 0, 4], [2, 0, 2, 0], [-1, 3, -1, 3], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64
    )
    for column in losses.T:
        sampler.update(torch.arange(5), column, torch.ones(5))
    roots = torch.tensor([math.sqrt(sum(loss**2 for loss in row) / 4) for row in losses.tolist()])
    torch.testing.assert_close(sampler.probability(), (1 - uniform) * roots / roots.sum() + uniform / 5)


def test_stratified_draws_follow_the_places_of_the_samples_and_keep_the_distribution():
    sampler = filled(8, stratified=True)
    positions = torch.arange(4096)
    t, factor = sampler.draw(RANDOM, positions)
    shares = torch.bincount(t, minlength=8) / len(t)
    torch.testing.assert_close(shares, sampler.probability(), rtol=0, atol=2 / 8**2)
    torch.testing.assert_close(factor, 1 / (8 * sampler.probability()[t]))
    assert torch.equal(t, sampler.draw(RANDOM, positions)[0])
