"""Every objective on every schedule: inverse to its target, one currency, one optimum."""

import pytest
import torch

from dp_prior.diffusion.beta_schedules import Linear, ScaledLinear
from dp_prior.diffusion.continuous_schedules import LinearSignal, PowerCosine, Sigmoid
from dp_prior.diffusion.objective import X0, Eps, FlowVelocity, V
from dp_prior.diffusion.schedule import Cosine, Flow
from tests.cases import every
from tests.messages import naming

OBJECTIVES = [Eps(), X0(), V(), FlowVelocity()]
SCHEDULES = [
    Linear(),
    ScaledLinear(),
    Cosine(),
    Cosine(scale=0.5),
    Cosine(zero_terminal_snr=True),
    LinearSignal(),
    Sigmoid(),
    PowerCosine(),
    Flow(),
    Flow(scale=0.5),
]
PAIRS = [(o, s) for o in OBJECTIVES for s in SCHEDULES if o.type != "eps" or s.table().alpha[-1] > 0]


def noised(schedule, dtype=torch.float64):
    """x_0, eps, x_t and levels at every timestep, (T, 5) and (T, 1)."""
    table = schedule.table()
    random = torch.Generator().manual_seed(0)
    x_0, eps = (torch.randn(len(table), 5, dtype=torch.float64, generator=random).to(dtype) for _ in range(2))
    alpha, sigma = table.alpha.to(dtype)[:, None], table.sigma.to(dtype)[:, None]
    return x_0, eps, alpha * x_0 + sigma * eps, alpha, sigma


@every(pair=PAIRS)
def test_to_x0_inverts_the_target(pair):
    objective, schedule = pair
    x_0, eps, x_t, alpha, sigma = noised(schedule)
    target = objective.target(x_0, eps, alpha, sigma)
    torch.testing.assert_close(objective.to_x0(x_t, target, alpha, sigma), x_0, rtol=0, atol=1e-10)


@every(pair=PAIRS)
def test_inversion_in_float32_is_as_good_as_the_levels_allow(pair):
    """x_0 is known to float32 rounding of the terms it is the difference of; 1e-6 wherever those are of order one."""
    objective, schedule = pair
    x_0, eps, x_t, alpha, sigma = noised(schedule, torch.float32)
    a, b = objective.inversion(alpha, sigma)
    x_t_error = (objective.to_x0(x_t, objective.target(x_0, eps, alpha, sigma), alpha, sigma) - x_0).abs()
    assert (x_t_error <= 1e-6 * (1 + a.abs() * x_t.abs().clamp(min=1) + b.abs() * eps.abs().clamp(min=1))).all()


@every(schedule=SCHEDULES)
def test_closed_forms_of_the_general_mixture(schedule):
    """The table of the design: targets, conversions and error scales written out for each objective."""
    x_0, eps, x_t, a, s = noised(schedule)
    output = torch.randn_like(x_0)
    forms = [
        (V(), a * eps - s * x_0, (a * x_t - s * output) / (a**2 + s**2), ((a**2 + s**2) / s) ** 2),
        (X0(), x_0, output, torch.ones_like(a)),
        (FlowVelocity(), eps - x_0, (x_t - s * output) / (a + s), ((a + s) / s) ** 2),
    ]
    if schedule.table().alpha[-1] > 0:
        forms.append((Eps(), eps, (x_t - s * output) / a, (a / s) ** 2))
    for objective, target, x_0_estimate, scale in forms:
        torch.testing.assert_close(objective.target(x_0, eps, a, s), target)
        torch.testing.assert_close(objective.to_x0(x_t, output, a, s), x_0_estimate, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.as_tensor(objective.error_scale(a, s)).expand_as(a), scale)


@every(pair=PAIRS)
def test_error_scale_is_the_ratio_of_the_squared_errors(pair):
    objective, schedule = pair
    x_0, eps, x_t, alpha, sigma = noised(schedule)
    target = objective.target(x_0, eps, alpha, sigma)
    output = target + 0.1 * torch.randn_like(target)
    error = (output - target) ** 2
    x_0_error = (objective.to_x0(x_t, output, alpha, sigma) - x_0) ** 2
    scale = objective.error_scale(alpha, sigma)
    torch.testing.assert_close(error, scale * x_0_error, rtol=1e-6, atol=1e-9)


@every(pair=PAIRS)
def test_all_objectives_have_one_optimum(pair):
    """The output that minimises the loss, E[target | x_t], stands for E[x_0 | x_t]: known for x_0 = +-1."""
    objective, schedule = pair
    table = schedule.table()
    x_t = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for t in (0, 40, 99):
        alpha, sigma = table.levels[t]
        values = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        likelihood = torch.softmax(-((x_t - alpha * values) ** 2) / (2 * sigma**2), dim=0)
        targets = objective.target(values, (x_t - alpha * values) / sigma, alpha, sigma)
        optimum = (likelihood * targets).sum(0)
        estimate = objective.to_x0(x_t, optimum, alpha, sigma)
        torch.testing.assert_close(estimate, torch.tanh(alpha * x_t / sigma**2), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("schedule", [Flow(), Linear(zero_terminal_snr=True), LinearSignal(floor=0)], ids=repr)
def test_eps_is_refused_where_no_signal_is_left(schedule):
    with pytest.raises(ValueError, match=naming("'eps'", "timestep 99", 100, "x0", "v", "flow")):
        Eps().check(schedule.table())
    for objective in OBJECTIVES[1:]:
        objective.check(schedule.table())
