"""Sessions of onnxruntime on a CPU, how far their results may differ from torch's, and how both are timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LARGEST_ERROR = 1e-5
"""Of a result, for each unit of its largest element."""

GAIN = 1.1
"""How many times faster onnxruntime must be to be used."""


class Graph:
    """A graph of onnxruntime: maps arrays by name to its outputs by name."""

    def __init__(self, model: Path | bytes):
        """Args: model: a file, or its content."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the robot's other work has the cores
        model = str(model) if isinstance(model, Path) else model
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._session.run(self._outputs, {name: arrays[name] for name in self.inputs})
        return dict(zip(self._outputs, map(np.asarray, outputs), strict=True))


def disagreement(expected: Tensor, output: Tensor) -> str:
    """How two results differ by more than `LARGEST_ERROR`; an empty text for rounding."""
    error = (expected - output).abs().max().item()
    largest = LARGEST_ERROR * max(1.0, expected.abs().max().item())
    if error <= largest:
        return ""
    return f"onnxruntime differs from it by {error:.2g}, and rounding explains {largest:.2g}"


def median_seconds(
    ways: tuple[Callable[[], object], Callable[[], object]], least_turns: int, least_s: float = 0.0
) -> tuple[float, float]:
    """The median seconds of two ways that take turns, at least `least_turns` times and for `least_s` seconds."""
    seconds: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + least_s
    while len(seconds[0]) < least_turns or time.perf_counter() < end:
        for way, taken in zip(ways, seconds, strict=True):
            begun = time.perf_counter()
            way()
            taken.append(time.perf_counter() - begun)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
