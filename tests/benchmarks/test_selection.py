"""Cheap measures of policies against closed forms, and what is said of them against an independent library."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.selection.measures import flow_bits, turning
from benchmarks.selection.relations import kendall, relations
from dp_prior.diffusion.denoiser import Denoiser, Estimate
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig

DEVIATIONS = torch.tensor([0.3, 2.0])


class Gaussian:
    """A policy that has learned chunks of independent normal numbers."""

    process = DiffusionProcess(DiffusionConfig())

    def inside(self, x, cond):
        return x

    def denoiser(self, cond):
        def estimate(x_t, t):
            alpha, sigma = self.process.table.levels[t]
            x_0 = alpha * DEVIATIONS**2 * x_t / (alpha**2 * DEVIATIONS**2 + sigma**2)
            return Estimate(x_0, None, x_0)

        return Denoiser(estimate, None)


def test_the_likelihood_by_the_flow_is_that_of_the_distribution():
    """At the lowest level of noise; the error of the steps is of second order, and signs give the trace on average."""
    policy = Gaussian()
    x = DEVIATIONS * torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(0))
    batch = SimpleNamespace(x=x, cond={}, ids=torch.arange(len(x)))
    alpha, sigma = policy.process.table.levels[0]
    deviations = (alpha**2 * DEVIATIONS**2 + sigma**2).sqrt()
    known = -torch.distributions.Normal(0.0, deviations).log_prob(x).flatten(1).sum(1) / (x[0].numel() * np.log(2))
    coarse, fine = ((flow_bits(policy, batch, None, levels) - known).abs().max() for levels in (24, 48))
    assert fine < 0.003 and 3.5 < coarse / fine < 5
    torch.testing.assert_close(flow_bits(policy, batch, 2), flow_bits(policy, batch, None))  # the Jacobian is diagonal


def test_a_way_that_turns_by_more_than_a_sixth_is_a_turn():
    ways = torch.tensor([[[0.0, 0], [1, 0], [2, 0]], [[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 0], [0, 0]]])
    assert turning(ways.repeat_interleave(2, 1)[:, ::2]).tolist() == [False, True, True]


def test_correlations_are_those_of_scipy_and_the_baseline_gains_nothing():
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    scores = np.round(random.random(20), 1)
    values = {"loss": random.random(20), "good": -scores + 0.05 * random.random(20), "coarse": np.round(-scores)}
    found = relations(values, scores, "loss")
    for name, one in values.items():
        assert found[name].spearman == pytest.approx(stats.spearmanr(one, scores).statistic)
        assert found[name].kendall == pytest.approx(kendall(one, scores)) == stats.kendalltau(one, scores).statistic
        low, high = found[name].limits
        assert low <= found[name].spearman <= high
    assert found["loss"].gain == 0 == max(found["loss"].gain_limits)
    assert found["good"].gain_limits[0] > 0 and found["good"].gain == found["loss"].spearman - found["good"].spearman
