"""Laws of the noise tables, and their equality with published ones."""

import math

import pytest
import torch
from pydantic import TypeAdapter

from dp_prior.diffusion.schedule import Cosine, Flow, Linear, NoiseScheduleConfig, NoiseTable, ScaledLinear

SCHEDULES = [Linear(), ScaledLinear(), Cosine(), Flow(), Linear(steps=1000), Cosine(steps=1000)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_snr_falls_at_every_timestep_and_sigma_is_positive(schedule):
    table = schedule.table()
    assert len(table) == schedule.steps
    assert table.alpha.dtype == table.sigma.dtype == torch.float64
    assert (table.snr.diff() < 0).all() and (table.sigma > 0).all() and (table.alpha >= 0).all()


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if not isinstance(s, Flow)], ids=repr)
def test_variance_is_preserved(schedule):
    table = schedule.table()
    torch.testing.assert_close(table.alpha**2 + table.sigma**2, torch.ones(len(table)).double(), rtol=0, atol=1e-12)


def test_flow_path_is_straight_and_ends_in_pure_noise():
    table = Flow(steps=10).table()
    torch.testing.assert_close(table.alpha + table.sigma, torch.ones(10).double(), rtol=0, atol=1e-15)
    assert table.levels[9] == (0.0, 1.0) and table.levels[0] == pytest.approx((0.9, 0.1))


@pytest.mark.parametrize("steps", [50, 100, 1000])
def test_linear_betas_scale_with_the_number_of_timesteps(steps):
    """So that the total noise stays: the betas of T timesteps add up to 1000 times their mean."""
    alpha_bar = torch.cat([torch.ones(1).double(), Linear(steps=steps).table().alpha ** 2])
    assert (1 - alpha_bar[1:] / alpha_bar[:-1]).sum().item() == pytest.approx(1000 * (1e-4 + 0.02) / 2)


def test_cosine_without_cap_is_the_closed_form():
    table = Cosine(steps=50, beta_max=0.9999999).table()
    u = torch.arange(1, 51).double() / 50
    f = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2 / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
    torch.testing.assert_close(table.alpha[:-1] ** 2, f[:-1], rtol=1e-12, atol=0)


def test_cosine_cap_holds_at_the_last_timestep():
    alpha_bar = Cosine(steps=100).table().alpha ** 2
    assert 1 - alpha_bar[-1] / alpha_bar[-2] == pytest.approx(0.999, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "name", "ends"),
    [
        (Cosine(steps=100), "squaredcos_cap_v2", {}),
        (Cosine(steps=1000), "squaredcos_cap_v2", {}),
        (Linear(steps=1000), "linear", {"beta_start": 1e-4, "beta_end": 0.02}),
        (Linear(steps=100), "linear", {"beta_start": 1e-3, "beta_end": 0.2}),
        (
            ScaledLinear(steps=1000, beta_start=0.00085, beta_end=0.012),
            "scaled_linear",
            {"beta_start": 0.00085, "beta_end": 0.012},
        ),
    ],
    ids=repr,
)
def test_betas_equal_diffusers(schedule, name, ends):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: equality with it is NOT tested")
    theirs = diffusers.DDPMScheduler(num_train_timesteps=schedule.steps, beta_schedule=name, **ends)
    alpha_bar = schedule.table().alpha ** 2
    betas = 1 - alpha_bar / torch.cat([torch.ones(1).double(), alpha_bar[:-1]])
    torch.testing.assert_close(betas.float(), theirs.betas, rtol=0, atol=1e-7)


def test_betas_of_one_or_more_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"with 20 steps the largest beta is 1000 / 20 \* 0.02 = 1, .* cosine"):
        Linear(steps=20)


def test_a_table_that_does_not_lose_signal_is_refused():
    with pytest.raises(ValueError, match="must fall with every timestep, but it is 1 at timestep 0 and 1 at the next"):
        NoiseTable(torch.ones(2).double(), torch.ones(2).double())


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (Linear(), {"steps": 50, "beta_start": 2e-4, "beta_end": 0.03}),
        (ScaledLinear(), {"steps": 50, "beta_start": 2e-4, "beta_end": 0.03}),
        (Cosine(), {"steps": 50, "s": 0.02, "beta_max": 0.9}),
        (Flow(), {"steps": 50}),
    ],
    ids=repr,
)
def test_every_field_changes_the_table(record, changes):
    assert set(changes) == set(record.arguments())
    for name, value in changes.items():
        changed = TypeAdapter(NoiseScheduleConfig).validate_python({"type": record.type, name: value})
        assert changed.table().levels != record.table().levels, name
