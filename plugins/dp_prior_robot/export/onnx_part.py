"""A part of a policy, the network or the encoder, in onnxruntime: used where the graph is faster and agrees with torch.

A graph is exported once and kept (`graph_cache`). A measurement decides between onnxruntime and torch, for each number
of rows; the decision is kept too, so that a policy acts alike at every start. Whatever fails leaves the part in torch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior_robot.export import graph_cache
from dp_prior_robot.export.sessions import GAIN, disagreement, median_seconds

log = logging.getLogger(__name__)

MEASURED_S, LEAST_TURNS = 1.0, 3
"""Time for which torch and onnxruntime are measured in turns, and the fewest turns."""

GRAPH = "network.onnx"
"""The file of a part's graph."""


class OnnxPart:
    """A part of a policy in onnxruntime, used for the numbers of rows at which it is faster.

    Copies and pickles of a policy have none.
    """

    part: ClassVar[str]
    """Its name in the log."""

    attribute: ClassVar[str]
    """The name of its module in a policy."""

    def __init__(self, policy: DiffusionPolicy, example: Any, folder: Path):
        """
        Args:
            example: inputs of one row.
            folder: holds the graphs.

        Raises:
            ValueError: the graphs are not what was stored.
        """
        graph_cache.check(folder)
        self.example = example
        self._policy, self._module, self._folder = weakref.ref(policy), getattr(policy, self.attribute), folder
        self._run = self.session(folder)
        self._samples = _samples(self._module)
        self._weights = self._stamp()
        self._choices = graph_cache.stored_choices(folder)
        self._process, self._is_checked, self._lock = os.getpid(), False, threading.RLock()

    @classmethod
    def of(cls, policy: DiffusionPolicy) -> Self:
        """Load the part of a policy from the cache, after an export where the cache has none."""
        module = getattr(policy, cls.attribute)
        rows = cls.inputs_of(policy, 3)  # torch takes sizes 0 and 1 for constants
        folder = graph_cache.place_of(policy, module)
        if not folder.exists():
            graph_cache.store(folder, cls.part, functools.partial(cls.files, module, rows))
        try:
            return cls(policy, cls.first_row(rows), folder)
        except Exception:
            graph_cache.remove(folder)
            raise

    @staticmethod
    def inputs_of(policy: DiffusionPolicy, rows: int) -> Any:
        """Inputs of `rows` rows."""
        raise NotImplementedError

    @staticmethod
    def first_row(inputs: Any) -> Any:
        """The first row of inputs."""
        raise NotImplementedError

    @staticmethod
    def files(module: nn.Module, rows: Any) -> dict[str, bytes]:
        """The graphs, by name of the file."""
        raise NotImplementedError

    @staticmethod
    def session(folder: Path) -> Callable[[Any], Tensor]:
        """A function from inputs to the output, by onnxruntime."""
        raise NotImplementedError

    def expected(self, inputs: Any) -> Tensor:
        """The output of the module in torch."""
        raise NotImplementedError

    def is_usable(self) -> bool:
        """Whether module and weights are those of the export, without gradients and autocast, in the process that
        loaded the graph."""
        if torch.is_grad_enabled() or self._weights is None or self._stamp() != self._weights:
            return False
        if getattr(self._policy(), self.attribute, None) is not self._module or torch.is_autocast_enabled("cpu"):
            return False
        return os.getpid() == self._process  # the threads of a session do not survive a fork

    def is_chosen(self, inputs: Any) -> bool:
        """See `choose`; False if onnxruntime cannot compute them, or there are no rows."""
        try:
            return len(_tensors(inputs)[0]) > 0 and self.choose(inputs)
        except Exception as error:  # a robot that moves must not stop for a measurement
            self._give_up(error)
            return False

    def computed(self, inputs: Any, is_first: bool) -> Tensor:
        """The output by onnxruntime, compared with torch's at first; torch's where it fails."""
        try:
            output = self._run(inputs)
        except Exception as error:
            self._give_up(error)
            return self.expected(inputs)
        return self._checked(output, inputs) if is_first else output

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _nothing, ()

    @torch.no_grad()
    def choose(self, inputs: Any) -> bool:
        """Whether onnxruntime computes inputs of about so many rows: as measured before, or else now, on these."""
        rows = len(_tensors(inputs)[0])
        at_most = 1 << (rows - 1).bit_length()  # the episodes of a rollout end at different steps

        def line_of(is_chosen: bool, eager_s: float, onnx_s: float) -> str:
            runtime = "onnxruntime" if is_chosen else "torch"
            times = f"{1e3 * eager_s:.2f} ms in torch and {1e3 * onnx_s:.2f} ms in onnxruntime"
            return f"the policy's {self.part} runs in {runtime}: {rows} rows take {times}"

        return self._remembered(f"up to {at_most} rows", lambda: self._measured(inputs), line_of)

    def is_faster(self, name: str, measure: Callable[[], tuple[float, float]]) -> bool:
        """Whether one graph for a chunk is faster than its evaluations, as measured before, or else now.

        Args:
            measure: returns the seconds of the evaluations and of the graph.
        """

        def line_of(is_chosen: bool, evaluations_s: float, graph_s: float) -> str:
            way = "as one graph" if is_chosen else "evaluation by evaluation"
            times = f"{1e3 * evaluations_s:.2f} ms evaluation by evaluation and {1e3 * graph_s:.2f} ms as one graph"
            return f"the policy's {self.part} draws {name} {way}: {times}"

        return self._remembered(name, measure, line_of)

    def _remembered(
        self, name: str, measure: Callable[[], tuple[float, float]], line_of: Callable[[bool, float, float], str]
    ) -> bool:
        """Whether the second of two measured ways is faster, kept for this processor and number of threads.

        Args:
            line_of: returns the line in the log about a new measurement.
        """
        key = f"{name}, {torch.get_num_threads()} threads, {_cpu()}"
        with self._lock:
            if key not in self._choices:
                seconds = measure()
                self._choices[key] = seconds[0] > GAIN * seconds[1]
                graph_cache.store_choices(self._folder, self._choices)
                log.info("%s", line_of(self._choices[key], *seconds))
            return self._choices[key]

    def _measured(self, inputs: Any) -> tuple[float, float]:
        """Seconds of an evaluation in torch and in onnxruntime, the medians of turns.

        Raises:
            ValueError: they differ.
        """
        both = (lambda: self.expected(inputs), lambda: self._run(inputs))
        problem = disagreement(*(compute() for compute in both))
        if problem:
            raise ValueError(problem)
        return median_seconds(both, LEAST_TURNS, MEASURED_S)

    def _checked(self, output: Tensor, inputs: Any) -> Tensor:
        """The output of onnxruntime if the module agrees; the module's own, now and for ever, if not."""
        expected = self.expected(inputs)
        problem = disagreement(expected, output)
        if not problem:
            return output
        self._give_up(ValueError(problem))
        return expected

    def _give_up(self, error: Exception) -> None:
        """Leave the part in torch from now on."""
        self._weights = None
        log_fallback(self.part, error)

    def _stamp(self) -> tuple[list[tuple[int, int]], bytes]:
        """What changes with the weights: their places in memory, how often torch wrote to them, and some numbers."""
        weights = _weights(self._module)
        places = [(value.data_ptr(), 0 if value.is_inference() else value._version) for value in weights]
        return places, b"".join(sample.tobytes() for sample in self._samples)


def log_fallback(part: str, error: Exception) -> None:
    """Say why a part runs in torch."""
    cause = f"{type(error).__name__}: {error}".partition("\n")[0]
    log.warning("the policy's %s runs in torch, since onnxruntime cannot run it: %s", part, cause)


def _nothing() -> None:
    return None


def _tensors(inputs: Any) -> list[Tensor]:
    """The tensors of the inputs of a part, which have a row each."""
    return [*inputs.values()] if isinstance(inputs, dict) else [*inputs[:3]]


def _weights(module: nn.Module) -> Iterator[Tensor]:
    """The parameters and buffers of a module, shared ones as often as they are used: five times as fast as
    `parameters()` alone."""
    for values in (module._parameters, module._buffers):
        for value in values.values():
            if value is not None:
                yield value
    for child in module._modules.values():
        if child is not None:
            yield from _weights(child)


def _samples(module: nn.Module) -> list[np.ndarray]:
    """Some numbers of each weight, read from its memory: `.data` and inference mode write without a trace in torch."""
    flat = (value.detach().numpy().ravel(order="K") for value in _weights(module))
    return [values[:: max(1, values.size // 4)] for values in flat]


@functools.cache
def _cpu() -> str:
    """The name of the processor, as far as the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
