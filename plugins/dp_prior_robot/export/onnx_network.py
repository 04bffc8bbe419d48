"""The network of a policy in onnxruntime: a graph of its conditions, run once a chunk, and a graph of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.diffusion.denoiser import Network
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior_robot.export.conditioning import ChunkConditions, divided_graph
from dp_prior_robot.export.cpu_layers import CpuFunctions, with_cpu_layers
from dp_prior_robot.export.first_inputs import first_inputs
from dp_prior_robot.export.graph_files import graph_file
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS
from dp_prior_robot.export.onnx_part import GRAPH, OnnxPart
from dp_prior_robot.export.sessions import Graph

CONDITIONS = "conditions.onnx"
"""The file of the graph of the conditions."""


class Inputs(NamedTuple):
    """Inputs of a backbone."""

    x_t: Tensor
    """(B, H, in_channels)."""

    t: Tensor
    """(B,) int64."""

    tokens: Tensor
    """(B, N, D)."""

    conditions: ChunkConditions | None = None
    """Computed from these tokens, and shared by the evaluations of a chunk; None for an evaluation by itself."""


class NetworkGraph(nn.Module):
    """The backbone of a policy alone, in the form that is fastest on a CPU."""

    outputs = ("output",)

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = with_cpu_layers(backbone)

    def forward(self, x_t: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        """See `Inputs`."""
        with CpuFunctions():
            return self.backbone(x_t, t, tokens)


class OnnxNetwork(OnnxPart):
    """The `runtime` of a policy: its backbone."""

    part, attribute = "network", "backbone"

    _visited: Sequence[int] = ()
    """Timesteps of the newest chunk, in order; the next one visits the same, unless its sampler is another one."""

    def __call__(self, tokens: Tensor) -> Network | None:
        """See `DiffusionModel.runtime`; None for weights or tokens that are not those of the export, or gradients."""
        if tokens.dtype is not torch.float32 or not self.is_usable():
            return None
        inputs = Inputs(*(value.expand(len(tokens), *value.shape[1:]) for value in self.example[:2]), tokens)
        if not self.is_chosen(inputs):
            return None
        is_first, self._is_checked = not self._is_checked, True
        conditions = ChunkConditions(self._visited)

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            if torch.compiler.is_compiling() or x_t.requires_grad or self._weights is None:
                return self._module(x_t, t, tokens)
            self._visited = conditions.visited  # at an evaluation: guidance makes both networks of a chunk before
            return self.computed(Inputs(x_t, t, tokens, conditions), is_first)

        return network

    def expected(self, inputs: Inputs) -> Tensor:
        return self._module(*inputs[:3])

    @staticmethod
    def inputs_of(policy: DiffusionPolicy, rows: int) -> Inputs:
        """See `OnnxPart.inputs_of`; those of the first evaluation."""
        return Inputs(*first_inputs(policy, "runtime", rows))

    @staticmethod
    def first_row(inputs: Inputs) -> Inputs:
        return Inputs(*(value[:1] for value in inputs[:3]))

    @staticmethod
    def files(module: nn.Module, rows: Inputs) -> dict[str, bytes]:
        graph = graph_file(NetworkGraph(module), tuple(rows[:3]), "onnx", DEFAULT_OPTIONS)
        return dict(zip((CONDITIONS, GRAPH), divided_graph(graph), strict=True))

    @staticmethod
    def session(folder: Path) -> Callable[[Inputs], Tensor]:
        return _session(folder)


def _session(folder: Path) -> Callable[[Inputs], Tensor]:
    """A function from the inputs of a network to its output, by the two graphs of a folder."""
    step, condition = Graph(folder / GRAPH), Graph(folder / CONDITIONS)

    def conditioning(t: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
        return condition({"t": t, "tokens": tokens})

    def run(inputs: Inputs) -> Tensor:
        x_t, t, tokens = (value.detach().numpy() for value in inputs[:3])
        conditions = ChunkConditions([]) if inputs.conditions is None else inputs.conditions
        values = conditions.at(t, tokens, conditioning)
        return torch.from_numpy(step({"x_t": x_t, "t": t, "tokens": tokens, **values})["output"])

    return run
