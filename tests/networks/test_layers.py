"""Layers against their torch counterparts. Tolerances: float32 rounding of sums of a few hundred products."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import image_policy
from dp_prior.networks import layers
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.backbones.unet1d_local import LocalUNet1DConfig
from dp_prior.networks.backbones.unet2d import UNet2DConfig
from dp_prior.networks.layers import FiLM, GroupNorm, MishBySigmoid, SinusoidalEmbedding
from dp_prior.tensors.randomness import Randomness
from tests.layouts import Layouts, channels_first


def test_mish_is_as_exact_as_torchs_and_so_is_its_gradient():
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([-1e4, -200.0, -0.0, 200.0, 1e4])]).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    exact, y = F.mish(exact_x), layers.mish(x)
    grad = torch.randn(len(x))
    exact.backward(grad.double())
    y.backward(grad)
    torch.testing.assert_close(y, exact.float(), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(x.grad, exact_x.grad.float(), rtol=1e-5, atol=1e-6)
    double = torch.randn(2048, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layers.mish, (double,), fast_mode=True)


def test_mish_of_bfloat16_is_rounded_once():
    x = torch.randn(3000).bfloat16()
    assert torch.equal(layers.mish(x), layers.mish(x.float()).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_equals_torchs_and_so_do_its_gradients(dtype):
    torch.manual_seed(0)
    ours, torchs = layers.KernelLinear(128, 256).to(dtype), nn.Linear(128, 256).to(dtype)  # enough work for oneDNN
    torchs.load_state_dict(ours.state_dict())
    results = []
    for linear in (ours, torchs):
        x = torch.linspace(-1, 1, 120 * 128, dtype=dtype).view(40, 3, 128).requires_grad_()
        y = linear(x)
        y.square().sum().backward()
        results.append([y, x.grad, linear.weight.grad, linear.bias.grad])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_group_norm_equals_torchs_and_so_do_its_gradients():
    torch.manual_seed(0)
    ours, torchs = GroupNorm(4, 24), nn.GroupNorm(4, 24)
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 6, 24, requires_grad=True)
    x_torch = x.detach().clone().requires_grad_()
    y, y_torch = ours(x), torchs(x_torch.transpose(1, 2)).transpose(1, 2)
    assert y.is_contiguous()
    grad = torch.randn_like(y)
    y.backward(grad)
    y_torch.backward(grad)
    torch.testing.assert_close(y, y_torch, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, x_torch.grad, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_sinusoidal_embedding_is_the_published_formula():
    t = torch.tensor([0, 1, 99])
    dim = 16
    rate = math.log(10_000) / (dim // 2 - 1)
    angles = t[:, None].double() * torch.exp(torch.arange(dim // 2).double() * -rate)
    expected = torch.cat([angles.sin(), angles.cos()], dim=1).float()
    embedding = SinusoidalEmbedding(dim=dim)
    torch.testing.assert_close(embedding(t), expected, rtol=0, atol=1e-5)
    assert torch.equal(embedding.to(torch.bfloat16)(t), embedding(t))


def test_film_scales_and_shifts_channels():
    film = FiLM(cond_dim=3, channels=4, has_scale=True)
    x, cond = torch.randn(2, 5, 4), torch.randn(2, 3)
    scale, bias = F.linear(cond, film.linear.weight, film.linear.bias).split(4, dim=1)
    torch.testing.assert_close(film(x, cond), x * scale[:, None] + bias[:, None])
    film = FiLM(cond_dim=3, channels=4, has_scale=False)
    torch.testing.assert_close(film(x, cond), x + film.linear(cond)[:, None])


def test_timesteps_that_half_precision_lacks_are_told_apart():
    """bfloat16 has no 257, float16 no 2,049; a network in either still gets the exact angle."""
    embedding = SinusoidalEmbedding(dim=8)
    for t in (257, 999, 2049):
        rates = [math.exp(-place * math.log(10_000) / 3) for place in range(4)]
        expected = torch.tensor([math.sin(t * rate) for rate in rates] + [math.cos(t * rate) for rate in rates])
        torch.testing.assert_close(embedding(torch.tensor([t]))[0], expected, rtol=0, atol=5e-4)


SMALL = ("train.precision=fp32", "data.batch_size=4")
NETWORKS = {
    "unet1d": (UNet1DConfig(down_dims=(32, 64, 128), step_embed_dim=16), (16, 2), (2, 5)),
    "unet1d_local": (LocalUNet1DConfig(down_dims=(32, 64), step_embed_dim=16), (8, 2), (2, 5)),
}


def policy_step(recipe):
    """A policy and its loss for four samples."""
    spec = image_policy.SPEC if "image" in recipe else image_policy.STATE_SPEC
    record = image_policy.record((32, 64, 128), SMALL, recipe)
    batch = image_policy.batch(4, spec=spec)
    random = Randomness.from_counts(0, "training", batch.positions)
    return image_policy.policy(record, spec).train(), lambda model: model(batch, random, False).total


def network_step(name):
    """A backbone and the square of its output."""
    config, x_shape, cond_shape = NETWORKS[name]
    torch.manual_seed(0)
    x, cond, t = torch.randn(3, *x_shape), torch.randn(3, *cond_shape), torch.tensor([0, 7, 99])
    return config.create(x_shape, cond_shape), lambda network: network(x, t, cond).square().sum()


STEPS = {
    "pusht_image_paper": policy_step,
    "pusht_state_paper": policy_step,
    "unet1d": network_step,
    "unet1d_local": network_step,
}


def gradients_of(model, loss_of):
    loss = loss_of(model)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", STEPS)
def test_no_library_call_of_a_step_is_asked_to_convert_a_memory_order(name):
    """On a GPU, where group norm reads and returns channels first; here with the device's choice forced."""
    model, loss_of = STEPS[name](name)
    with Layouts() as before:
        expected, gradients = gradients_of(copy.deepcopy(model), loss_of)
    with channels_first("cpu"):
        moved = copy.deepcopy(model).to("cpu")
        with Layouts() as layouts:
            loss, same = gradients_of(moved, loss_of)
    assert {"convolution", "native_group_norm"} <= set(layouts.calls)
    assert {call for call, *_ in layouts.conversions} <= {"convolution_backward"}
    assert len(layouts.conversions) <= 1, "the gradient of the chunk itself, of a few numbers a position"
    assert len(before.conversions) > 20, "in the other order this law is broken by every layer"
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    assert max((same[key] - value).norm() / norm for key, value in gradients.items()) < 1e-3
    assert all(parameter.grad.stride() == parameter.stride() for parameter in moved.parameters())


