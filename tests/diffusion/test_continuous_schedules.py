"""Schedules in continuous time equal the published ones."""

import math

import pytest
import torch

from dp_prior.diffusion.continuous_schedules import LinearSignal, PowerCosine, Sigmoid
from tests.cases import every
from tests.messages import naming


def test_linear_signal_without_floor_is_the_jsd_schedule():
    """Its betas are 1 / T, 1 / (T - 1), ..., 1 (Ho et al. 2020)."""
    alpha_bar = LinearSignal(steps=50, floor=0).table().alpha ** 2
    betas = 1 - alpha_bar / torch.cat([torch.ones(1).double(), alpha_bar[:-1]])
    torch.testing.assert_close(betas, 1 / torch.linspace(50, 1, 50, dtype=torch.float64), rtol=1e-12, atol=0)


def test_continuous_schedules_are_those_published():
    """The functions of Chen 2023 and Jabri et al. 2022, written out."""
    u = torch.arange(1, 101).double() / 100

    def sigmoid(start, end, tau):
        first, last = (torch.sigmoid(torch.tensor(end / tau).double()) for end in (start, end))
        return (last - torch.sigmoid((u * (end - start) + start) / tau)) / (last - first)

    def cosine(start, end, tau):
        first, last = (math.cos(end * math.pi / 2) ** (2 * tau) for end in (start, end))
        return (last - torch.cos((u * (end - start) + start) * math.pi / 2) ** (2 * tau)) / (last - first)

    for start, end, tau in ((-3, 3, 1.0), (0, 3, 0.7)):
        table = Sigmoid(start=start, end=end, tau=tau).table()
        torch.testing.assert_close(table.alpha**2, sigmoid(start, end, tau).clamp(1e-9))
    for start, end, tau in ((0, 1, 1.0), (0.2, 0.9, 1.5)):
        table = PowerCosine(start=start, end=end, tau=tau).table()
        torch.testing.assert_close(table.alpha**2, cosine(start, end, tau).clamp(1e-9))
    torch.testing.assert_close(LinearSignal().table().alpha ** 2, (1 - u).clamp(1e-9))


def test_a_span_must_run_forward():
    with pytest.raises(ValueError, match=naming("start", "end", 3)):
        Sigmoid(start=3.0)


def test_one_timestep_may_lie_below_the_floor_and_two_may_not():
    """1 - (t + 1) / T of ten timesteps: 0.1 and 0 are at most 0.15, the last alone is at most 0.05."""
    assert LinearSignal(steps=10, floor=0.05).table().alpha[-1] ** 2 == pytest.approx(0.05)
    with pytest.raises(ValueError, match=naming("floor 0.15", "timestep 8", 10)):
        LinearSignal(steps=10, floor=0.15).table()


@every(schedule=[LinearSignal, Sigmoid, PowerCosine])
def test_scale_shifts_the_signal_to_noise_ratio_and_zero_terminal_snr_ends_it(schedule):
    table = schedule().table()
    torch.testing.assert_close(schedule(scale=0.3).table().snr, 0.09 * table.snr, rtol=1e-9, atol=0)
    stretched = schedule(zero_terminal_snr=True).table()
    assert stretched.alpha[-1] == 0 and stretched.alpha[0] == pytest.approx(table.alpha[0].item(), rel=1e-12)
