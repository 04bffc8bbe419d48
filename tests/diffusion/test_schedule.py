"""Laws of the noise schedules, and their equality with published ones."""

import math

import pytest
import torch
from pydantic import TypeAdapter

from dp_prior.config import records_in
from dp_prior.diffusion.continuous_schedules import PowerCosine, Sigmoid
from dp_prior.diffusion.schedule import Cosine, Flow, NoiseScheduleConfig
from tests.cases import every

MEMBERS = [member() for member in records_in(NoiseScheduleConfig)]
SCHEDULES = [
    *MEMBERS,
    *(type(member)(steps=1000) for member in MEMBERS),
    *(type(member)(scale=0.5) for member in MEMBERS),
    *(type(member)(zero_terminal_snr=True) for member in MEMBERS if member.type != "flow"),
    Sigmoid(start=-3, end=3, tau=0.5),
    Sigmoid(start=0, end=3, tau=1.1),
    PowerCosine(start=0.2, end=1, tau=2),
    PowerCosine(start=0.2, end=0.9, tau=0.5),
]


@every(schedule=SCHEDULES)
def test_snr_falls_at_every_timestep_and_sigma_is_positive(schedule):
    table = schedule.table()
    assert len(table) == schedule.steps
    assert table.alpha.dtype == table.sigma.dtype == torch.float64
    assert (table.snr.diff() < 0).all() and (table.sigma > 0).all() and (table.alpha >= 0).all()


@every(schedule=SCHEDULES)
def test_the_levels_are_normalised(schedule):
    """Variance is preserved on all tables but flow's, where alpha and sigma add up to 1."""
    table = schedule.table()
    norm = table.alpha + table.sigma if isinstance(schedule, Flow) else table.alpha**2 + table.sigma**2
    torch.testing.assert_close(norm, torch.ones(len(table)).double(), rtol=0, atol=1e-12)


@every(schedule=SCHEDULES)
def test_the_ends_are_nearly_clean_and_nearly_noise(schedule):
    snr = schedule.table().snr
    assert snr[0] > 20 * schedule.scale**2 and snr[-1] < 0.05


@every(member=MEMBERS)
def test_scale_multiplies_the_snr_by_its_square(member):
    scaled = type(member)(scale=0.3).table()
    torch.testing.assert_close(scaled.snr, 0.09 * member.table().snr, rtol=1e-9, atol=0)


@every(member=[m for m in MEMBERS if m.type != "flow"])
def test_zero_terminal_snr_keeps_the_first_timestep_and_empties_the_last(member):
    table, base = type(member)(zero_terminal_snr=True).table(), member.table()
    assert table.alpha[-1] == 0 and table.alpha[0] == pytest.approx(base.alpha[0].item(), rel=1e-12)


def test_flow_path_is_straight_and_ends_in_pure_noise():
    table = Flow(steps=10).table()
    torch.testing.assert_close(table.alpha + table.sigma, torch.ones(10).double(), rtol=0, atol=1e-15)
    assert table.levels[9] == (0.0, 1.0) and table.levels[0] == pytest.approx((0.9, 0.1))


def test_cosine_without_cap_is_the_closed_form():
    table = Cosine(steps=50, beta_max=0.9999999).table()
    u = torch.arange(1, 51).double() / 50
    f = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2 / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
    torch.testing.assert_close(table.alpha[:-1] ** 2, f[:-1], rtol=1e-12, atol=0)


def test_cosine_cap_holds_at_the_last_timestep():
    alpha_bar = Cosine(steps=100).table().alpha ** 2
    assert 1 - alpha_bar[-1] / alpha_bar[-2] == pytest.approx(0.999, rel=1e-9)


CHANGES = {
    "linear": {"beta_start": 2e-4, "beta_end": 0.03},
    "scaled_linear": {"beta_start": 2e-4, "beta_end": 0.03},
    "sigmoid_beta": {"beta_start": 2e-4, "beta_end": 0.03},
    "cosine": {"s": 0.02, "beta_max": 0.9},
    "linear_signal": {"floor": 0.0},
    "sigmoid": {"floor": 0.0, "start": -2.0, "end": 2.0, "tau": 0.5},
    "power_cosine": {"floor": 0.0, "start": 0.2, "end": 0.9, "tau": 0.5},
    "flow": {},
}


@every(member=MEMBERS)
def test_every_field_changes_the_table(member):
    changes = {"steps": 60, "scale": 0.5, **CHANGES[member.type]}
    if member.type != "flow":
        changes["zero_terminal_snr"] = True
    assert set(changes) == set(member.arguments())
    for name, value in changes.items():
        changed = TypeAdapter(NoiseScheduleConfig).validate_python({"type": member.type, name: value})
        assert changed.table().levels != member.table().levels, name
