"""Layers against their torch counterparts. Tolerances: float32 rounding of sums of a few hundred products."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dp_prior.networks import layers
from dp_prior.networks.layers import FiLM, GroupNorm, MishBySigmoid, SinusoidalEmbedding


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
