"""Samplers against exact denoisers, against each other and against diffusers."""

import math
from itertools import pairwise

import pytest
import torch

from dp_prior.config import records_in
from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, DDPM, DPMSolver, Euler, Heun, SamplerConfig, UniPC, step_noise
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.table import NoiseTable
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.diffusion.sampling import sample_of

MEMBERS = [member() for member in records_in(SamplerConfig)]
MEANS, STDS, SHARES = torch.tensor([-0.7, 0.6]).double(), torch.tensor([0.2, 0.3]).double(), torch.tensor([0.3, 0.7])


def rows(count: int) -> Randomness:
    return Randomness.from_counts(0, "test", torch.arange(count))


def mixture_cdf(x, alpha, sigma):
    """P(x_t <= x) where x_0 is the mixture of two Gaussians."""
    stds = (alpha**2 * STDS**2 + sigma**2) ** 0.5
    return (SHARES * torch.special.ndtr((x[..., None] - alpha * MEANS) / stds)).sum(-1)


def exact_mixture(table):
    """E[x_0 | x_t] where x_0 is the mixture."""

    def denoise(x_t, t):
        alpha, sigma = table.levels[t]
        variances = alpha**2 * STDS**2 + sigma**2
        offset = x_t.double()[..., None] - alpha * MEANS
        share = torch.softmax(SHARES.log() - offset**2 / variances / 2 - variances.log() / 2, -1)
        return (share * (MEANS + alpha * STDS**2 / variances * offset)).sum(-1).to(x_t.dtype)

    return denoise


def exact_gaussian(table, mean=0.4, std=0.5):
    """E[x_0 | x_t] for x_0 ~ N(mean, std^2)."""

    def denoise(x_t, t):
        alpha, sigma = table.levels[t]
        gain = alpha * std**2 / (alpha**2 * std**2 + sigma**2)
        return mean + gain * (x_t - alpha * mean)

    return denoise


def quantiles(probability, alpha, sigma):
    """Inverse of `mixture_cdf`, by bisection."""
    low, high = torch.full_like(probability, -20.0), torch.full_like(probability, 20.0)
    for _ in range(80):
        middle = (low + high) / 2
        is_below = mixture_cdf(middle, alpha, sigma) < probability
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return low


def even_table(steps, kind):
    """`steps` timesteps even in lambda from 2.5 to -2.5, variance preserving or straight."""
    ratio = torch.linspace(2.5, -2.5, steps, dtype=torch.float64).exp()
    norm = 1 + ratio if kind == "flow" else (1 + ratio**2).sqrt()
    return NoiseTable(ratio / norm, 1 / norm)


@pytest.mark.parametrize("kind", ["variance preserving", "flow"])
@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (DDIM(steps=None), 1),
        (Euler(steps=None), 1),
        (Heun(steps=None), 2),
        (DPMSolver(steps=None), 2),
        (UniPC(steps=None, order=1), 2),
        (UniPC(steps=None, order=2), 3),
        (UniPC(steps=None, order=3), 4),
    ],
    ids=repr,
)
def test_deterministic_samplers_converge_to_the_flow_of_a_mixture_at_their_order(sampler, order, kind):
    """In one dimension the ODE carries quantiles to quantiles. The step to the clean sample is left out: it returns an
    expectation, whatever the sampler."""
    errors = []
    for steps in (20, 40, 80):
        table = even_table(steps, kind)
        probability = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
        start = quantiles(probability, *table.levels[steps - 1])
        *_, (reached, _), _ = sampler.progressive(exact_mixture(table), start[:, None], table, rows(25))
        errors.append((reached[:, 0] - quantiles(probability, *table.levels[0])).abs().mean().item())
    slopes = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert order - 0.35 < slopes[-1] < order + 0.8, (errors, slopes)
    assert errors[-1] < 0.02


LAWS = [
    DDPM(),
    DDIM(steps=None),
    DDIM(steps=None, eta=0.5),
    DPMSolver(steps=50),
    DPMSolver(steps=100, stochastic=True),
    UniPC(steps=30),
    UniPC(steps=30, order=3),
    Euler(steps=None),
    Heun(steps=50),
]


