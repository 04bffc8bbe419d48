"""The encoder of a policy in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior_robot.export.first_inputs import first_inputs
from dp_prior_robot.export.graph_files import graph_file
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS
from dp_prior_robot.export.onnx_part import GRAPH, OnnxPart
from dp_prior_robot.export.sessions import Graph


class EncodingGraph(nn.Module):
    """The encoder of a policy alone."""

    outputs = ("tokens",)

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        """Normalised observations by key -> (B, N, D)."""
        return self.encoder(values)


class OnnxEncoder(OnnxPart):
    """The `encoding` of a policy: its encoder."""

    part, attribute = "encoder", "encoder"

    def __call__(self, values: dict[str, Tensor]) -> Tensor | None:
        """See `DiffusionModel.encoding`; None where the encoder itself has to compute them."""
        if torch.compiler.is_compiling() or not self.is_usable() or not self.is_chosen(values):
            return None
        is_first, self._is_checked = not self._is_checked, True
        return self.computed(values, is_first)

    def expected(self, inputs: dict[str, Tensor]) -> Tensor:
        return self._module(inputs)

    @staticmethod
    def inputs_of(policy: DiffusionPolicy, rows: int) -> dict[str, Tensor]:
        [values] = first_inputs(policy, "encoding", rows)
        return values

    @staticmethod
    def first_row(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value[:1] for key, value in inputs.items()}

    @staticmethod
    def files(module: nn.Module, rows: dict[str, Tensor]) -> dict[str, bytes]:
        return {GRAPH: graph_file(EncodingGraph(module), (rows,), "onnx", DEFAULT_OPTIONS)}

    @staticmethod
    def session(folder: Path) -> Callable[[dict[str, Tensor]], Tensor]:
        encoder = Graph(folder / GRAPH)

        def run(values: dict[str, Tensor]) -> Tensor:
            arrays = {f"values.{key}": value.detach().numpy() for key, value in values.items()}
            return torch.from_numpy(encoder(arrays)["tokens"])

        return run
