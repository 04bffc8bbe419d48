"""Whatever library a product goes to, it is the product. Tolerances: float32 rounding of sums of 64 products."""

import pytest
import torch
import torch.nn.functional as F

from dp_prior.networks.kernels import products
from tests.cases import every

LAYOUTS = {
    "contiguous": lambda b: b,
    "transposed": lambda b: b.t().contiguous().t(),
    "strided": lambda b: b.repeat_interleave(2, dim=1)[:, ::2],
}


@pytest.fixture(params=[False, True], ids=["oneDNN where it can", "never oneDNN"], autouse=True)
def library(request, monkeypatch):
    monkeypatch.setattr(products, "_LEAST_FOR_ONEDNN", 0)
    monkeypatch.setattr(products, "MKL_IS_FASTER", request.param)


@every(dtype=[torch.float32, torch.float64], has_bias=[True, False], layout=LAYOUTS)
def test_a_product_equals_numpys_in_every_layout(layout, has_bias, dtype):
    torch.manual_seed(0)
    a, b, bias = torch.randn(5, 64, dtype=dtype), torch.randn(7, 64, dtype=dtype), torch.randn(7, dtype=dtype)
    expected = a.double().numpy() @ b.double().numpy().T + has_bias * bias.double().numpy()
    found = products.product(a, LAYOUTS[layout](b), bias if has_bias else None)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


@every(shape=[(64,), (3, 64), (2, 3, 64)])
def test_a_linear_layer_and_its_gradients_equal_torchs(shape):
    torch.manual_seed(0)
    parts = [torch.randn(shape), torch.randn(7, 64), torch.randn(7)]
    results = []
    for linear in (products.linear, F.linear):
        x, weight, bias = (part.clone().requires_grad_() for part in parts)
        y = linear(x, weight, bias)
        y.sin().sum().backward()
        results.append((y, x.grad, weight.grad, bias.grad))
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)


def test_what_needs_no_gradient_gets_none():
    weight = torch.randn(7, 64, requires_grad=True)
    x, bias = torch.randn(3, 64), torch.zeros(7)
    products.linear(x, weight, bias).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


def test_under_autocast_the_dtype_is_torchs():
    x, weight = torch.randn(3, 64), torch.randn(7, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(products.linear(x, weight), F.linear(x, weight))
