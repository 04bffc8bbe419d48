"""Terms of the variational bound, against torch.distributions."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from dp_prior.diffusion.variance import (
    FixedLarge,
)
from dp_prior.diffusion.variational_bound import decoder_nll, normal_kl, reverse_step_bits
from tests.cases import every


def test_normal_kl_equals_torch_distributions():
    torch.manual_seed(0)
    mean_1, mean_2, log_1, log_2 = torch.randn(4, 50, dtype=torch.float64)
    expected = kl_divergence(Normal(mean_1, log_1.exp()), Normal(mean_2, log_2.exp()))
    torch.testing.assert_close(normal_kl(mean_1 - mean_2, log_1, log_2), expected)
    assert normal_kl(torch.tensor(0.0), 0.3, 0.3) == 0


def test_continuous_decoder_equals_torch_distributions():
    torch.manual_seed(0)
    x_0, mean, log_std = torch.randn(3, 50, dtype=torch.float64)
    torch.testing.assert_close(decoder_nll(x_0, mean, log_std, None), -Normal(mean, log_std.exp()).log_prob(x_0))


@pytest.mark.parametrize("log_std", [-5.0, -3.0, -1.0])
def test_discrete_decoder_is_a_distribution_over_the_values(log_std):
    values = torch.linspace(-1, 1, 256)
    for mean in (-0.99, 0.0013, 0.7, 1.2):
        nll = decoder_nll(values, torch.tensor(mean), log_std, 2 / 255)
        assert (-nll).exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def test_discrete_decoder_is_finite_where_a_bin_is_too_narrow_for_float32():
    """Both its ends then have the same cumulative probability."""
    for mean in (-0.5, 0.0, 0.5):
        assert decoder_nll(torch.linspace(-0.9, 0.9, 19), torch.tensor(mean), 20.0, 2 / 255).isfinite().all()


def test_discrete_decoder_equals_torch_distributions():
    values = torch.linspace(-1, 1, 256).double()
    normal, half = Normal(torch.tensor(0.2).double(), 0.1), 1 / 255
    expected = (normal.cdf(values + half) - normal.cdf(values - half)).log()
    expected[0], expected[-1] = normal.cdf(values[0] + half).log(), (1 - normal.cdf(values[-1] - half)).log()
    found = -decoder_nll(values.float(), torch.tensor(0.2), math.log(0.1), 2 / 255)
    near = (values - 0.2).abs() < 0.6  # six std; beyond, float64 cdfs of the upper tail have no digits
    torch.testing.assert_close(found[near].double(), expected[near], rtol=2e-4, atol=2e-4)


def test_discrete_decoder_has_the_derivative_of_its_value():
    torch.manual_seed(0)
    x_0 = torch.linspace(-1, 1, 8, dtype=torch.float64)
    mean, log_std = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64) - 2
    inputs = (mean.requires_grad_(), log_std.requires_grad_())
    assert torch.autograd.gradcheck(lambda mean, log_std: decoder_nll(x_0, mean, log_std, 2 / 255), inputs)


@every(mean=[-3.0, 0.4, 3.0], log_std=[-12.0, -10.0, -7.0])
def test_discrete_decoder_has_the_gradient_of_a_parabola_thousands_of_std_away(mean, log_std):
    """There -log p is ((near edge of the bin - mean) / std)^2 / 2, up to logarithms."""
    x_0 = torch.linspace(-0.9, 0.9, 10)
    mean, log_std = torch.full((10,), mean, requires_grad=True), torch.full((10,), log_std, requires_grad=True)
    decoder_nll(x_0, mean, log_std, 2 / 255).sum().backward()
    distance = (x_0 - mean).detach()
    edge = distance - torch.sign(distance) / 255
    std = log_std.detach().exp()
    torch.testing.assert_close(mean.grad, -edge / std**2, rtol=1e-3, atol=0)
    torch.testing.assert_close(log_std.grad, -(edge**2) / std**2, rtol=1e-3, atol=0)


@pytest.mark.parametrize("data_step", [None, 2 / 255])
def test_an_estimate_that_is_far_off_at_a_noisy_step_has_the_gradient_of_its_kl_alone(data_step):
    """The cost of the last step, which is not taken there, has none that float32 holds, and 0 times infinity is NaN."""
    c_0, least, largest = torch.tensor([[1e-25]]), torch.tensor([[-12.0]]), torch.tensor([[-11.0]])
    difference = torch.tensor([[1e35]], requires_grad=True)
    x_0 = torch.tensor([[0.5]])
    bits = reverse_step_bits(FixedLarge(), difference, x_0, torch.tensor([5]), None, [c_0, least, largest], data_step)
    expected = kl_divergence(Normal(1e10, math.exp(-12.0)), Normal(0.0, math.exp(-11.0))) / math.log(2)
    torch.testing.assert_close(bits[0, 0], torch.as_tensor(expected, dtype=torch.float32), rtol=1e-5, atol=0)
    bits.sum().backward()
    gradient = 1e-25**2 * 1e35 / math.exp(-22.0) / math.log(2)
    assert difference.grad.item() == pytest.approx(gradient, rel=1e-4)
