"""Writes the evaluations of a UNet by one chunk as one ONNX graph, in the form that onnxruntime computes fastest.

At few weights an evaluation takes as long as its operators take to start, 0.4 microseconds each. So there are few of
them, and none that copies: values are (1, C, H), in which a group of channels is contiguous. A convolution is one
product with all taps, whose weight onnxruntime packs, and one small product that adds the taps up at their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.networks.backbones.unet1d import FiLM, ResidualBlock, UNet1D
from dp_prior.networks.convolution import Convolution, PointwiseConv1d, Upsample1d
from dp_prior.networks.layers import GroupNorm

if TYPE_CHECKING:
    from onnx import NodeProto

OPSET, IR_VERSION = 20, 9


def chunk_graph(network: UNet1D, x_shape: Sequence[int], cond_shape: Sequence[int]) -> bytes:
    """The graph of a linear sampler around a network, for one row and any number S of evaluations.

    A bank holds the values that a step may read, a row (A H) each: the start, the noise of the steps, and of each
    evaluation x, the estimate of x_0, and that estimate before the clip.

    Inputs:
        start: (1, H, A).
        tokens: (1, N, D).
        noise: (draws, A H), positions last.
        room: (3 S, A H) zeros.
        reads: (S, 1, rows) coefficients of the x of each evaluation.
        result: (1, rows) coefficients of the sample.
        writes: (S, rows, 3) ones where the values of an evaluation go, zeros elsewhere.
        inversions: (S, 1, 2) a and b of x_0 = a x + b output.
        low, high: (1, A H) the range of x_0.
        modulation: (S, M), see `step_modulation`.

    Output:
        sample: (1, H, A).
    """
    from onnx import helper

    horizon, channels = x_shape
    size, graph, sizes = horizon * channels, _Graph("chunk"), _modulation_sizes(network)
    tokens = graph.mish(graph.reshaped("tokens", [1, int(np.prod(cond_shape))]))
    weights = [film.linear.weight[:, network.step_embedding[-1].out_features :] for film in _films(network)]
    of_tokens = graph.add("MatMul", tokens, graph.constant(torch.cat(weights).t()))
    graph.add("Add", "modulation", of_tokens, output="all_modulation")
    start = graph.reshaped(graph.add("Transpose", "start", perm=[0, 2, 1]), [1, size])
    graph.add("Concat", start, "noise", "room", output="first_bank", axis=0)
    evaluation = _evaluation_graph(network, horizon, channels, sizes)
    count = graph.add("Squeeze", graph.add("Shape", "reads", start=0, end=1))
    begins = graph.constant(np.array(True))
    graph.nodes.append(helper.make_node("Loop", [count, begins, "first_bank"], ["last_bank"], body=evaluation))
    sample = graph.reshaped(graph.add("MatMul", "result", "last_bank"), [1, channels, horizon])
    graph.add("Transpose", sample, output="sample", perm=[0, 2, 1])
    inputs = {
        "start": [1, horizon, channels],
        "tokens": [1, *cond_shape],
        "noise": ["draws", size],
        "room": ["room", size],
        "reads": ["evaluations", 1, "rows"],
        "result": [1, "rows"],
        "writes": ["evaluations", "rows", 3],
        "inversions": ["evaluations", 1, 2],
        "low": [1, size],
        "high": [1, size],
        "modulation": ["evaluations", sum(sizes)],
    }
    declared = [_declared(name, "FLOAT", shape) for name, shape in inputs.items()]
    outputs = [_declared("sample", "FLOAT", [1, horizon, channels])]
    whole = helper.make_graph(graph.nodes, "chunk", declared, outputs, graph.weights)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def _evaluation_graph(network: UNet1D, horizon: int, channels: int, sizes: Sequence[int]) -> Any:
    """The body of the loop of `chunk_graph`: one evaluation, which reads x from the bank and writes its values there.

    Args:
        sizes: see `_modulation_sizes`.
    """
    from onnx import helper

    size, body = horizon * channels, _Graph("evaluation")
    x = body.add("MatMul", body.add("Gather", "reads", "step"), "bank")
    names = iter(body.split(body.add("Gather", "all_modulation", "step"), [*sizes]))
    writer = _UNetWriter(body, horizon)
    output = writer.network(network, body.reshaped(x, [1, channels, horizon]), names)
    pair = body.add("Concat", x, body.reshaped(output, [1, size]), axis=0)
    unclipped = body.add("MatMul", body.add("Gather", "inversions", "step"), pair)
    clipped = body.add("Min", body.add("Max", unclipped, "low"), "high")
    values = body.add("Concat", x, clipped, unclipped, axis=0)
    body.add("Gemm", body.add("Gather", "writes", "step"), values, "bank", output="next_bank")
    body.add("Identity", "goes_on", output="still_goes_on")
    bank = ["rows", size]
    inputs = [_declared("step", "INT64", []), _declared("goes_on", "BOOL", []), _declared("bank", "FLOAT", bank)]
    outputs = [_declared("still_goes_on", "BOOL", []), _declared("next_bank", "FLOAT", bank)]
    return helper.make_graph(body.nodes, body.name, inputs, outputs, body.weights)


def _declared(name: str, kind: str, shape: list[int | str]) -> Any:
    """An input or output of a graph. Args: kind: type of its numbers, by ONNX's name."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)