def every_pair(samplers, schedules):
    """All pairs, of which those are slow that no sampler needs to meet one schedule."""
    for i, sampler in enumerate(samplers):
        for j, schedule in enumerate(schedules):
            marks = () if i % len(schedules) == j else pytest.mark.slow
            yield pytest.param(sampler, schedule, marks=marks, id=f"{schedule!r}-{sampler!r}")


@pytest.mark.parametrize(
    ("sampler", "schedule"), [*every_pair(LAWS, [Cosine(steps=200), Linear(steps=200), Flow(steps=200)])]
)
def test_samplers_meet_the_law_of_a_mixture(sampler, schedule):
    """Kolmogorov's distance over 20,000 samples, 99.9 % of which stay below 0.014 if the law is exact."""
    table, count = schedule.table(), 20_000
    random = rows(count)
    x_0 = sampler(exact_mixture(table), random.stream("start").normal(1), table, random).flatten().double().sort()[0]
    distance = (mixture_cdf(x_0, 1.0, 0.0) - torch.arange(count) / count).abs().max().item()
    assert distance < 0.014 + 0.016


@pytest.mark.parametrize("sampler", [DPMSolver(stochastic=True), DDIM(eta=1.0), DDPM(steps=16)], ids=repr)
def test_stochastic_samplers_keep_the_law_of_a_point_exactly(sampler):
    """Their steps are exact where the estimate is: x_t stays distributed as q(x_t | x_0)."""
    table, random = Cosine().table(), rows(20_000)
    timesteps = sampler.timesteps(table)
    noise = table.levels[99][0] * 0.4 + random.stream("start").normal(1)
    states = sampler.progressive(lambda x_t, t: torch.full_like(x_t, 0.4), noise, table, random)
    for (x_t, _), t in zip(states, [*timesteps[1:], -1], strict=True):
        alpha, sigma = table.levels[t]
        assert x_t.mean().item() == pytest.approx(0.4 * alpha, abs=4 * sigma / 140 + 1e-6)
        assert x_t.std().item() == pytest.approx(sigma, rel=0.025, abs=1e-6)


@pytest.mark.parametrize("schedule", [Cosine(), Flow()], ids=repr)
@pytest.mark.parametrize(
    ("special", "general"),
    [
        (DDPM(), DDIM(steps=None, eta=1.0)),
        (DDPM(steps=10), DDIM(steps=10, eta=1.0)),
        (Euler(), DDIM()),
    ],
    ids=repr,
)
def test_special_cases_equal_the_general_one(special, general, schedule):
    table, random = schedule.table(), rows(5)
    noise = random.normal(4, 2)
    samples = [sampler(exact_gaussian(table), noise, table, random) for sampler in (special, general)]
    torch.testing.assert_close(*samples, rtol=0, atol=1e-6)


def test_dpm_solver_begins_as_ddim_and_its_sde_as_ddpm():
    """Up to the second step, which is the first to extrapolate."""
    table, random = Cosine().table(), rows(5)
    noise = random.normal(4, 2)
    for stochastic, eta in ((False, 0.0), (True, 1.0)):
        solver, plain = (
            sampler.progressive(exact_gaussian(table), noise, table, random)
            for sampler in (DPMSolver(steps=8, stochastic=stochastic), DDIM(steps=8, eta=eta))
        )
        assert torch.equal(next(solver)[0], next(plain)[0])
        assert not torch.equal(next(solver)[0], next(plain)[0])


def test_euler_on_the_flow_table_is_ddim():
    """x moves by the change of sigma times the velocity eps - x_0."""
    table, random = Flow(steps=40).table(), rows(6)
    x_t = noise = random.normal(3).double()
    denoise = exact_gaussian(table)
    for t in reversed(range(40)):
        velocity = (x_t - denoise(x_t, t)) / table.levels[t][1]
        x_t = x_t - velocity / 40
    for sampler in (DDIM(steps=None), Euler(steps=None)):
        torch.testing.assert_close(sampler(denoise, noise, table, random), x_t, rtol=0, atol=1e-13)


