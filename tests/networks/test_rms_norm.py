"""RMS norm is torch's, whatever computes it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dp_prior.networks.rms_norm import RMSNorm, rms_norm


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("has_weight", [False, True])
def test_the_norm_and_its_gradients_equal_torchs_in_double_precision(size, has_weight):
    torch.manual_seed(0)
    values, weights = size * torch.randn(3, 4, 8), torch.randn(8)
    grad, eps, results = torch.randn(3, 4, 8), torch.finfo(torch.float32).eps, []
    for dtype in (torch.float32, torch.float64):
        x, weight = (part.to(dtype, copy=True).requires_grad_() for part in (values, weights))
        used_weight = weight if has_weight else None
        y = rms_norm(x, used_weight) if dtype is torch.float32 else F.rms_norm(x, (8,), used_weight, eps)
        y.backward(grad.to(dtype))
        results.append([y, x.grad * size, *([weight.grad] if has_weight else [])])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_zeros_stay_zeros_and_pass_a_finite_gradient():
    x = torch.zeros(2, 8, requires_grad=True)
    y = rms_norm(x)
    y.backward(torch.ones(2, 8))
    assert not y.any()
    torch.testing.assert_close(x.grad, torch.full((2, 8), torch.finfo(torch.float32).eps ** -0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_without_a_gradient_or_in_another_precision_it_is_torchs_own(dtype):
    torch.manual_seed(0)
    x, ours, torchs = torch.randn(3, 8, dtype=dtype), RMSNorm(8), nn.RMSNorm(8)
    with torch.no_grad():
        assert torch.equal(ours(x), torchs.to(dtype)(x))
    needing_grad = x.clone().requires_grad_()
    torch.testing.assert_close(ours(needing_grad), torchs(needing_grad))


def test_autocast_changes_nothing():
    x = torch.randn(3, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert rms_norm(x).dtype is F.rms_norm(x, (8,)).dtype
