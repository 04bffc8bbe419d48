"""Variances of the reverse step, and the bound of a process that learns them."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.bits_per_dim import bits_per_dim
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDPM, step_noise
from dp_prior.diffusion.schedule import Cosine
from dp_prior.diffusion.variance import (
    FixedLarge,
    FixedSmall,
    Learned,
    LearnedRange,
)
from dp_prior.tensors.randomness import Randomness
from tests.diffusion.sampling import sample_of
from tests.messages import naming


def rows(count: int) -> Randomness:
    return Randomness.from_counts(0, "test", torch.arange(count))


def doubled(x_t, t):
    """A network with a raw variance."""
    return torch.cat([torch.tanh(x_t), torch.sin(3 * x_t)], -1)


def test_learned_range_interpolates_the_log_variance_between_the_bounds():
    least, largest = math.log(0.1), math.log(0.4)
    raw = torch.tensor([-1.0, 0.0, 1.0])
    std = LearnedRange().log_std(raw, least, largest).exp()
    torch.testing.assert_close(std, torch.tensor([0.1, 0.2, 0.4]))
    torch.testing.assert_close((2 * Learned().log_std(raw, least, largest)).exp(), raw.exp())
    assert FixedSmall().log_std(None, least, largest) == least and FixedLarge().log_std(None, least, largest) == largest


def posterior(table, t, x_t, x_0):
    """q(x_{t-1} | x_t, x_0), from the betas of Ho et al. 2020, equations 6 and 7."""
    alpha_bar = table.alpha**2
    beta = 1 - alpha_bar[t] / alpha_bar[t - 1]
    variance = beta * (1 - alpha_bar[t - 1]) / (1 - alpha_bar[t])
    mean = alpha_bar[t - 1].sqrt() * beta / (1 - alpha_bar[t]) * x_0
    mean = mean + (1 - beta).sqrt() * (1 - alpha_bar[t - 1]) / (1 - alpha_bar[t]) * x_t
    return mean, variance, beta


def direct_bound(process, x_0, x_t, t, output):
    """One term of the variational bound in bits, element by element, in float64."""
    table, prediction, raw = process.table, *output.double().chunk(2, -1)
    alpha, sigma = table.levels[t]
    estimate = (x_t - sigma * prediction) / alpha
    if t == 0:
        _, least, largest = posterior(table, 1, x_t, x_0)[1], *posterior(table, 1, x_t, x_0)[1:]
        largest = 1 - table.alpha[0] ** 2
        std = (((raw + 1) / 2) * largest.log() + (1 - (raw + 1) / 2) * least.log()).mul(0.5).exp()
        return -Normal(estimate, std).log_prob(x_0) / math.log(2)
    mean, least, largest = posterior(table, t, x_t, x_0)
    std = (((raw + 1) / 2) * largest.log() + (1 - (raw + 1) / 2) * least.log()).mul(0.5).exp()
    model = Normal(posterior(table, t, x_t, estimate)[0], std)
    return kl_divergence(Normal(mean, least.sqrt()), model) / math.log(2)


LEARNED = DiffusionConfig(variance=LearnedRange(), schedule=Cosine(steps=20))


def test_hybrid_loss_is_simple_loss_and_scaled_bound():
    process = DiffusionProcess(LEARNED)
    x_0 = torch.rand(40, 3, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    loss = process.loss(doubled, x_0, None, rows(40))
    assert 0 in loss.t and len(loss.t.unique()) > 10
    eps = rows(40).stream("noise").normal(3, 2)
    for i, t in enumerate(loss.t.tolist()):
        alpha, sigma = process.table.levels[t]
        x_t = (alpha * x_0[i] + sigma * eps[i]).double()
        bound = direct_bound(process, x_0[i].double(), x_t, t, doubled(x_t.float(), t)).mean().item()
        assert loss.terms["vb"][i].item() == pytest.approx(bound, rel=2e-3, abs=1e-5)
    torch.testing.assert_close(loss.per_sample, loss.terms["simple"] + 0.001 * 20 * loss.terms["vb"])
    fixed = DiffusionProcess(DiffusionConfig(schedule=Cosine(steps=20)))
    plain = fixed.loss(lambda x_t, t: torch.tanh(x_t), x_0, None, rows(40))
    torch.testing.assert_close(loss.terms["simple"], plain.per_sample)
    assert plain.terms == {}


def test_the_bound_of_the_hybrid_loss_moves_the_variance_alone():
    x_0 = torch.rand(8, 3, 2) * 2 - 1

    def gradient(config):
        prediction, raw = torch.zeros(2, 8, 3, 2).unbind(0)
        prediction.requires_grad_(), raw.requires_grad_()
        network = (lambda x_t, t: torch.cat([prediction, raw], -1)) if config is LEARNED else lambda x_t, t: prediction
        DiffusionProcess(config).loss(network, x_0, None, rows(8)).total.backward()
        return prediction.grad, raw.grad

    hybrid, plain = gradient(LEARNED), gradient(DiffusionConfig(schedule=Cosine(steps=20)))
    torch.testing.assert_close(hybrid[0], plain[0])
    assert (hybrid[1] != 0).all() and plain[1] is None


@pytest.mark.parametrize("criterion", ["l2", "vlb"])
def test_the_bound_of_discrete_data_has_a_finite_gradient_at_every_timestep(criterion):
    """The cost of the step to the clean sample has none at the noisiest ones, where the estimate of x_0 is 1e6 off."""
    config = {
        "schedule": {"type": "cosine", "steps": 1000},
        "variance": {"type": "learned_range"},
        "data_step": 1 / 127.5,
    }
    process = DiffusionProcess(DiffusionConfig.model_validate({**config, "criterion": {"type": criterion}}))
    x_0 = torch.randint(0, 256, (4096, 3)) / 127.5 - 1
    output = torch.cat([torch.full((4096, 3), 50.0), torch.zeros(4096, 3)], 1).requires_grad_()
    loss = process.loss(lambda x_t, t: output, x_0, None, rows(4096))
    assert loss.t.min() == 0 and loss.t.max() == 999
    (gradient,) = torch.autograd.grad(loss.total, output)
    assert gradient.isfinite().all()


def test_the_bound_alone_moves_both_and_sums_over_timesteps():
    config = LEARNED.model_copy(update={"criterion": DiffusionConfig(criterion={"type": "vlb"}).criterion})
    output = torch.zeros(8, 3, 4, requires_grad=True)
    loss = DiffusionProcess(config).loss(lambda x_t, t: output, torch.rand(8, 3, 2), None, rows(8))
    torch.testing.assert_close(loss.per_sample, 20 * loss.terms["vb"])
    loss.total.backward()
    assert (output.grad != 0).all()


def test_bits_per_dim_against_a_direct_computation():
    process = DiffusionProcess(DiffusionConfig(schedule=Cosine(steps=20), variance=LearnedRange(), clip=None))
    x_0 = torch.rand(2, 3, 2) * 2 - 1
    bits = bits_per_dim(process, process.denoiser(doubled), x_0, None, rows(2))
    for t in range(20):
        alpha, sigma = process.table.levels[t]
        x_t = (alpha * x_0 + sigma * rows(2).stream("bits", t).normal(3, 2)).double()
        direct = direct_bound(process, x_0.double(), x_t, t, doubled(x_t.float(), t)).mean((1, 2))
        torch.testing.assert_close(bits.vb[:, t].double(), direct, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("schedule", [Linear(steps=1000), Cosine(steps=20)], ids=repr)
def test_the_last_step_of_fixed_large_has_the_std_of_the_step_before_as_in_improved_diffusion(schedule):
    """log_variance = log(append(posterior_variance[1], betas[1:])), for a better likelihood of the decoder."""
    process = DiffusionProcess(
        DiffusionConfig(schedule=schedule, variance=FixedLarge(least_in_last_step=True), clip=None)
    )
    alpha_bar = process.table.alpha**2
    betas = 1 - alpha_bar / torch.cat([torch.ones(1, dtype=torch.float64), alpha_bar[:-1]])
    first = betas[1] * (1 - alpha_bar[0]) / (1 - alpha_bar[1])
    x_0 = torch.rand(2, 3, 2) * 2 - 1
    output = torch.full_like(x_0, 0.1)
    bits = bits_per_dim(process, process.denoiser(lambda x_t, t: output), x_0, None, rows(2))
    for t, variance in ((0, first), (1, betas[1]), (schedule.steps - 1, betas[-1])):
        alpha, sigma = process.table.levels[t]
        x_t = (alpha * x_0 + sigma * rows(2).stream("bits", t).normal(3, 2)).double()
        estimate = (x_t - sigma * 0.1) / alpha
        if t == 0:
            direct = -Normal(estimate, variance.sqrt()).log_prob(x_0.double())
        else:
            mean, least, _ = posterior(process.table, t, x_t, x_0.double())
            model = Normal(posterior(process.table, t, x_t, estimate)[0], variance.sqrt())
            direct = kl_divergence(Normal(mean, least.sqrt()), model)
        torch.testing.assert_close(bits.vb[:, t].double(), direct.mean((1, 2)) / math.log(2), rtol=2e-3, atol=1e-5)


def test_sampling_with_a_learned_variance_meets_the_law_that_was_learned():
    """For Gaussian data the best reverse std is known, between the bounds; with it ten steps have the right spread."""
    std = 0.5

    def spread(variance):
        process = DiffusionProcess(
            DiffusionConfig(schedule=Linear(steps=50), objective={"type": "x0"}, variance=variance, clip=None)
        )
        table = process.table
        steps = DDPM(steps=10)
        after = dict(zip(steps.timesteps(table), [*steps.timesteps(table)[1:], -1], strict=True))

        def network(x_t, t):
            t = int(t[0])
            a, s = table.levels[t]
            gain = a * std**2 / (a**2 * std**2 + s**2)
            if variance.type == "fixed_small":
                return gain * x_t
            if after[t] == -1:
                return torch.cat([gain * x_t, torch.zeros_like(x_t)], -1)
            a_s, s_s = table.levels[after[t]]
            joint = a * a_s * std**2 + a / a_s * s_s**2  # covariance of x_t and x_s
            best = a_s**2 * std**2 + s_s**2 - joint**2 / (a**2 * std**2 + s**2)
            least, largest = table.log_stds(t, after[t])
            raw = 2 * (math.log(best) / 2 - least) / (largest - least) - 1
            assert -1 < raw < 1
            return torch.cat([gain * x_t, torch.full_like(x_t, raw)], -1)

        return sample_of(process, network, (1,), rows(40_000), Draw(steps)).std().item()

    a, s = Linear(steps=50).table().levels[DDPM(steps=10).timesteps(Linear(steps=50).table())[-1]]
    exact = std * math.sqrt(a**2 * std**2 / (a**2 * std**2 + s**2))  # the last step returns an expectation
    assert spread(LearnedRange()) == pytest.approx(exact, rel=0.015)
    assert spread(FixedSmall()) < 0.97 * exact


@pytest.mark.parametrize("variance", [FixedSmall(), FixedLarge(), Learned(), LearnedRange()], ids=lambda v: v.type)
def test_ddpm_on_fewer_steps_is_the_chain_of_these_steps(variance):
    """As respacing in improved-diffusion: betas and the range of the variance are those between steps."""
    process = DiffusionProcess(DiffusionConfig(schedule=Linear(steps=60), variance=variance, clip=None))
    network = doubled if process.output_factor == 2 else lambda x_t, t: torch.tanh(x_t)
    sampler = DDPM(steps=None, spacing=(2, 3, 2))
    states = process.progressive(process.denoiser(network), process.noise((3, 2), rows(4)), rows(4), Draw(sampler))
    x = rows(4).stream("start").normal(3, 2).double()
    visited, alpha_bar = sampler.timesteps(process.table), process.table.alpha**2
    assert len(visited) == 7
    for t, s, noise in zip(visited, visited[1:], step_noise(rows(4), (3, 2), 7), strict=False):
        beta = 1 - alpha_bar[t] / alpha_bar[s]
        least = beta * (1 - alpha_bar[s]) / (1 - alpha_bar[t])
        raw = torch.sin(3 * x)
        share = {"fixed_small": 0.0, "fixed_large": 1.0}.get(variance.type, (raw + 1) / 2)
        log_variance = raw if variance.type == "learned" else share * beta.log() + (1 - share) * least.log()
        x_0 = (x - (1 - alpha_bar[t]).sqrt() * torch.tanh(x)) / alpha_bar[t].sqrt()
        mean = alpha_bar[s].sqrt() * beta * x_0 + (1 - beta).sqrt() * (1 - alpha_bar[s]) * x
        x = mean / (1 - alpha_bar[t]) + (log_variance / 2).exp() * noise
        torch.testing.assert_close(next(states)[0].double(), x, rtol=1e-4, atol=1e-4)


def test_a_network_of_the_wrong_width_is_refused_with_the_remedy():
    process, plain = DiffusionProcess(LEARNED), DiffusionProcess(DiffusionConfig())
    assert process.output_factor == 2 and plain.output_factor == 1
    x_0 = torch.zeros(2, 3, 2)
    with pytest.raises(ValueError, match=naming("(2, 3, 2)", "'learned_range'", "(2, 3, 4)", 2)):
        process.loss(lambda x_t, t: x_t, x_0, None, rows(2))
    with pytest.raises(ValueError, match=naming("(2, 3, 4)", "'fixed_small'", "(2, 3, 2)", 1)):
        plain.loss(doubled, x_0, None, rows(2))
    with pytest.raises(ValueError, match=naming("(2, 2, 2)", "(2, 3, 2)")):
        plain.loss(lambda x_t, t: x_t[:, 1:], x_0, None, rows(2))


@pytest.mark.parametrize("variance", [Learned(), LearnedRange()], ids=repr)
def test_every_field_changes_the_loss(variance):
    x_0 = torch.rand(8, 3, 2)
    losses = [
        DiffusionProcess(DiffusionConfig(variance=v)).loss(doubled, x_0, None, rows(8)).total
        for v in (variance, variance.model_copy(update={"vlb_weight": 0.1}))
    ]
    assert losses[0] != losses[1]
