"""Samplers against exact denoisers, against each other and against diffusers."""

import math

import pytest
import torch

from dp_prior.diffusion.sampler import DDIM, DDPM, spaced_timesteps
from dp_prior.diffusion.schedule import Cosine, Flow, Linear
from dp_prior.randomness import Randomness

MEAN, STD = 0.4, 0.5


def rows(count: int) -> Randomness:
    return Randomness.from_counts(0, "test", torch.arange(count))


def exact_gaussian(table, mean=MEAN, std=STD):
    """E[x_0 | x_t] for x_0 ~ N(mean, std^2)."""

    def denoise(x_t, t):
        alpha, sigma = table.levels[t]
        gain = alpha * std**2 / (alpha**2 * std**2 + sigma**2)
        return mean + gain * (x_t - alpha * mean)

    return denoise


@pytest.mark.parametrize("spacing", ["trailing", "linspace", "leading"])
@pytest.mark.parametrize(("trained", "steps"), [(100, 100), (100, 16), (100, 7), (100, 1), (1000, 999), (10, 3)])
def test_spacings_begin_at_the_noisiest_timestep_and_fall(spacing, trained, steps):
    timesteps = spaced_timesteps(trained, steps, spacing)
    assert len(timesteps) == steps and timesteps[0] == trained - 1 and timesteps[-1] >= 0
    assert all(a > b for a, b in zip(timesteps, timesteps[1:], strict=False))


def test_spacings_are_those_published():
    assert spaced_timesteps(100, 5, "trailing") == [99, 79, 59, 39, 19]
    assert spaced_timesteps(101, 5, "linspace") == [100, 75, 50, 25, 0]
    assert spaced_timesteps(100, 5, "leading") == [99, 60, 40, 20, 0]


def test_more_steps_than_timesteps_are_refused():
    with pytest.raises(ValueError, match="the sampler has 200 steps, but only 100 timesteps are trained"):
        DDIM(steps=200).timesteps(100)


@pytest.mark.parametrize("schedule", [Cosine(), Linear(), Flow()], ids=repr)
def test_transition_with_eta_one_is_the_posterior(schedule):
    """q(x_s | x_t, x_0) by conditioning the joint Gaussian of x_s and x_t given x_0."""
    table = schedule.table()
    for t, s in ((99, 98), (99, 10), (50, 20), (1, 0), (5, -1)):
        (alpha_t, sigma_t), (alpha_s, sigma_s) = table.levels[t], table.levels[s]
        forward = alpha_t / alpha_s
        gain = forward * sigma_s**2 / sigma_t**2
        c_x, c_0, std = table.transition(t, s, 1.0)
        assert c_x == pytest.approx(gain, rel=1e-9, abs=1e-12)
        assert c_0 == pytest.approx(alpha_s - gain * alpha_t, rel=1e-9)
        assert std**2 == pytest.approx(sigma_s**2 - gain * forward * sigma_s**2, rel=1e-9)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("schedule", [Cosine(), Linear(), Flow()], ids=repr)
def test_transitions_keep_the_marginals(schedule, eta):
    """With the true x_0, a step from q(x_t | x_0) lands on q(x_s | x_0)."""
    table = schedule.table()
    for t, s in ((99, 98), (99, 10), (50, 20), (1, 0), (5, -1)):
        (alpha_t, sigma_t), (alpha_s, sigma_s) = table.levels[t], table.levels[s]
        c_x, c_0, std = table.transition(t, s, eta)
        assert c_x * alpha_t + c_0 == pytest.approx(alpha_s)
        assert c_x**2 * sigma_t**2 + std**2 == pytest.approx(sigma_s**2)


def test_ddim_converges_to_the_flow_map_of_a_gaussian_at_first_order():
    """The ODE carries the k-th quantile of the noise to the k-th quantile of the data."""
    noise = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    errors = []
    for steps in (25, 50, 100, 200):
        table = Linear(steps=steps).table()
        x_0 = DDIM(steps=None)(exact_gaussian(table), noise, table, rows(9))
        alpha, sigma = table.levels[steps - 1]
        quantile = (noise - alpha * MEAN) / math.sqrt(alpha**2 * STD**2 + sigma**2)
        errors.append((x_0 - (MEAN + STD * quantile)).abs().max().item())
    assert errors[-1] < 0.02
    assert all(1.6 < coarse / fine < 2.6 for coarse, fine in zip(errors, errors[1:], strict=False)), errors


@pytest.mark.parametrize("sampler", [DDPM(), DDIM(steps=None, eta=1.0), DDIM(steps=100, eta=0.5)], ids=repr)
@pytest.mark.parametrize("schedule", [Cosine(steps=200), Flow(steps=200)], ids=repr)
def test_stochastic_samplers_meet_the_law_of_a_gaussian(sampler, schedule):
    table, count = schedule.table(), 20_000
    random = rows(count)
    x_0 = sampler(exact_gaussian(table), random.stream("start").normal(1), table, random)
    assert x_0.mean().item() == pytest.approx(MEAN, abs=0.015)
    assert x_0.std().item() == pytest.approx(STD, abs=0.015)


def test_ddpm_is_ddim_with_eta_one():
    table, random = Cosine().table(), rows(5)
    noise = random.normal(4, 2)
    denoise = exact_gaussian(table)
    for steps in (None, 10):
        ours = DDPM(steps=steps)(denoise, noise, table, random)
        assert torch.equal(ours, DDIM(steps=steps, eta=1.0)(denoise, noise, table, random))


