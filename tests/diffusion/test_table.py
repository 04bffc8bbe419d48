"""Steps between the timesteps of a table, against Gaussian conditioning and against quadrature."""

import copy
import math
import pickle
import time
from itertools import pairwise

import pytest
import torch

from dp_prior.diffusion.beta_schedules import Linear
from dp_prior.diffusion.continuous_schedules import PowerCosine
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DPMSolver, UniPC
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.table import NoiseTable
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming


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


@every(schedule=[Cosine(), Linear(), Flow()], eta=[0.0, 0.3, 1.0])
def test_transitions_keep_the_marginals(schedule, eta):
    """With the true x_0, a step from q(x_t | x_0) lands on q(x_s | x_0)."""
    table = schedule.table()
    for t, s in ((99, 98), (99, 10), (50, 20), (1, 0), (5, -1)):
        (alpha_t, sigma_t), (alpha_s, sigma_s) = table.levels[t], table.levels[s]
        c_x, c_0, std = table.transition(t, s, eta)
        assert c_x * alpha_t + c_0 == pytest.approx(alpha_s)
        assert c_x**2 * sigma_t**2 + std**2 == pytest.approx(sigma_s**2)


@pytest.mark.parametrize("schedule", [Cosine(), Linear(), Flow()], ids=repr)
def test_log_stds_are_those_of_the_posteriors_of_one_point_and_of_standard_normal_data(schedule):
    """By conditioning the joint Gaussian of x_s and x_t, given x_0 or not."""
    table = schedule.table()
    for t, s in ((99, 98), (50, 20), (1, 0)):
        (alpha_t, sigma_t), (alpha_s, sigma_s) = table.levels[t], table.levels[s]
        forward = sigma_t**2 - (alpha_t / alpha_s) ** 2 * sigma_s**2
        posterior = forward * sigma_s**2 / sigma_t**2
        covariance = alpha_t / alpha_s * (alpha_s**2 + sigma_s**2)
        normal = alpha_s**2 + sigma_s**2 - covariance**2 / (alpha_t**2 + sigma_t**2)
        assert table.log_stds(t, s) == pytest.approx((math.log(posterior) / 2, math.log(normal) / 2), rel=1e-7)
        if not isinstance(schedule, Flow):
            assert table.log_stds(t, s)[1] == pytest.approx(math.log(forward) / 2, rel=1e-15)
    _, _, largest = table.reverse_steps()
    alpha, sigma = table.levels[0]
    assert largest[0].item() == pytest.approx(math.log(sigma**2 / (alpha**2 + sigma**2)) / 2)  # Var(x_0 | x_t)


def test_betas_are_the_largest_variances_of_neighbours():
    table = Linear(steps=1000).table()
    betas = [1e-4 + (0.02 - 1e-4) * t / 999 for t in range(1000)]
    assert [2 * table.log_stds(t, t - 1)[1] for t in (1, 500, 999)] == pytest.approx(
        [math.log(betas[t]) for t in (1, 500, 999)], rel=1e-9
    )
    _, least, largest = table.reverse_steps()
    assert 2 * largest[0].item() == pytest.approx(math.log(betas[0])) and least[0] == least[1] < least[2]


@pytest.mark.parametrize("schedule", [Cosine(), Linear(steps=1000), Flow(steps=3), Flow(steps=1)], ids=repr)
def test_steps_between_neighbours_are_those_between_any_two(schedule):
    table = schedule.table()
    c_0, least, largest = table.reverse_steps()
    assert c_0.tolist() == pytest.approx([table.transition(t, t - 1, 1.0)[1] for t in range(len(table))], rel=1e-14)
    for t in range(1, len(table)):
        assert (least[t].item(), largest[t].item()) == pytest.approx(table.log_stds(t, t - 1), rel=1e-14)


