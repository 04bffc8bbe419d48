"""The learning rate is its closed form, and torch's where torch has it."""

import math

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LinearLR, PolynomialLR

from dp_prior.training.learning_rate import (
    ConstantLearningRate,
    CosineLearningRate,
    CosineRestartsLearningRate,
    InverseSqrtLearningRate,
    LinearLearningRate,
    PolynomialLearningRate,
    WarmupStableDecayLearningRate,
)
from tests.cases import every

PLAIN = {"peak": 0.3, "warmup_steps": 0}


def torchs(schedule, steps, **arguments):
    """The rates of torch's schedule for this many steps, from 0.3 on."""
    optimizer = SGD([torch.zeros(())], lr=PLAIN["peak"])
    scheduler = schedule(optimizer, **arguments)
    found = []
    for _ in range(steps):
        found += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return found


def ours(lr, steps, total, first=0):
    return pytest.approx([lr.at(step, total) for step in range(first, first + steps)], abs=1e-9)


def test_warmup_rises_in_equal_steps_to_the_peak():
    lr = CosineLearningRate(peak=0.4, warmup_steps=4)
    assert [lr.at(step, 100) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_without_warmup_the_first_step_has_the_peak():
    assert CosineLearningRate(peak=0.5, warmup_steps=0).at(0, 10) == 0.5


@pytest.mark.parametrize("final", [0.0, 0.25, 1.0])
def test_cosine_and_linear_end_at_the_final_fraction_and_meet_halfway(final):
    cosine = CosineLearningRate(peak=2.0, warmup_steps=10, final_fraction=final)
    linear = LinearLearningRate(peak=2.0, warmup_steps=10, final_fraction=final)
    for lr in (cosine, linear):
        assert lr.at(110, 110) == pytest.approx(2.0 * final)
        assert lr.at(60, 110) == pytest.approx(1.0 + final)
        assert lr.at(500, 110) == pytest.approx(2.0 * final), "past the end the rate stays"
    assert cosine.at(35, 110) == pytest.approx(2.0 * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi / 4))))


@every(
    factor=[0.25, 0.5, 2, 4],
    record=[
        CosineLearningRate,
        LinearLearningRate,
        PolynomialLearningRate,
        CosineRestartsLearningRate,
        WarmupStableDecayLearningRate,
        InverseSqrtLearningRate,
    ],
)
def test_rate_goes_on_from_its_value_where_the_global_batch_changes(record, factor):
    """It jumped where there was a warm-up: from 0.78 to the peak when the batch doubled."""
    lr = record(peak=0.5, warmup_steps=20)
    before = lr.at(40, 100)
    assert before == lr.at(40, 100, 40) and before == pytest.approx(lr.at(40, int(100 / factor), int(40 / factor)))
    rates = [lr.at(40 + n, int(100 / factor), int(40 / factor) + n) for n in range(int(60 / factor) + 1)]
    assert rates[-1] == pytest.approx(lr.at(100, 100)) or record is InverseSqrtLearningRate
    if record is not CosineRestartsLearningRate:
        assert all(one >= other for one, other in zip(rates, rates[1:], strict=False))


def test_constant_stays_at_the_peak():
    assert {ConstantLearningRate(peak=0.1, warmup_steps=0).at(step, 10) for step in (0, 5, 20)} == {0.1}


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_polynomial_is_torchs(power):
    lr = PolynomialLearningRate(**PLAIN, power=power)
    assert torchs(PolynomialLR, 31, total_iters=30, power=power) == ours(lr, 31, 30)
    assert PolynomialLearningRate(peak=2.0, warmup_steps=10, final_fraction=0.25).at(500, 110) == pytest.approx(0.5)


def test_polynomial_of_power_one_is_linear():
    one = PolynomialLearningRate(warmup_steps=3, power=1.0, final_fraction=0.1)
    line = LinearLearningRate(warmup_steps=3, final_fraction=0.1)
    assert [one.at(step, 20) for step in range(25)] == pytest.approx([line.at(step, 20) for step in range(25)])


@pytest.mark.parametrize("final", [0.0, 0.2])
def test_cosine_with_restarts_is_torchs_and_ends_low(final):
    lr = CosineRestartsLearningRate(**PLAIN, cycles=3, final_fraction=final)
    expected = torchs(CosineAnnealingWarmRestarts, 30, T_0=10, eta_min=0.3 * final)
    assert expected == ours(lr, 30, 30)
    assert lr.at(30, 30) == lr.at(90, 30) == pytest.approx(0.3 * final), "not a fourth start"
    once = CosineRestartsLearningRate(cycles=1, final_fraction=final)
    plain = CosineLearningRate(final_fraction=final)
    assert [once.at(step, 900) for step in range(0, 950, 7)] == [plain.at(step, 900) for step in range(0, 950, 7)]


def test_stable_part_is_the_peak_and_the_decay_torchs():
    def rate(decay):
        return WarmupStableDecayLearningRate(**PLAIN, decay_fraction=0.25, decay=decay, final_fraction=0.1)

    for decay in ("sqrt", "linear", "cosine"):
        assert [rate(decay).at(step, 40) for step in range(31)] == [0.3] * 31
        assert rate(decay).at(40, 40) == rate(decay).at(99, 40) == pytest.approx(0.03)
    assert torchs(LinearLR, 11, start_factor=1.0, end_factor=0.1, total_iters=10) == ours(rate("linear"), 11, 40, 30)
    assert torchs(CosineAnnealingLR, 11, T_max=10, eta_min=0.03) == ours(rate("cosine"), 11, 40, 30)
    assert rate("sqrt").at(32, 40) == pytest.approx(0.3 * (1 - 0.9 * math.sqrt(0.2)))
    always = WarmupStableDecayLearningRate(**PLAIN, decay_fraction=1.0, decay="linear")
    assert always.at(20, 40) == pytest.approx(0.15)


def test_inverse_sqrt_halves_in_three_timescales_whatever_the_budget():
    lr = InverseSqrtLearningRate(peak=0.4, warmup_steps=10, timescale_steps=50)
    assert lr.at(10, 1000) == 0.4
    assert lr.at(60, 1000) == pytest.approx(0.4 / math.sqrt(2))
    assert lr.at(160, 1000) == lr.at(160, 30) == pytest.approx(0.2)
    assert lr.at(160, 1000, spent_steps=40) == lr.at(160, 1000), "a change of the global batch does not move it"
    asked = InverseSqrtLearningRate(peak=0.4, warmup_steps=50, timescale_steps=50)  # Vaswani et al., equation 3
    assert asked.at(400, 9) == pytest.approx(0.4 * math.sqrt(50 / 400))
