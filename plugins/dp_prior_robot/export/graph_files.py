"""Writes a graph as bytes: traced by torch, for any number of rows or for one, in ONNX with names and an opset."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from dp_prior.files.entry_points import needing
from dp_prior_robot.export.graph_options import OPSETS, Format, GraphOptions
from dp_prior_robot.export.opsets import GraphError, lowered

LARGEST_ONNX = 2**31 - 2**20  # bytes; protobuf's limit of 2 GiB, less the graph around the weights
BATCH = "batch"
"""Name of the first dimension of all inputs and outputs, where any number of rows is taken."""


def graph_file(
    module: nn.Module,
    inputs: tuple[Tensor | dict[str, Tensor], ...],
    layout: Format,
    options: GraphOptions,
) -> bytes:
    """The content of the file of a graph.

    Args:
        module: names its `outputs`; its inputs are named as the parameters of `forward`.
        inputs: example arguments of `forward`, with `options.batch` rows, or of several rows for any number.

    Raises:
        ImportError: a library of the extra `onnx` is not installed.
        RuntimeError: torch cannot trace the module; the message says why.
        GraphError: the weights do not fit into an ONNX file, or an operator is not in the opset.
    """
    if layout == "onnx":
        _need_onnx()
        n_bytes = sum(tensor.nbytes for tensor in module.state_dict().values())
        if n_bytes > LARGEST_ONNX:
            raise GraphError(f"has weights of {n_bytes / 1e9:.1f} GB, and an ONNX file holds 2; use torch_export")
    rows = {0: torch.export.Dim(BATCH)} if options.batch is None else {}
    shapes = tuple(dict.fromkeys(value, rows) if isinstance(value, dict) else rows for value in inputs)
    names: list[str] = []
    for parameter, value in zip(inspect.signature(module.forward).parameters, inputs, strict=False):
        names += [f"{parameter}.{key}" for key in value] if isinstance(value, dict) else [parameter]
    with torch.no_grad(), _without_notes():
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
        if layout == "torch_export":
            file = io.BytesIO()
            torch.export.save(program, file)
            return file.getvalue()
        return _onnx_file(program, names, module.outputs, options.opset)


def _onnx_file(
    program: torch.export.ExportedProgram, names: Sequence[str], outputs: Sequence[str], opset: int | None
) -> bytes:
    """A traced graph in ONNX, with names for its inputs, outputs and its dynamic dimension."""
    made = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=names,
        output_names=list(outputs),
        opset_version=OPSETS[-1],
    )
    model = made.model_proto
    if torchs_name := model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:  # inside the graph also a product, such as 4*s13
                    dim.dim_param = re.sub(rf"\b{torchs_name}\b", BATCH, dim.dim_param)
    return (model if opset is None else lowered(model, opset)).SerializeToString()


def _need_onnx() -> None:
    with needing("onnx", "export to ONNX needs more packages"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401 (parity is measured with it)
        import onnxscript  # noqa: F401


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Silence notes of torch's exporter, also about packages that are not needed, such as torchvision."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
