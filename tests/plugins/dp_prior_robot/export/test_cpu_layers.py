"""The layers for onnxruntime compute the function of the network's own layers, on the same weights."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dp_prior.networks.attention import RotaryPositions, join_heads
from dp_prior.networks.backbones.backbone_record import Sizes
from dp_prior.networks.backbones.dit import DiT, DiTConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig
from dp_prior.networks.backbones.unet1d_local import LocalUNet1DConfig
from dp_prior.networks.convolution import Conv1d, Downsample1d, Upsample1d
from dp_prior.networks.layers import GroupNorm
from dp_prior_robot.export.cpu_layers import LAYERS, CpuFunctions, with_cpu_layers
from dp_prior_robot.export.graph_files import graph_file
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS
from dp_prior_robot.export.onnx_network import NetworkGraph
from dp_prior_robot.export.sessions import Graph
from tests.plugins.dp_prior_robot.export.policies import needs_onnx

UNET = {"down_dims": (8, 16, 32), "n_groups": 4, "step_embed_dim": 8}
NETWORKS = {
    "unet": UNet1DConfig(**UNET),
    "unet, kernel of 7": UNet1DConfig(**UNET, kernel_size=7, film_scale=False),
    "local unet": LocalUNet1DConfig(**UNET),
    "dit": DiTConfig(embed_dim=16, n_layers=2, n_heads=2, step_embed_dim=8),
}


def assert_same(x, expected):
    torch.testing.assert_close(x, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("positions", [2, 4, 6, 8])
@pytest.mark.parametrize(
    "create",
    [
        lambda: Conv1d(6, 4, 5),
        lambda: Conv1d(6, 4, 1),
        lambda: Conv1d(6, 4, 9),
        lambda: Downsample1d(6),
        lambda: Upsample1d(6),
        lambda: GroupNorm(3, 6),
    ],
)
@torch.no_grad()
def test_a_layer_computes_the_same(create, positions):
    torch.manual_seed(0)
    network = nn.Sequential(create()).double()
    for parameter in network.parameters():
        parameter.normal_()
    x, copied = torch.randn(3, positions, 6, dtype=torch.float64), with_cpu_layers(network)
    assert type(copied[0]) is LAYERS[type(network[0])]
    assert_same(copied(x), network(x))


def test_a_convolution_of_one_position_has_its_central_tap_alone():
    network = nn.Sequential(Conv1d(6, 4, 5)).double()
    x = torch.randn(2, 1, 6, dtype=torch.float64)
    expected = x @ network[0].weight[:, 2].t() + network[0].bias
    assert_same(with_cpu_layers(network)(x), expected)


def test_rotary_positions_turn_the_same_pairs():
    positions = torch.rand(5, 2)
    network = nn.Sequential(RotaryPositions(positions=positions, head_dim=8))
    x, copied = torch.randn(2, 3, 5, 8), with_cpu_layers(network)
    torch.testing.assert_close(copied(x), network(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(copied[0].side_by_side(join_heads(x), 3), join_heads(network(x)), rtol=0, atol=1e-6)


@needs_onnx
@torch.no_grad()
def test_attention_and_positions_are_operators_of_onnxruntime_that_compute_the_same():
    import onnx

    torch.manual_seed(0)
    config = DiTConfig(embed_dim=16, n_layers=1, n_heads=2, step_embed_dim=8)
    sizes = Sizes((8, 2), (2, 5), output_factor=1, input_factor=1)
    network = DiT(config, sizes, positions=torch.rand(8, 2)).eval()  # of a plane, as those of pictures
    for parameter in network.parameters():
        parameter.normal_(std=0.2)
    inputs = torch.randn(3, 8, 2), torch.tensor([1, 5, 70]), torch.randn(3, 2, 5)
    content = graph_file(NetworkGraph(network), inputs, "onnx", DEFAULT_OPTIONS)
    for rows in (1, 3):
        part = [value[:rows] for value in inputs]
        output = Graph(content)(dict(zip(("x_t", "t", "tokens"), (value.numpy() for value in part), strict=True)))
        torch.testing.assert_close(torch.from_numpy(output["output"]), network(*part), rtol=1e-5, atol=1e-5)
    if hasattr(torch.onnx, "ops"):
        kinds = Counter(node.op_type for node in onnx.load_from_string(content).graph.node)
        assert (kinds["RotaryEmbedding"], kinds["MultiHeadAttention"], kinds["Softmax"]) == (2, 1, 0)


def test_mish_is_exact_where_its_exponential_is_large_and_where_it_vanishes():
    x = torch.cat([torch.linspace(-40, 40, 999, dtype=torch.float64), torch.tensor([-1e4, -1e3, 0.0, 1e3, 1e30])])
    with CpuFunctions():
        computed = F.mish(x)
        single = F.mish(x.float())
    torch.testing.assert_close(computed, x * F.softplus(x).tanh(), rtol=1e-7, atol=1e-15)
    assert single.isfinite().all()
    torch.testing.assert_close(single.double(), x * F.softplus(x).tanh(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_the_norm_of_the_root_mean_square_is_torchs(eps):
    x, weight = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    for weights in (None, weight):
        with CpuFunctions():
            computed = F.rms_norm(x, (8,), weights, eps)
        assert_same(computed, F.rms_norm(x, (8,), weights, eps))


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_a_network_computes_the_same_on_the_same_weights_and_stays_as_it_was(name):
    torch.manual_seed(0)
    network = NETWORKS[name].create((8, 2), (2, 5)).double().eval()
    for parameter in network.parameters():
        parameter.normal_(std=0.2)
    inputs = torch.randn(3, 8, 2).double(), torch.tensor([1, 5, 70]), torch.randn(3, 2, 5).double()
    expected, kinds = network(*inputs), [type(module) for module in network.modules()]
    copied = with_cpu_layers(network)
    with CpuFunctions():
        torch.testing.assert_close(copied(*inputs), expected, rtol=1e-6, atol=1e-6)
    assert {value.data_ptr() for value in copied.parameters()} == {value.data_ptr() for value in network.parameters()}
    assert [type(module) for module in network.modules()] == kinds and not set(LAYERS.values()) & set(kinds)
    assert set(LAYERS.values()) & {type(module) for module in copied.modules()}
