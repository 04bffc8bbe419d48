"""An average is its closed form, whatever its rate, and is a function of the step alone."""

import math

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.training.ema import EMA, ConstantDecay, PowerDecay
from dp_prior.training.power_function import PowerFunctionDecay
from tests.messages import naming

FINITE = torch.tensor(True)


def drift(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def test_constant_decay_is_the_weighted_sum_of_all_weights():
    model = nn.Linear(2, 2)
    drift(model, 1.0)
    average = EMA(model, ConstantDecay(decay=0.75))
    expected = 1.0
    for step, value in enumerate([2.0, -1.0, 5.0], start=1):
        drift(model, value)
        average.update(step, FINITE)
        expected = 0.75 * expected + 0.25 * value
    torch.testing.assert_close(average.model.weight, torch.full((2, 2), expected))


def test_power_decay_starts_at_the_weights_and_ends_at_the_maximum():
    decay = PowerDecay(inv_gamma=1.0, power=0.75, max_decay=0.99)
    assert decay.at(1) == 0.0
    assert decay.at(2) == pytest.approx(1 - 2**-0.75)
    assert decay.at(10**6) == 0.99
    values = [decay.at(step) for step in range(1, 2000)]
    assert values == sorted(values)


@pytest.mark.parametrize("delay", [0, 5])
def test_power_decay_equals_diffusers_ema_model(delay):
    training_utils = pytest.importorskip("diffusers.training_utils", reason="diffusers is not installed")
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    theirs = training_utils.EMAModel(
        model.parameters(),
        use_ema_warmup=True,
        inv_gamma=2.0,
        power=0.6,
        decay=0.9,
        min_decay=0.1,
        update_after_step=delay,
    )
    ours = EMA(model, PowerDecay(inv_gamma=2.0, power=0.6, max_decay=0.9, min_decay=0.1, update_after_step=delay))
    for step in range(1, 60):
        with torch.no_grad():
            model.weight.add_(torch.randn(3, 3))
        theirs.step(model.parameters())
        ours.update(step, FINITE)
        assert ours.decay.at(step) == pytest.approx(theirs.cur_decay_value)
    torch.testing.assert_close(ours.model.weight, theirs.shadow_params[0])


@pytest.mark.parametrize("update_after_step", [0, 1, 7])
@pytest.mark.parametrize(("power", "inv_gamma"), [(0.75, 1.0), (2 / 3, 3.0)])
def test_power_decay_equals_diffusion_policys_one_update_later(update_after_step, power, inv_gamma):
    """`EMAModel` of its repository: the counter is raised after the decay is taken from it, so it begins at 0."""
    ours = PowerDecay(
        power=power, inv_gamma=inv_gamma, min_decay=0.2, max_decay=0.95, update_after_step=update_after_step + 1
    )
    for optimization_step in range(300):
        step = max(0, optimization_step - update_after_step - 1)
        theirs = max(0.2, min(1 - (1 + step / inv_gamma) ** -power, 0.95)) if step > 0 else 0.0
        assert ours.at(optimization_step + 1) == theirs
    assert [round(PowerDecay().at(step), 3) for step in (1, 2, 3, 4)] == [0.0, 0.405, 0.561, 0.646]
    assert [round(PowerDecay(update_after_step=1).at(step), 3) for step in (1, 2, 3, 4)] == [0.0, 0.0, 0.405, 0.561]


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (PowerDecay, {"inv_gamma": 5.0}),
        (PowerDecay, {"power": 0.5}),
        (PowerDecay, {"min_decay": 0.9}),
        (PowerDecay, {"max_decay": 0.2}),
        (PowerDecay, {"update_after_step": 3}),
        (ConstantDecay, {"decay": 0.5}),
        (PowerFunctionDecay, {"relative_width": 0.1}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_every_field_changes_the_decay(record, change):
    assert record().at(5) != record(**change).at(5)


def test_a_least_decay_above_the_largest_is_refused():
    with pytest.raises(ConfigError, match=naming("min_decay", 0.99, "max_decay", 0.5)):
        PowerDecay.from_json('{"min_decay": 0.99, "max_decay": 0.5}')


def test_buffers_are_copied_and_the_average_takes_no_gradient():
    model = nn.BatchNorm1d(3)
    average = EMA(model, ConstantDecay())
    model(torch.randn(8, 3))
    average.update(1, FINITE)
    assert torch.equal(average.model.running_mean, model.running_mean)
    assert average.model.num_batches_tracked == 1
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert not average.model.training


def test_a_skipped_step_leaves_the_average_alone():
    model = nn.Linear(2, 2)
    average = EMA(model, ConstantDecay(decay=0.5))
    before = average.model.weight.clone()
    drift(model, 9.0)
    average.update(1, torch.tensor(False))
    assert torch.equal(average.model.weight, before)
    drift(model, math.nan)
    average.update(2, torch.tensor(False))
    assert torch.equal(average.model.weight, before)


@pytest.mark.parametrize("decay", [ConstantDecay(), PowerDecay(), PowerFunctionDecay()], ids=lambda decay: decay.type)
def test_buffers_follow_the_model_after_every_step_taken_or_skipped(decay):
    model = nn.BatchNorm1d(3)
    average = EMA(model, decay)
    for step in range(1, 5):
        model(torch.randn(8, 3, generator=torch.Generator().manual_seed(step)))
        average.update(step, torch.tensor(step != 3))
        for ours, theirs in zip(average.model.buffers(), model.buffers(), strict=True):
            assert torch.equal(ours, theirs)
        assert average.model.num_batches_tracked == step
