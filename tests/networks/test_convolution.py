"""Convolutions against their torch counterparts. Tolerances: float32 rounding of sums of a few hundred products."""

import pytest
import torch
from torch import nn

from dp_prior.networks.convolution import Conv1d, Convolution, Downsample1d, PointwiseConv1d, Upsample1d
from dp_prior.networks.kernels import products
from dp_prior.networks.kernels.taps import TapProducts
from tests.cases import every

COUNTERPARTS = {
    "kernel 3": (lambda: Conv1d(24, 40, 3), lambda: nn.Conv1d(24, 40, 3, padding=1)),
    "kernel 5": (lambda: Conv1d(24, 40, 5), lambda: nn.Conv1d(24, 40, 5, padding=2)),
    "kernel 7": (lambda: Conv1d(3, 8, 7), lambda: nn.Conv1d(3, 8, 7, padding=3)),
    "kernel 1": (lambda: Conv1d(24, 40, 1), lambda: nn.Conv1d(24, 40, 1)),
    "pointwise": (lambda: PointwiseConv1d(24, 40), lambda: nn.Conv1d(24, 40, 1)),
    "down": (lambda: Downsample1d(24), lambda: nn.Conv1d(24, 24, 3, stride=2, padding=1)),
    "up": (lambda: Upsample1d(24), lambda: nn.ConvTranspose1d(24, 24, 4, stride=2, padding=1)),
}
CONVOLUTIONS = [name for name in COUNTERPARTS if name != "pointwise"]


@pytest.fixture(params=["products", "one product", "library", None])
def way(request, monkeypatch):
    """Every way of computing a convolution, and the layer's own choice."""
    if request.param is not None:
        monkeypatch.setattr(Convolution, "way", lambda self, x: request.param)
    return request.param