@pytest.mark.slow
def test_a_million_timesteps_take_seconds():
    began = time.process_time()
    process = DiffusionProcess(DiffusionConfig(schedule=Linear(steps=1_000_000)))
    assert process.levels.shape == (7, 1_000_000) and time.process_time() - began < 20  # half a second; once a minute


@pytest.mark.parametrize("schedule", [Cosine(), Flow()], ids=repr)
def test_a_step_with_one_node_is_the_ddim_step(schedule):
    table = schedule.table()
    for t, s in ((98, 50), (50, 20), (20, 50), (1, 0), (7, -1)):
        c_x, c_0, _ = table.transition(t, s, 0.0)
        assert table.multistep(t, s, (t,)) == pytest.approx((c_x, c_0), rel=1e-12)


@every(nodes=[(40,), (60, 40), (40, 20), (80, 60, 40), (60, 40, 20), (80, 60, 40, 20)])
def test_multistep_integrates_polynomials_in_lambda_exactly(nodes):
    """The ODE's solution is (sigma_s / sigma_t) x_t + sigma_s * integral of exp(lambda) x_0(lambda)."""
    table = Cosine().table()
    t, s = 40, 20
    place = table.half_log_snr
    c_x, *weights = table.multistep(t, s, nodes)
    grid = torch.linspace(place[t], place[s], 20001, dtype=torch.float64)
    for power in range(len(nodes)):
        exact = table.levels[s][1] * torch.trapezoid(grid.exp() * grid**power, grid).item()
        assert sum(w * place[node] ** power for w, node in zip(weights, nodes, strict=True)) == pytest.approx(exact)
    assert c_x == table.levels[s][1] / table.levels[t][1]


def test_pure_noise_counts_as_a_finite_half_log_snr():
    assert Flow(steps=4).table().half_log_snr == pytest.approx([math.log(3), 0.0, -math.log(3), -30.0])


@pytest.mark.parametrize("tau", [1.0, 8.0, 20.0])
def test_faint_signals_are_told_apart(tau):
    """Those below e^-30 counted as equal, and samplers divided by their distance, which was 0."""
    table = PowerCosine(floor=0.0, tau=tau).table()
    assert all(later < before for before, later in pairwise(table.half_log_snr))
    assert table.half_log_snr[-2] == pytest.approx(math.log(table.alpha[-2] / table.sigma[-2]))
    random = Randomness.from_counts(0, "test", torch.arange(4))
    for sampler in (DPMSolver(), DPMSolver(stochastic=True), UniPC(), UniPC(order=3)):
        x_0 = sampler(lambda x_t, t: torch.full_like(x_t, 0.5), random.normal(3), table, random)
        torch.testing.assert_close(x_0, torch.full((4, 3), 0.5))


def test_a_table_that_does_not_lose_signal_is_refused():
    with pytest.raises(ValueError, match=naming("1 at timestep 0")):
        NoiseTable(torch.ones(2).double(), torch.ones(2).double())
    with pytest.raises(ValueError, match=naming("sigma", 0)):
        NoiseTable(torch.ones(2).double(), torch.tensor([0.0, 1.0]).double())


@every(schedule=[Cosine(), Linear(), Flow()], eta=[0.25, 0.5, 1.0])
def test_fresh_noise_grows_in_proportion_to_eta(schedule, eta):
    """Song et al. 2021, equation 16: sigma(eta) is eta times the std of the posterior."""
    table = schedule.table()
    for t, s in ((99, 98), (99, 10), (50, 20), (1, 0)):
        assert table.transition(t, s, eta)[2] == pytest.approx(eta * table.transition(t, s, 1.0)[2], rel=1e-12)


def test_copies_have_the_levels_to_the_last_bit_and_a_cache_of_their_own():
    table = Cosine(steps=50).table()
    table.transition(3, 2, 0.5)
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert other.levels == table.levels and other.alpha.dtype == torch.float64
        assert other.transition(3, 2, 0.5) == table.transition(3, 2, 0.5)
        assert other.transition.cache_info().currsize == 1