@pytest.mark.parametrize("schedule", [Flow(steps=40), Cosine(steps=40)], ids=repr)
def test_heun_is_heun_on_the_straight_path(schedule):
    """Divided by alpha + sigma, any table is a flow table."""
    table, random = schedule.table(), rows(6)
    noise = random.normal(3).double()
    denoise = exact_gaussian(table)
    norms = [alpha + sigma for alpha, sigma in table.levels]
    places = [sigma / norm for (_, sigma), norm in zip(table.levels, norms, strict=True)]
    u = noise / norms[39]
    for t in reversed(range(40)):
        first = (u - denoise(norms[t] * u, t)) / places[t]
        guess = u + (places[t - 1] - places[t]) * first
        second = (guess - denoise(norms[t - 1] * guess, t - 1)) / places[t - 1] if t else first
        u = u + (places[t - 1] - places[t]) * (first + second) / 2
    torch.testing.assert_close(Heun(steps=None)(denoise, noise, table, random), u, rtol=0, atol=1e-12)


def test_encoding_is_undone_by_sampling_at_first_order():
    errors = []
    x_0 = torch.linspace(-0.6, 1.4, 9, dtype=torch.float64)[:, None]
    for steps in (50, 100, 200):
        table = Linear(steps=steps).table()
        noise = DDIM(steps=None).encode(exact_gaussian(table), x_0, table)
        found = DDIM(steps=None)(exact_gaussian(table), noise, table, rows(9))
        errors.append((found - x_0).abs().max().item())
    assert errors[-1] < 0.03 and all(1.6 < coarse / fine < 2.6 for coarse, fine in pairwise(errors)), errors


def test_encoding_a_gaussian_gives_its_quantiles():
    table = Linear(steps=1000).table()
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    noise = DDIM(steps=None).encode(exact_gaussian(table), 0.4 + 0.5 * z, table)
    torch.testing.assert_close(noise, z, rtol=0, atol=0.02)
    assert torch.isfinite(DDIM(steps=None).encode(exact_gaussian(Flow().table()), z, Flow().table())).all()


@pytest.mark.parametrize("clipped", [False, True])
def test_rows_of_different_timesteps_are_led_as_if_each_were_alone(clipped):
    process = DiffusionProcess(DiffusionConfig(clip={"type": "fixed", "bound": 0.5}))
    sampler = DDIM(steps=5, use_clipped_model_output=clipped)
    x_t, path = rows(10).normal(3), sampler.timesteps(process.table)
    denoise = process.denoiser(lambda x_t, t: torch.tanh(x_t + t[:, None] / 100))
    t = torch.tensor(2 * list(path))
    led = sampler.lead(denoise, x_t, t, process.table)
    for i, start in enumerate(t.tolist()):
        *_, (alone, _) = sampler.progressive(denoise, x_t, process.table, rows(10), [s for s in path if s <= start])
        assert torch.equal(led[i], alone[i])


@every(sampler=[*MEMBERS, DDIM(eta=0.7), DPMSolver(stochastic=True)])
def test_a_row_is_the_same_whatever_its_neighbours(sampler):
    table, random = Cosine().table(), rows(8)
    noise = random.stream("start").normal(16, 2)
    whole = sampler(exact_gaussian(table), noise, table, random)
    alone = sampler(exact_gaussian(table), noise[5:6], table, random[5:6])
    assert torch.equal(whole[5:6], alone)


@every(sampler=MEMBERS)
def test_the_noise_given_is_not_changed_and_the_last_state_is_the_sample(sampler):
    table, random = Cosine().table(), rows(3)
    noise = random.stream("start").normal(4)
    before = noise.clone()
    states = list(sampler.progressive(exact_mixture(table), noise, table, random))
    assert torch.equal(noise, before)
    assert len(states) == (sampler.steps or 100)
    assert torch.equal(states[-1][0], sampler(exact_mixture(table), noise, table, random))
    torch.testing.assert_close(*states[-1], rtol=0, atol=1e-6)  # it ends on its estimate


@every(sampler=MEMBERS, steps=[1, 2, 3])
def test_few_steps_are_enough_for_a_single_point(sampler, steps):
    for table in (Cosine().table(), Flow().table()):
        few = sampler.model_copy(update={"steps": steps})
        sample = few(lambda x_t, t: torch.full_like(x_t, 0.3), rows(2).normal(3), table, rows(2))
        torch.testing.assert_close(sample, torch.full((2, 3), 0.3), rtol=0, atol=1e-6)


