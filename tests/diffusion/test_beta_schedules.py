"""Schedules of betas equal the published ones."""

import pytest
import torch

from dp_prior.diffusion.beta_schedules import Linear, ScaledLinear, SigmoidBeta
from dp_prior.diffusion.schedule import Cosine
from tests.messages import naming


def test_zero_terminal_snr_equals_lin_et_al():
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed: equality with it is NOT tested")
    from diffusers.schedulers.scheduling_ddim import rescale_zero_terminal_snr

    betas = rescale_zero_terminal_snr(diffusers.DDIMScheduler(1000).betas)
    alpha_bar = Linear(steps=1000, zero_terminal_snr=True).table().alpha ** 2
    torch.testing.assert_close(alpha_bar.float(), (1 - betas).cumprod(0), rtol=0, atol=2e-6)


def test_scaled_linear_is_the_quadratic_schedule_of_dalle2():
    scale = 1000 / 200
    betas = torch.linspace((scale * 1e-4) ** 0.5, (scale * 0.02) ** 0.5, 200, dtype=torch.float64) ** 2
    torch.testing.assert_close(ScaledLinear(steps=200).table().alpha ** 2, (1 - betas).cumprod(0))


@pytest.mark.parametrize("steps", [50, 100, 1000])
def test_linear_betas_scale_with_the_number_of_timesteps(steps):
    """So that the total noise stays: the betas of T timesteps add up to 1000 times their mean."""
    alpha_bar = torch.cat([torch.ones(1).double(), Linear(steps=steps).table().alpha ** 2])
    assert (1 - alpha_bar[1:] / alpha_bar[:-1]).sum().item() == pytest.approx(1000 * (1e-4 + 0.02) / 2)


@pytest.mark.parametrize(
    ("schedule", "name", "ends"),
    [
        (Cosine(steps=100), "squaredcos_cap_v2", {}),
        (Cosine(steps=1000), "squaredcos_cap_v2", {}),
        (Linear(steps=1000), "linear", {"beta_start": 1e-4, "beta_end": 0.02}),
        (Linear(steps=100), "linear", {"beta_start": 1e-3, "beta_end": 0.2}),
        (SigmoidBeta(steps=1000), "sigmoid", {"beta_start": 1e-4, "beta_end": 0.02}),
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
    with pytest.raises(ValueError, match=naming("20 steps", "1000 / 20 * 0.02 = 1", "cosine")):
        Linear(steps=20)