def _modulation_sizes(network: UNet1D) -> list[int]:
    """Numbers of the scale and the bias of each block, or of its bias alone, in the order of `_films`."""
    sizes: list[int] = []
    for film in _films(network):
        n_parts = 1 + film.has_scale
        sizes += [film.linear.out_features // n_parts] * n_parts
    return sizes


@torch.no_grad()
def step_modulation(network: UNet1D, timesteps: Sequence[int]) -> np.ndarray:
    """(S, M) the part of all modulations that depends on the timestep alone; a chunk adds that of its tokens."""
    features = nn.functional.mish(network.step_embedding(torch.tensor(timesteps)))
    films = [film.linear for film in _films(network)]
    weight = torch.cat([film.weight[:, : features.shape[1]] for film in films])
    return nn.functional.linear(features, weight, torch.cat([film.bias for film in films])).numpy()


def _films(network: UNet1D) -> list[FiLM]:
    """The modulations in the order in which an evaluation reads them."""
    return [block.film for block in _blocks(network)]


def _blocks(network: UNet1D) -> list[ResidualBlock]:
    ways = [[level.first, level.second] for level in (*network.down, *network.up)]
    n_down = len(network.down)
    return [*sum(ways[:n_down], []), *network.mid, *sum(ways[n_down:], [])]


class _Graph:
    """Nodes and weights of a graph; values have names of their own unless `output` says another."""

    def __init__(self, name: str):
        self.name = name
        self.nodes: list[NodeProto] = []
        self.weights: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node, and return the name of its output."""
        from onnx import helper

        output = output or f"{self.name}_{len(self.nodes)}"
        domain = "com.microsoft" if kind == "FusedMatMul" else ""
        self.nodes.append(helper.make_node(kind, [*inputs], [output], domain=domain, **attributes))
        return output

    def constant(self, value: Tensor | np.ndarray) -> str:
        """Append a weight, and return its name."""
        from onnx import numpy_helper

        array = value.detach().contiguous().numpy() if isinstance(value, Tensor) else value
        self.weights.append(numpy_helper.from_array(array, f"{self.name}_weight_{len(self.weights)}"))
        return self.weights[-1].name

    def reshaped(self, x: str, shape: list[int]) -> str:
        """The name of x in another shape."""
        return self.add("Reshape", x, self.constant(np.array(shape, np.int64)))

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """The names of the parts of x (n,)."""
        from onnx import helper

        names = [f"{x}_part_{index}" for index in range(len(sizes))]
        lengths = self.constant(np.array(sizes, np.int64))
        self.nodes.append(helper.make_node("Split", [x, lengths], names, axis=0))
        return names

    def mish(self, x: str) -> str:
        """See `mish_of_negated`."""
        return self.mish_of_negated(self.add("Neg", x))

    def mish_of_negated(self, x: str) -> str:
        """Mish of -x, which is x tanh(log(sigmoid(x))): four operators, while onnxruntime's softplus is slow."""
        return self.add("Mul", x, self.add("Tanh", self.add("Log", self.add("Sigmoid", x))))


class _UNetWriter:
    """Writes the layers of a UNet; values are (1, C, H)."""

    def __init__(self, graph: _Graph, horizon: int):
        self.graph, self.horizon = graph, horizon

    def network(self, network: UNet1D, x: str, modulations: Any) -> str:
        """See `UNet1D.forward`. Args: modulations: names of scale (C,) and bias (C,) of each block in turn."""
        positions, skips = self.horizon, []
        for level in network.down:
            for block in (level.first, level.second):
                x = self.block(block, x, positions, modulations)
            skips.append(x)
            x, positions = self.resampled(level.resample, x, positions)
        for block in network.mid:
            x = self.block(block, x, positions, modulations)
        for level in network.up:
            x = self.graph.add("Concat", x, skips.pop(), axis=1)
            for block in (level.first, level.second):
                x = self.block(block, x, positions, modulations)
            x, positions = self.resampled(level.resample, x, positions)
        head = network.head
        x = self.graph.mish_of_negated(self.negated_norm(head.norm, self.convolution(head.conv, x, positions)[0]))
        return self.convolution(head.out, x, positions)[0]

    def block(self, block: ResidualBlock, x: str, positions: int, modulations: Any) -> str:
        """See `ResidualBlock.forward`."""
        graph = self.graph
        hidden = self.convolution(block.conv_1, x, positions)[0]
        hidden = graph.mish_of_negated(self.negated_norm(block.norm_1, hidden))
        channels = block.norm_1.num_channels
        scale = next(modulations) if block.film.has_scale else graph.constant(np.ones(channels, np.float32))
        hidden = self.scaled(hidden, channels, scale, next(modulations))
        hidden = self.convolution(block.conv_2, hidden, positions)[0]
        hidden = graph.mish_of_negated(self.negated_norm(block.norm_2, hidden))
        shortcut = block.shortcut
        return graph.add(
            "Add", hidden, x if isinstance(shortcut, nn.Identity) else self.convolution(shortcut, x, positions)[0]
        )

    def resampled(self, layer: nn.Module, x: str, positions: int) -> tuple[str, int]:
        """The value and its number of positions after a way to another level."""
        if isinstance(layer, nn.Identity):
            return x, positions
        x, positions = self.convolution(layer, x, positions)
        return self.graph.reshaped(x, [1, len(layer.bias), positions]), positions

    def convolution(self, layer: Convolution | PointwiseConv1d, x: str, positions: int) -> tuple[str, int]:
        """(1, C, positions) -> (O, new positions), and the number of these."""
        taps, places = _taps(layer, positions)
        n_taps, outputs, channels = taps.shape
        weight = taps.permute(2, 0, 1).reshape(channels, n_taps * outputs)
        products = self.graph.add("FusedMatMul", x, self.graph.constant(weight), transA=1)
        rows = self.graph.reshaped(products, [positions * n_taps, outputs])
        bias, sums = self.graph.constant(layer.bias[:, None]), self.graph.constant(places)
        return self.graph.add("Gemm", rows, sums, bias, transA=1), places.shape[1]

    def negated_norm(self, layer: GroupNorm, x: str) -> str:
        """(C, H) -> (1, C, H), minus `GroupNorm`."""
        groups, channels = layer.num_groups, layer.num_channels
        ones, zeros = (self.graph.constant(np.full(groups, value, np.float32)) for value in (1, 0))
        grouped = self.graph.reshaped(x, [1, groups, -1])
        normed = self.graph.add("InstanceNormalization", grouped, ones, zeros, epsilon=layer.eps)
        negated = (self.graph.constant(-value) for value in (layer.weight, layer.bias))
        return self.scaled(self.graph.reshaped(normed, [1, channels, -1]), channels, *negated)

    def scaled(self, x: str, channels: int, scale: str, bias: str) -> str:
        """x (1, C, H) times a scale (C,) plus a bias (C,): one operator in place of two."""
        mean, variance = (self.graph.constant(np.full(channels, value, np.float32)) for value in (0, 1))
        return self.graph.add("BatchNormalization", x, scale, bias, mean, variance, epsilon=0.0)


def _taps(layer: Convolution | PointwiseConv1d, positions: int) -> tuple[Tensor, np.ndarray]:
    """The weight of a convolution as (taps, O, C), without taps that meet padding alone; and where each tap at each
    position is added, (positions * taps, new positions) of zeros and ones."""
    if isinstance(layer, Upsample1d):
        taps, first, stride, spread = layer.weight, -1, 1, 2
    elif isinstance(layer, PointwiseConv1d):
        taps, first, stride, spread = layer.weight[None], 0, 1, 1
    else:
        farthest = min(layer.reach, positions - 1)
        inner = layer.weight[:, layer.reach - farthest : layer.reach + farthest + 1]
        taps, first, stride, spread = inner.transpose(0, 1), farthest, layer.stride, 1
    new_positions = positions * spread // stride
    places = np.zeros((positions, len(taps), new_positions), np.float32)
    for position in range(positions):
        for tap in range(len(taps)):
            target = spread * position + (tap + first if spread > 1 else first - tap)
            if target % stride == 0 and 0 <= target // stride < new_positions:
                places[position, tap, target // stride] = 1.0
    return taps, places.reshape(-1, new_positions)
