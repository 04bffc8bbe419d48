"""Cheap measures of policies against closed forms, and what is said of them against an independent library."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from benchmarks.selection.__main__ import main
from benchmarks.selection.measures import critical, flow_bits
from benchmarks.selection.relations import relations
from benchmarks.training import ROOT
from dp_prior.diffusion.denoiser import Denoiser, Estimate
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig

DEVIATIONS = torch.tensor([0.3, 2.0])


class Gaussian:
    """A policy that has learned chunks of independent normal numbers."""

    process = DiffusionProcess(DiffusionConfig())

    def diffused(self, x, cond):
        return x

    def denoiser(self, cond):
        def estimate(x_t, t):
            alpha, sigma = self.process.table.levels[t]
            x_0 = alpha * DEVIATIONS**2 * x_t / (alpha**2 * DEVIATIONS**2 + sigma**2)
            return Estimate(x_0, None, x_0)

        return Denoiser(estimate, None)


def test_the_likelihood_by_the_flow_is_that_of_the_distribution():
    """At the lowest level of noise; the error of the steps is of second order. The Jacobian is diagonal, so that random
    signs give its trace."""
    policy = Gaussian()
    x = DEVIATIONS * torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(0))
    batch = SimpleNamespace(x=x, cond={}, ids=torch.arange(len(x)))
    alpha, sigma = policy.process.table.levels[0]
    deviations = (alpha**2 * DEVIATIONS**2 + sigma**2).sqrt()
    known = -torch.distributions.Normal(0.0, deviations).log_prob(x).flatten(1).sum(1) / (x[0].numel() * np.log(2))
    coarse, fine = ((flow_bits(policy, batch, levels) - known).abs().max() for levels in (24, 48))
    assert fine < 0.003 and 3.5 < coarse / fine < 5


def test_correlations_are_those_of_scipy_and_the_baseline_gains_nothing():
    stats = pytest.importorskip("scipy.stats", reason="NOT CHECKED: scipy is not installed")
    random = np.random.default_rng(0)
    scores = np.round(random.random((10, 2, 1)), 1) + np.zeros(30)
    true = scores[..., 0]
    values = {"loss": random.random((10, 2)), "good": -true + 0.05 * random.random((10, 2)), "coarse": np.round(-true)}
    found = relations(values, scores, "loss", 500)
    for name, one in values.items():
        assert found[name].rho == pytest.approx(stats.spearmanr(one.ravel(), true.ravel()).statistic)
        low, high = found[name].rho_limits
        assert low <= found[name].rho <= high
        low, high = found[name].gain_limits
        assert low <= found[name].gain <= high
    assert found["loss"].gain == 0 == max(found["loss"].gain_limits)
    assert found["good"].gain_limits[0] > 0


def test_checkpoints_that_repeat_a_training_tell_nothing_more():
    random = np.random.default_rng(0)
    values, scores = {"loss": random.random((9, 1)), "other": random.random((9, 1))}, random.random((9, 1, 20))
    once = relations(values, scores, "loss", 500)
    twice = relations({name: one.repeat(3, 1) for name, one in values.items()}, scores.repeat(3, 1), "loss", 500)
    for name in values:
        np.testing.assert_allclose(np.hstack(once[name]), np.hstack(twice[name]), atol=1e-9)


def test_few_episodes_widen_the_interval():
    random, quality = np.random.default_rng(0), np.linspace(0.4, 0.6, 9)[:, None]
    values = {"good": -quality}
    widths = []
    for episodes in (20, 2000):
        played = (random.random((9, 1, episodes)) < quality[:, :, None]).astype(float)
        low, high = relations(values, played, "good", 500)["good"].rho_limits
        widths.append(high - low)
    assert widths[0] > 2 * widths[1]


def test_critical_moments_are_turns_the_goal_and_the_block():
    cond = {"agent_pos": [[0, 0], [256, 200], [256, 256], [90, 100]]}
    blocks = [[100, 100, 0.0], [256, 256, np.pi / 4 + 2 * np.pi], [256, 256, np.pi / 4 + np.pi], [100, 100, 0.0]]
    ways = torch.tensor([[[0.0, 0], [1, 0], [2, 0]], [[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 0], [0, 0]]])[[0, 1, 2, 0]]
    for observed in (
        {"state": [[*agent, *block] for agent, block in zip(cond["agent_pos"], blocks, strict=True)]},
        {"block_pos": [block[:2] for block in blocks], "block_angle": [block[2:] for block in blocks]},
    ):
        given = {name: torch.tensor(one, dtype=torch.float32)[:, None] for name, one in (cond | observed).items()}
        found = {name: one.tolist() for name, one in critical(SimpleNamespace(x=ways, cond=given)).items()}
        assert found["at turns"] == [False, True, True, False]
        assert found["near the goal"] == [False, True, True, False]
        assert found["near the block"] == [False, False, True, True]


@pytest.mark.slow
def test_the_rows_of_the_page_are_made_of_the_record_in_the_repository():
    made = CliRunner().invoke(main, catch_exceptions=False).output.splitlines()
    page = (ROOT / "docs/comparing.md").read_text(encoding="utf-8").splitlines()
    shown = list(itertools.takewhile(lambda line: line.startswith("|"), page[page.index(made[0]) :]))
    assert shown[:4] == made[:4] and shown == [line for line in made if line in shown]