def test_long_rows_get_noise_of_their_own_at_every_step():
    table, random = Cosine(steps=3).table(), rows(1)
    noises = []

    def denoise(x_t, t):
        noises.append(x_t)
        return torch.zeros_like(x_t)

    DDPM()(denoise, torch.zeros(1, 5000), table, random)
    first, second = noises[1].flatten(), noises[2].flatten()
    fresh = second - table.transition(1, 0, 1.0)[0] * first
    assert abs(torch.corrcoef(torch.stack([first, fresh]))[0, 1]) < 0.05


def nonlinear(x_t, t):
    """Some model output; any deterministic function will do."""
    return torch.tanh(x_t * (1 + t / 100)) * 1.3


PREDICTIONS = {"epsilon": "eps", "sample": "x0", "v_prediction": "v"}
SCHEDULES = {"squaredcos_cap_v2": Cosine(), "linear": Linear()}


@every(prediction=PREDICTIONS, eta=[0.0, 0.4, 1.0], name=SCHEDULES)
def test_ddim_equals_diffusers(prediction, eta, name):
    theirs = scheduler("DDIMScheduler", name, prediction, timestep_spacing="trailing")
    theirs.set_timesteps(20)

    def step(output, t, x, noise):
        return theirs.step(output, t, x, eta=eta, use_clipped_model_output=True, variance_noise=noise).prev_sample

    compare(theirs, step, DDIM(steps=20, eta=eta), prediction, name)


@pytest.mark.slow
@every(
    draw=25,
    prediction=PREDICTIONS,
    eta=[0.0, 0.4, 1.0],
    schedule=[("squaredcos_cap_v2", 10), ("linear", 20), ("linear", 100)],
    bound=[0.3, 1.0, None],
)
def test_ddim_with_the_eps_of_the_network_equals_diffusers(prediction, eta, schedule, bound):
    """The default of diffusers: the clip changes x_0 alone, not the direction to x_t."""
    name, steps = schedule
    clip = {"clip_sample": bound is not None, "clip_sample_range": bound or 1.0}
    theirs = scheduler("DDIMScheduler", name, prediction, timestep_spacing="trailing", **clip)
    theirs.set_timesteps(steps)

    def step(output, t, x, noise):
        return theirs.step(output, t, x, eta=eta, variance_noise=noise).prev_sample

    sampler = DDIM(steps=steps, eta=eta, use_clipped_model_output=False)
    clip = bound and {"type": "fixed", "bound": bound}
    compare(theirs, step, sampler, prediction, name, together=True, clip=clip)


def test_the_clip_does_not_reach_the_eps_that_is_taken_from_the_network():
    """One step by hand: alpha_s clip(x_0) + sigma_s eps, with the eps that the network returned."""
    process, x_t = DiffusionProcess(DiffusionConfig()), torch.tensor([[3.0, -2.0]])
    eps = torch.tensor([[0.5, 0.25]])
    denoise = process.denoiser(lambda x_t, t: eps)
    (alpha_t, sigma_t), (alpha_s, sigma_s) = process.table.levels[60], process.table.levels[30]
    x_0 = ((x_t - sigma_t * eps) / alpha_t).clamp(-1, 1)
    for ours, expected in (
        (DDIM(use_clipped_model_output=False), alpha_s * x_0 + sigma_s * eps),
        (DDIM(), alpha_s * x_0 + sigma_s * (x_t - alpha_t * x_0) / sigma_t),
    ):
        (x_s, found), *_ = ours.progressive(denoise, x_t, process.table, rows(1), [60, 30])
        torch.testing.assert_close(found, x_0)
        torch.testing.assert_close(x_s, expected, rtol=1e-6, atol=1e-6)