def test_a_unet_of_images_begins_in_the_order_of_the_device():
    sizes = {"channels": 32, "channel_mult": (1, 2), "n_res_blocks": 1, "attention_resolutions": ()}
    config = UNet2DConfig(**sizes, head_dim=8, n_groups=8)
    torch.manual_seed(0)
    network = config.create((8, 8, 3), (0, 0))
    x, t, cond = torch.randn(2, 8, 8, 3), torch.tensor([3, 50]), torch.zeros(2, 0, 0)
    expected = network(x, t, cond)
    with channels_first("cpu"), Layouts() as layouts:
        found = network(x, t, cond)
        (found - x).square().sum().backward()
    of_library = [shape for *_, shape, _ in layouts.conversions]
    assert len(layouts.calls) > 40 and {shape[2:] for shape in of_library} <= {(4, 4), (3, 3)}, "diffusers' attention"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_change_their_memory_order_with_the_device_and_their_state_dict_never():
    model, _ = network_step("unet1d")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with channels_first("meta"):
        assert model.down[0].first.conv_1.weight.is_contiguous()
        assert copy.deepcopy(model).to("meta").down[0].first.conv_1.state_dict()["weight"].is_contiguous()
    with channels_first("cpu"):
        model.to("cpu")
        assert not model.down[0].first.conv_1.weight.is_contiguous()
        moved = {name: value.clone() for name, value in model.state_dict().items()}
        average = copy.deepcopy(model)
        assert average.up[0].resample.weight.stride() == model.up[0].resample.weight.stride()
        model.load_state_dict(state)
        assert model.state_dict()["down.0.first.conv_1.weight"].is_contiguous()
    model.to("cpu")
    assert model.down[0].first.conv_1.weight.is_contiguous() and model.up[0].resample.weight.is_contiguous()
    for values in (moved, model.state_dict()):
        assert values.keys() == state.keys() and all(torch.equal(values[name], state[name]) for name in state)


def test_mish_by_sigmoid_is_x_times_the_tanh_of_softplus_and_neither_overflows_nor_cancels():
    x = torch.cat([torch.linspace(-40, 40, 801), torch.tensor([-1e30, -200.0, 200.0, 1e30])])
    exact = x.double() * F.softplus(x.double()).tanh()
    torch.testing.assert_close(MishBySigmoid.apply(x), exact.float(), rtol=1e-6, atol=1e-12)


def test_the_gradient_of_mish_by_sigmoid_is_that_of_finite_differences():
    x = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(MishBySigmoid.apply, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mish_by_sigmoid_in_half_precision_is_computed_wide_and_rounded_once_in_both_directions(dtype):
    x = torch.linspace(-6, 6, 97).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    y, y_wide = MishBySigmoid.apply(x), MishBySigmoid.apply(wide)
    grad = torch.linspace(-1, 1, 97).to(dtype)
    y.backward(grad)
    y_wide.backward(grad.float())
    assert torch.equal(y, y_wide.to(dtype)) and torch.equal(x.grad, wide.grad.to(dtype))
