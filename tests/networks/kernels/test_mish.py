"""Mish through one sigmoid is mish."""

import pytest
import torch
import torch.nn.functional as F

from dp_prior.networks.kernels.mish import MishBySigmoid


def test_it_is_x_times_the_tanh_of_softplus_and_neither_overflows_nor_cancels():
    x = torch.cat([torch.linspace(-40, 40, 801), torch.tensor([-1e30, -200.0, 200.0, 1e30])])
    exact = x.double() * F.softplus(x.double()).tanh()
    torch.testing.assert_close(MishBySigmoid.apply(x), exact.float(), rtol=1e-6, atol=1e-12)


def test_its_gradient_is_that_of_finite_differences():
    x = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(MishBySigmoid.apply, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide_and_rounded_once_in_both_directions(dtype):
    x = torch.linspace(-6, 6, 97).to(dtype).requires_grad_()
    wide = x.detach().float().requires_grad_()
    y, y_wide = MishBySigmoid.apply(x), MishBySigmoid.apply(wide)
    grad = torch.linspace(-1, 1, 97).to(dtype)
    y.backward(grad)
    y_wide.backward(grad.float())
    assert torch.equal(y, y_wide.to(dtype)) and torch.equal(x.grad, wide.grad.to(dtype))