def test_encoding_takes_the_eps_that_sampling_takes():
    process, x_0 = DiffusionProcess(DiffusionConfig(schedule=Linear(steps=200))), torch.linspace(-3, 3, 6)[:, None]
    denoise = process.denoiser(lambda x_t, t: 0.8 * x_t)
    sampler = DDIM(steps=None, use_clipped_model_output=False)
    noise = sampler.encode(denoise, x_0, process.table)
    x_t = x_0
    for t, s in pairwise(range(200)):
        (alpha_t, sigma_t), (alpha_s, sigma_s) = process.table.levels[t], process.table.levels[s]
        x_t = alpha_s * ((x_t - sigma_t * 0.8 * x_t) / alpha_t).clamp(-1, 1) + sigma_s * 0.8 * x_t
    torch.testing.assert_close(noise, x_t, rtol=1e-4, atol=1e-5)


@every(variance=["fixed_small", "fixed_large", "learned_range"], prediction=PREDICTIONS, name=SCHEDULES)
def test_ddpm_equals_diffusers(prediction, name, variance, monkeypatch):
    theirs = scheduler("DDPMScheduler", name, prediction, variance_type=variance)
    fake_noise = []
    monkeypatch.setattr("diffusers.schedulers.scheduling_ddpm.randn_tensor", lambda *_, **__: fake_noise.pop())

    def step(output, t, x, noise):
        fake_noise[:] = [noise]
        if variance == "learned_range":  # widens dimension 1; ours the last
            output = torch.cat(output.chunk(2, -1), 1)
        return theirs.step(output, t, x).prev_sample

    compare(theirs, step, DDPM(), prediction, name, variance)


@pytest.mark.slow
@every(algorithm=["dpmsolver++", "sde-dpmsolver++"], prediction=PREDICTIONS, name=SCHEDULES)
def test_dpm_solver_equals_diffusers(prediction, name, algorithm):
    theirs = scheduler(
        "DPMSolverMultistepScheduler", name, prediction, algorithm_type=algorithm, timestep_spacing="trailing"
    )
    theirs.set_timesteps(20)

    def step(output, t, x, noise):
        return theirs.step(output, t, x, variance_noise=noise).prev_sample

    theirs.sigmas = torch.cat(
        [((1 - theirs.betas.double()).cumprod(0) ** -1 - 1).sqrt()[theirs.timesteps], torch.zeros(1).double()]
    )  # as in `compare`, float64
    sampler = DPMSolver(steps=20, stochastic=algorithm.startswith("sde"))
    compare(theirs, step, sampler, prediction, name, clip=None)


def k_diffusion(method, table, timesteps, noise, random, eta):
    """`sample_euler`, `sample_euler_ancestral`, `sample_dpmpp_2m` and `sample_dpmpp_2m_sde` (midpoint), by their
    published update rules: x / alpha over sigma / alpha, to 0."""
    levels = [table.levels[t] for t in timesteps]
    sigmas, x, before = [*(sigma / alpha for alpha, sigma in levels), 0.0], noise / levels[0][0], None
    fresh = step_noise(random, noise.shape[1:], len(levels))
    for i, (t, (alpha, _)) in enumerate(zip(timesteps, levels, strict=True)):
        denoised, (now, to) = nonlinear(x * alpha, t), sigmas[i : i + 2]
        up = 0.0
        if method == "ancestral":
            up = min(to, eta * (to**2 * (now**2 - to**2) / now**2) ** 0.5)
        if method in ("euler", "ancestral") or to == 0:
            x = x + (x - denoised) / now * ((to**2 - up**2) ** 0.5 - now)
        else:
            h = math.log(now / to)
            noisy = h if method == "2m_sde" else 0.0
            gain = -math.expm1(-h - noisy)
            x = to / now * math.exp(-noisy) * x + gain * denoised
            if before is not None:
                x = x + gain * h / math.log(sigmas[i - 1] / now) / 2 * (denoised - before)
            up = to * math.sqrt(-math.expm1(-2 * noisy))
        if up:
            x = x + up * next(fresh).double()
        before = denoised
    return x


