"""One fused update equals clipping, guarding and stepping one after the other."""

import copy
import math

import pytest
import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.networks.encoders.encoder import FineTuned
from dp_prior.training.optimizer import (
    AdamWConfig,
    TunedPartConfig,
    decay_groups,
    learning_rate,
    parameter_groups,
    set_learning_rate,
    update,
)
from tests.messages import naming


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.linear = nn.Linear(3, 5)
        self.norm = nn.LayerNorm(5)
        self.conv = nn.Conv1d(5, 2, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_only_weight_matrices_and_convolutions_decay_and_frozen_parameters_are_left_out():
    decayed, free = decay_groups(Net())
    assert set(decayed) == {"linear.weight", "conv.weight"}
    assert set(free) == {"embedding.weight", "linear.bias", "norm.weight", "norm.bias", "conv.bias"}


@pytest.mark.parametrize(("betas", "place"), [("[0.9, 1.0]", "betas.1"), ("[1.5, 0.9]", "betas.0")])
def test_moments_that_forget_nothing_are_refused(betas, place):
    """The correction of a moment with decay 1 divides by zero."""
    with pytest.raises(ConfigError, match=naming(place, 1)):
        AdamWConfig.from_json(f'{{"betas": {betas}}}')


@pytest.mark.parametrize(
    "change", [{"betas": (0.5, 0.9)}, {"eps": 1e-2}, {"weight_decay": 0.3}], ids=lambda change: next(iter(change))
)
def test_every_optimizer_field_changes_the_step(change):
    def stepped(config):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        optimizer = config.create(layer)
        set_learning_rate(optimizer, 0.1)
        for scale in (1.0, 3.0):
            layer(torch.full((1, 3), scale)).square().sum().backward()
            update(optimizer, math.inf)
        return layer.weight.detach()

    assert not torch.equal(stepped(AdamWConfig()), stepped(AdamWConfig(**change)))


@pytest.mark.parametrize("max_norm", [0.01, 1.0, math.inf])
def test_one_pass_update_equals_clip_grad_norm_then_adamw(max_norm):
    torch.manual_seed(0)
    ours, reference = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(2))
    reference.load_state_dict(ours.state_dict())
    optimizer = AdamWConfig(weight_decay=0.1).create(ours)
    decayed, free = decay_groups(reference)
    groups = [
        {"params": list(decayed.values()), "weight_decay": 0.1},
        {"params": list(free.values()), "weight_decay": 0},
    ]
    plain = torch.optim.AdamW(groups, lr=0.05, betas=(0.95, 0.999), foreach=False)
    set_learning_rate(optimizer, 0.05)
    for _ in range(5):
        x = torch.randn(16, 6)
        ours(x).square().mean().backward()
        reference(x).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
        norm, finite = update(optimizer, max_norm)
        plain.step()
        plain.zero_grad()
        assert finite
        torch.testing.assert_close(norm, expected)
    for mine, theirs in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)  # torch divides by the norm plus 1e-6


@pytest.mark.parametrize(
    "dtypes", [["float64"], ["bfloat16"], ["float32", "float64"], ["float32", "bfloat16"]], ids=str
)
def test_weights_of_any_type_are_clipped_and_updated(dtypes):
    """The norm is a number of 32 bits for them all; the kernel takes no other."""
    weights = nn.ParameterList([torch.ones(3, 3, dtype=getattr(torch, dtype)) for dtype in dtypes])
    optimizer = AdamWConfig().create(weights)
    set_learning_rate(optimizer, 0.5)
    for gradient in (2.0, math.nan):
        for weight in weights:
            weight.grad = torch.full_like(weight, gradient)
        norm, finite = update(optimizer, 0.1)
        assert norm.dtype == torch.float32 and finite == math.isfinite(gradient)
    for weight in weights:
        torch.testing.assert_close(weight, torch.full_like(weight, 0.5), rtol=0, atol=0.01)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_non_finite_gradient_changes_neither_weights_nor_moments_nor_the_moment_count(poison):
    torch.manual_seed(0)
    layer, twin = nn.Linear(4, 4), nn.Linear(4, 4)
    twin.load_state_dict(layer.state_dict())
    optimizer, undisturbed = AdamWConfig().create(layer), AdamWConfig().create(twin)
    for each in (optimizer, undisturbed):
        set_learning_rate(each, 0.1)
    for step in range(4):
        x = torch.randn(2, 4)
        layer(x).sum().backward()
        update(optimizer, 1.0)
        twin(x).sum().backward()
        update(undisturbed, 1.0)
        if step == 1:
            layer(x).sum().backward()
            layer.weight.grad[1, 2] = poison
            norm, finite = update(optimizer, 1.0)
            assert not finite and not torch.isfinite(norm)
            assert layer.weight.grad is None
    for mine, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for name, value in optimizer.state[mine].items():
            assert torch.equal(value, undisturbed.state[theirs][name])