@every(name=COUNTERPARTS, length=[2, 4, 6, 16])
def test_a_convolution_and_its_gradients_equal_torchs(name, length, way):
    torch.manual_seed(0)
    ours, torchs = (make() for make in COUNTERPARTS[name])
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(7, length, torchs.in_channels, requires_grad=True)
    x_torch = x.detach().clone().requires_grad_()
    y, y_torch = ours(x), torchs(x_torch.transpose(1, 2)).transpose(1, 2)
    grad = torch.randn_like(y_torch)
    y.backward(grad)
    y_torch.backward(grad)
    torch.testing.assert_close(y, y_torch, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, x_torch.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(as_torchs(ours, ours.weight.grad), torchs.weight.grad, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(ours.bias.grad, torchs.bias.grad, rtol=1e-5, atol=1e-5)


def as_torchs(layer, weight):
    return weight.permute(layer.torch_form) if isinstance(layer, Convolution) else weight.unsqueeze(2)


WIDE = {
    "same": (lambda: Conv1d(128, 128, 5), lambda: nn.Conv1d(128, 128, 5, padding=2)),
    "down": (lambda: Downsample1d(128), lambda: nn.Conv1d(128, 128, 3, stride=2, padding=1)),
    "up": (lambda: Upsample1d(128), lambda: nn.ConvTranspose1d(128, 128, 4, stride=2, padding=1)),
}


@pytest.mark.parametrize("mkl_is_faster", [False, True])
@pytest.mark.parametrize("name", WIDE)
def test_the_way_depends_on_the_work_and_every_choice_equals_torchs(name, mkl_is_faster, monkeypatch):
    monkeypatch.setattr(products, "MKL_IS_FASTER", mkl_is_faster)
    torch.manual_seed(0)
    ours, torchs = (make() for make in WIDE[name])
    ours.load_state_dict(torchs.state_dict())
    ways = set()
    for batch, length, has_grad in [(3, 4, False), (64, 4, False), (9, 4, True), (9, 16, False), (9, 16, True)]:
        x = torch.randn(batch, length, 128)
        with torch.set_grad_enabled(has_grad):
            ways.add(ours.way(x))
            torch.testing.assert_close(ours(x), torchs(x.transpose(1, 2)).transpose(1, 2), rtol=1e-4, atol=1e-5)
    assert ways == {"one product", "products"} | ({"library"} if not mkl_is_faster else set())
    assert Conv1d(2, 64, 5).way(torch.randn(64, 16, 2)) == "library"


@pytest.mark.parametrize("says_exporting", [False, True])
def test_a_graph_for_a_gpu_has_no_transposed_convolution(monkeypatch, says_exporting):
    """torch 2.11 predicts another layout of its weight's gradient in bfloat16 than it computes there, and says of all
    that it compiles that it is exported."""
    up, x = Upsample1d(8), torch.empty(2, 4, 8, device="meta")
    assert up.way(x) == "library"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: says_exporting)
    assert up.way(x) == "one product"


@every(name=CONVOLUTIONS)
def test_products_have_the_right_gradients_in_double_precision(name):
    torch.manual_seed(0)
    ours = COUNTERPARTS[name][0]().double()
    x = torch.randn(2, 4, ours.weight.shape[2], dtype=torch.float64, requires_grad=True)

    def function(x, weight, bias):
        return TapProducts.apply(x, weight, bias, ours.taps)

    assert torch.autograd.gradcheck(function, (x, ours.weight, ours.bias), fast_mode=True)


@every(name=COUNTERPARTS)
def test_bfloat16_autocast_and_weights_stay_within_their_rounding(name, way):
    torch.manual_seed(0)
    ours, torchs = (make() for make in COUNTERPARTS[name])
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(5, 8, torchs.in_channels)
    exact = torchs(x.transpose(1, 2)).transpose(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    assert y.dtype is torch.bfloat16
    stored = ours.to(torch.bfloat16)(x.bfloat16())
    # Inputs of order 1 and outputs of order 1, each rounded to 8 bits.
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.03)
    torch.testing.assert_close(stored.float(), exact, rtol=0, atol=0.03)


def test_autocast_gradients_arrive_in_single_precision_and_near_the_exact_ones(way):
    torch.manual_seed(0)
    conv, x = Conv1d(8, 8, 5), torch.randn(30, 4, 8)
    gradients = []
    for is_cast in (False, True):
        conv.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            y = conv(x)
        y.float().square().mean().backward()
        assert conv.weight.grad.dtype is conv.bias.grad.dtype is torch.float32
        assert conv.weight.grad.is_contiguous()
        gradients.append(conv.weight.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0.02 * gradients[0].abs().max().item())


@every(name=COUNTERPARTS)
def test_state_dict_is_torchs_and_a_view_of_the_parameters(name):
    ours, torchs = (make() for make in COUNTERPARTS[name])
    state = ours.state_dict()
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in torchs.state_dict().items()
    }
    torchs.load_state_dict(state)  # back to torch
    with torch.no_grad():
        state["weight"].fill_(3.0)
    assert (ours.weight == 3.0).all()


def test_frozen_weights_and_data_get_no_gradient(way):
    conv = Conv1d(4, 4, 3)
    conv.weight.requires_grad_(False)
    x = torch.randn(2, 4, 4)
    conv(x).sum().backward()
    assert conv.weight.grad is None and conv.bias.grad is not None and x.grad is None


@pytest.mark.parametrize(
    ("layer", "counterpart"),
    [
        (Conv1d(64, 48, 5), nn.Conv1d(64, 48, 5)),
        (Downsample1d(64), nn.Conv1d(64, 64, 3)),
        (Upsample1d(64), nn.ConvTranspose1d(64, 64, 4)),
    ],
    ids=["conv", "downsample", "upsample"],
)
def test_parameters_begin_as_those_of_the_counterpart(layer, counterpart):
    """The same law: uniform, of the same width."""
    state = layer.state_dict()
    for name, wanted in counterpart.state_dict().items():
        assert state[name].shape == wanted.shape
        few = name == "bias"
        assert state[name].abs().max().item() == pytest.approx(wanted.abs().max().item(), rel=0.15 if few else 0.01)
        assert state[name].std().item() == pytest.approx(wanted.std().item(), rel=0.3 if few else 0.05)