@every(
    draw=40,
    way=[
        ("euler", Euler()),
        ("ancestral", DDIM(eta=0.3)),
        ("ancestral", DDIM(eta=1.0)),
        ("2m", DPMSolver()),
        ("2m_sde", DPMSolver(stochastic=True)),
    ],
    schedule=[Linear(steps=100), Cosine(steps=100), Linear(steps=1000)],
    steps=[2, 5, 20, 64],
    spacing=["trailing", "linspace", "quadratic", "karras"],
)
def test_samplers_equal_the_formulas_of_k_diffusion(way, schedule, steps, spacing):
    """Whole paths in float64; what its tables hold is our alpha and sigma, divided."""
    method, sampler = way
    table, random = schedule.table(), rows(3)
    sampler = sampler.model_copy(update={"steps": steps, "spacing": spacing})
    noise = random.stream("start").normal(4, 2).double()
    eta = sampler.eta if method == "ancestral" else 0.0
    expected = k_diffusion(method, table, sampler.timesteps(table), noise, random, eta)
    torch.testing.assert_close(sampler(nonlinear, noise, table, random), expected, rtol=0, atol=2e-12)


def scheduler(kind, name, prediction, **more):
    """A scheduler of diffusers."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: equality with it is NOT tested")
    return getattr(diffusers, kind)(
        100, beta_schedule=name, beta_start=1e-3, beta_end=0.2, prediction_type=prediction, **more
    )


def compare(theirs, step, sampler, prediction, name, variance="fixed_small", together=False, **config):
    """Whole trajectories of both, fed the same starting noise, fresh noise and model outputs.

    `together` begins every step of ours where theirs is: where nothing is clipped, an error of rounding grows by
    1 / alpha on the way, a hundredfold and more.

    Their tables are redone in float64: in float32, 100 steps gather 1e-5 of rounding, and DDIM's variance near pure
    noise, 1 - alpha_bar - std^2, loses all its digits.
    """
    process = DiffusionProcess(
        DiffusionConfig(
            schedule=SCHEDULES[name],
            objective={"type": PREDICTIONS[prediction]},
            variance={"type": variance},
            **config,
        )
    )
    theirs.alphas_cumprod = (1 - theirs.betas.double()).cumprod(0)
    theirs.final_alpha_cumprod = theirs.one = torch.tensor(1.0, dtype=torch.float64)
    random = rows(3)
    x = noise = random.stream("start").normal(4, 2)
    fresh = step_noise(random, (4, 2), len(theirs.timesteps))
    outputs, expected, begun = {}, [], []
    for t in theirs.timesteps.tolist():
        begun.append(x)
        outputs[t] = nonlinear(x, t)
        if variance == "learned_range":
            outputs[t] = torch.cat([outputs[t], torch.sin(3 * x)], -1)
        x = step(outputs[t], t, x, next(fresh)).float()
        expected.append(x)
    denoise = process.denoiser(lambda x_t, t: outputs[int(t[0])])
    if together:
        fresh, path = list(step_noise(random, (4, 2), len(expected))), [*sampler.timesteps(process.table), -1]
        ours = []
        for x, n, t, s in zip(begun, fresh, path, path[1:], strict=False):
            x_s, clean, std = sampler._step(denoise, x, process.table, t, s, sampler.eta)
            ours.append((x_s + std * n, clean))
    else:
        ours = sampler.progressive(denoise, noise, process.table, random)
    for (x_t, _), x in zip(ours, expected, strict=True):
        assert (x_t - x).abs().max() <= 1e-5 * max(1.0, x.abs().max().item())


CHANGES = {
    "ddpm": {},
    "ddim": {"eta": 0.5, "use_clipped_model_output": False},
    "dpm_solver": {"stochastic": True},
    "unipc": {"order": 3},
    "euler": {},
    "heun": {},
}


@every(member=MEMBERS)
def test_every_field_changes_the_sample(member):
    process, random = DiffusionProcess(DiffusionConfig(clip={"type": "fixed", "bound": 0.3})), rows(2)
    assert member.type in CHANGES, f"{member.type}: say in CHANGES which values of its fields change the sample"
    changes = {"steps": 7, "spacing": "linspace", "renoise": 0.8, **CHANGES[member.type]}
    assert set(changes) | {"compile"} == set(member.arguments())  # tests/tensors/test_compilation.py shows that one
    base = member.model_copy(update={"steps": 10})

    def sample(sampler):
        previous = torch.full((2, 3), 0.3)
        return sample_of(process, lambda x_t, t: torch.sin(9 * x_t), (3,), random, Draw(sampler, previous=previous))

    for name, value in changes.items():
        assert not torch.equal(sample(base), sample(base.model_copy(update={name: value}))), name