def test_euler_on_the_flow_table_is_ddim():
    """x moves by the change of sigma times the velocity eps - x_0."""
    table, random = Flow(steps=40).table(), rows(6)
    x_t = noise = random.normal(3).double()
    denoise = exact_gaussian(table)
    for t in reversed(range(40)):
        sigma = table.levels[t][1]
        velocity = (x_t - denoise(x_t, t)) / sigma
        x_t = x_t - velocity / 40
    torch.testing.assert_close(DDIM(steps=None)(denoise, noise, table, random), x_t, rtol=0, atol=1e-13)


@pytest.mark.parametrize("sampler", [DDPM(), DDIM(eta=0.7)], ids=repr)
def test_a_row_is_the_same_whatever_its_neighbours(sampler):
    table, random = Cosine().table(), rows(8)
    noise = random.stream("start").normal(16, 2)
    whole = sampler(exact_gaussian(table), noise, table, random)
    alone = sampler(exact_gaussian(table), noise[5:6], table, random[5:6])
    assert torch.equal(whole[5:6], alone)


def test_long_rows_get_noise_of_their_own_at_every_step():
    table, random = Cosine(steps=3).table(), rows(1)
    noises = []

    def denoise(x_t, t):
        noises.append(x_t)
        return torch.zeros_like(x_t)

    DDPM()(denoise, torch.zeros(1, 5000), table, random)
    first, second = noises[1].flatten(), noises[2].flatten()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.9
    fresh = second - table.transition(1, 0, 1.0)[0] * first
    assert abs(torch.corrcoef(torch.stack([first, fresh]))[0, 1]) < 0.05


def nonlinear(x_t, t):
    """Some model output; any deterministic function will do."""
    return torch.tanh(x_t * (1 + t / 100)) * 1.3


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("name", ["squaredcos_cap_v2", "linear"])
def test_ddim_equals_diffusers(prediction, eta, name):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: equality with it is NOT tested")
    theirs = diffusers.DDIMScheduler(
        100, beta_schedule=name, beta_start=1e-3, beta_end=0.2, prediction_type=prediction, timestep_spacing="trailing"
    )
    theirs.set_timesteps(20)

    def step(output, t, x, noise):
        return theirs.step(output, t, x, eta=eta, use_clipped_model_output=True, variance_noise=noise).prev_sample

    compare(theirs, step, DDIM(steps=20, eta=eta), prediction, name)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("name", ["squaredcos_cap_v2", "linear"])
def test_ddpm_equals_diffusers(prediction, name, monkeypatch):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: equality with it is NOT tested")
    from diffusers.schedulers import scheduling_ddpm

    theirs = diffusers.DDPMScheduler(100, beta_schedule=name, beta_start=1e-3, beta_end=0.2, prediction_type=prediction)

    def step(output, t, x, noise):
        monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda *_, **__: noise)
        return theirs.step(output, t, x).prev_sample

    compare(theirs, step, DDPM(), prediction, name)


def compare(theirs, step, sampler, prediction, name):
    """Whole trajectories of both, fed the same starting noise, fresh noise and model outputs.

    Their tables are redone in float64: in float32, 100 steps gather 1e-5 of rounding, and DDIM's variance near pure
    noise, 1 - alpha_bar - std^2, loses all its digits.
    """
    from dp_prior.diffusion.guidance import FixedClip
    from dp_prior.diffusion.process import DiffusionConfig
    from dp_prior.diffusion.sampler import step_noise

    schedule = {"squaredcos_cap_v2": Cosine(), "linear": Linear()}[name]
    objective = {"epsilon": {"type": "eps"}, "sample": {"type": "x0"}, "v_prediction": {"type": "v"}}[prediction]
    process = DiffusionConfig(schedule=schedule, objective=objective, clip=FixedClip()).create()
    theirs.alphas_cumprod = (1 - theirs.betas.double()).cumprod(0)
    theirs.final_alpha_cumprod = theirs.one = torch.tensor(1.0, dtype=torch.float64)
    random = rows(3)
    x = noise = random.stream("start").normal(4, 2)
    fresh = step_noise(random, (4, 2), len(theirs.timesteps))
    outputs, expected = {}, []
    for t in theirs.timesteps.tolist():
        outputs[t] = nonlinear(x, t)
        x = step(outputs[t], t, x, next(fresh))
        expected.append(x)
    denoise = process.denoiser(lambda x_t, t: outputs[int(t[0])], 3)
    ours = sampler.progressive(denoise, noise, process.table, random)
    for (x_t, _), x in zip(ours, expected, strict=True):
        torch.testing.assert_close(x_t, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        (DDPM(), {"steps": 7, "spacing": "linspace"}),
        (DDIM(), {"steps": 7, "spacing": "linspace", "eta": 0.5}),
    ],
    ids=repr,
)
def test_every_field_changes_the_sample(sampler, changes):
    table, random = Cosine().table(), rows(2)
    noise = random.stream("start").normal(3)
    assert set(changes) == set(sampler.arguments())
    base = sampler.model_copy(update={"steps": 10})
    for name, value in changes.items():
        changed = base.model_copy(update={name: value})
        assert not torch.equal(*(s(exact_gaussian(table), noise, table, random) for s in (base, changed))), name