@pytest.mark.parametrize("is_scaled", [False, True])
def test_step_is_that_of_torch_bit_for_bit_with_skips_missing_gradients_and_a_loss_scaler(is_scaled):
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    groups = [
        {"params": list(group.values()), "weight_decay": decay, "lr_scale": 1.0}
        for group, decay in zip(decay_groups(theirs), (0.1, 0.0), strict=True)
    ]
    optimizers = (
        AdamWConfig(weight_decay=0.1).create(ours),
        torch.optim.AdamW(groups, betas=(0.95, 0.999), fused=True),
    )
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if is_scaled else None for _ in "12"]
    for step in range(9):
        for net, optimizer, scaler in zip((ours, theirs), optimizers, scalers, strict=True):
            draws = torch.Generator().manual_seed(step)
            for name, parameter in net.named_parameters():
                if parameter.requires_grad and not (step % 2 and name.startswith("conv")):
                    scale = 1.0 if scaler is None else scaler.scale(torch.ones(())).item()
                    parameter.grad = scale * torch.randn(parameter.shape, generator=draws)
            if step == 4:
                net.norm.weight.grad[0] = math.nan
            set_learning_rate(optimizer, 0.01 * (step + 1))
            update(optimizer, 1.0, scaler)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
            assert (mine in optimizers[0].state) == (other in optimizers[1].state)
            for name, value in optimizers[1].state.get(other, {}).items():
                assert torch.equal(optimizers[0].state[mine][name], value), name
    if is_scaled:
        assert scalers[0].state_dict() == scalers[1].state_dict()


class Tuned(FineTuned):
    """A part with a learning rate of its own."""

    def __init__(self, lr_scale):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.lr_scale = lr_scale


def moved(lr_scale, steps=3):
    """How far a tuned part and the rest have moved, weights and biases."""
    torch.manual_seed(0)
    model = nn.Sequential(Tuned(lr_scale), nn.Linear(3, 3))
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = AdamWConfig(weight_decay=0.01).create(model)
    for _ in range(steps):
        set_learning_rate(optimizer, 1e-2)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return [now - old for now, old in zip(model.parameters(), before, strict=True)], optimizer


def test_a_fine_tuned_part_learns_at_its_multiple_of_the_rate():
    plain, tenth = moved(1.0)[0], moved(0.1)[0]
    for index in (0, 1):
        torch.testing.assert_close(tenth[index], 0.1 * plain[index], rtol=2e-3, atol=1e-7)
    for index in (2, 3):
        assert torch.equal(tenth[index], plain[index])


def test_parts_of_scale_one_make_no_group_of_their_own():
    assert len(moved(1.0)[1].param_groups) == 2 and len(moved(0.1)[1].param_groups) == 4


def test_a_frozen_part_is_left_out():
    model = nn.Sequential(Tuned(1.0).requires_grad_(False), nn.Linear(3, 3))
    optimizer = AdamWConfig().create(model)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_a_skipped_step_has_a_gradient_of_zeros_and_another_the_unscaled_one():
    """For optimizers that compute with the gradient: 0 * NaN is NaN."""
    layer = nn.Linear(2, 2, bias=False)
    optimizer = AdamWConfig().create(layer)
    layer.weight.grad = torch.tensor([[4.0, math.nan], [math.inf, 2.0]])
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    assert torch.equal(optimizer.gradient(layer.weight), torch.zeros(2, 2)) and optimizer.taken == 0
    layer.weight.grad = torch.tensor([[4.0, 8.0], [-4.0, 2.0]])
    optimizer.found_inf = torch.tensor(0.0)
    assert torch.equal(optimizer.gradient(layer.weight), layer.weight.grad / 4) and optimizer.taken == 1
    optimizer.grad_scale = optimizer.found_inf = None
    assert torch.equal(optimizer.gradient(layer.weight), layer.weight.grad) and optimizer.taken == 1


def test_the_learning_rate_is_that_before_the_multiples_of_groups():
    optimizer = moved(0.1, steps=1)[1]
    set_learning_rate(optimizer, 0.3)
    assert learning_rate(optimizer) == pytest.approx(0.3)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([0.03, 0.3])


@pytest.mark.parametrize(("own", "expected"), [(None, 0.2), (0.0, 0.0), (0.5, 0.5)])
def test_a_part_has_the_weight_decay_of_its_own_also_if_that_is_zero(own, expected):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    groups = parameter_groups(model, 0.2, {"a": TunedPartConfig(weight_decay=own)})
    decays = {(group["part"], group["is_decayed"]): group["weight_decay"] for group in groups}
    assert decays == {("a", True): expected, ("", True): 0.2, ("a", False): 0, ("", False): 0}
