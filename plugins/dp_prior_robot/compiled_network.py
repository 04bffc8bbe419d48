"""`sampler.compile` "auto" on a GPU: the network of an acting policy is compiled and its kernels are recorded as a CUDA
graph, if the result is the same in less time. Each reason against it is one line, and the policy acts in eager mode."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dp_prior.diffusion.denoiser import Network
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.compilation import compiled, fault_line, now

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig

LARGEST_ERROR = 1e-5
"""Of an output of the network, for each unit of its largest element."""

WORTH_EVALUATIONS = 5_000
"""Eager evaluations of a number of rows after which it is compiled: as long as compiling takes, at 10 ms each."""

MOST_SIZES = 4
"""Numbers of rows that are compiled for one policy."""

REPEATS = 5
"""Evaluations of a measurement."""

Evaluation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes the network's output from x_t (B, ...), t (B,) int64 and tokens (B, N, D)."""

SETTING = "sampler.compile"

log = logging.getLogger(__name__)


def compile_network(policy: nn.Module, sampler: SamplerConfig | None) -> None:
    """Give a policy on a GPU its `region`, if its sampler's `compile` is "auto"; it compiles nothing yet."""
    sampler = getattr(policy, "sampler", None) if sampler is None else sampler
    if getattr(sampler, "compile", "off") != "auto" or getattr(policy, "is_eager", False):
        return
    is_supported = isinstance(policy, DiffusionModel) and type(policy).network is DiffusionModel.network
    if not is_supported or policy.runtime is not None or _has_hooks(policy.backbone):
        return
    if policy.region is None or policy.region.is_stale:
        policy.region = CompiledNetwork(policy.backbone)


def _has_hooks(backbone: nn.Module) -> bool:
    """Whether code of others runs around its modules, such as that of ranks which divide the model: such a rank would
    wait for all others in the middle of a recording."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in backbone.modules())


class CompiledNetwork:
    """The `region` of a policy: its backbone in compiled code, for few numbers of rows.

    A number of rows is compiled by `prepare` or after `WORTH_EVALUATIONS`. Fewer rows than compiled are filled up;
    others are computed in eager mode. Copies and pickles of a policy have no region.

    Attributes:
        reason: why nothing is compiled any more; empty for as long as nothing failed.
    """

    def __init__(self, backbone: nn.Module):
        self.reason = ""
        self._backbone, self._weights = backbone, _places(backbone)
        self._eager_evaluations: Counter[int] = Counter()
        self._compiled: dict[int, Evaluation] = {}
        self._unchecked: set[int] = set()
        self._row_shapes: list[tuple[Any, ...]] = []
        self._patience = WORTH_EVALUATIONS
        self._lock = threading.RLock()

    @property
    def is_stale(self) -> bool:
        """Whether the weights have moved to other memory, which a CUDA graph would not notice."""
        return self._weights != _places(self._backbone)

    def __call__(self, tokens: Tensor) -> Network | None:
        """The network for the tokens of a condition; None where it has to be computed in eager mode."""
        is_cast = torch.is_autocast_enabled(tokens.device.type)
        if self.reason or self._backbone.training or is_cast or torch.compiler.is_compiling():
            return None
        if self.is_stale:
            if self._compiled:
                self._give_up("its weights have moved")
                return None
            self._weights = _places(self._backbone)
        return lambda x_t, t: self._evaluate(x_t, t, tokens)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _nothing, ()

    def prepare(self, spec: Spec, draw: Callable[..., Tensor]) -> None:
        """Compile for one row, on a chunk drawn from observations of zeros by `Plans.draw`."""
        zeros = {key: torch.zeros(1, *shape, dtype=spec.dtype(key)) for key, shape in spec.cond_shapes.items()}
        with self._lock:
            if self.reason or 1 in self._compiled:
                return
            self._patience = 0
            try:
                draw(zeros, torch.zeros(1, dtype=torch.int64), 0, None, 0, None)
            except Exception as error:  # of a part that refuses zeros; what the compiler raises is handled already
                self._give_up(fault_line(error))
            finally:
                self._patience = WORTH_EVALUATIONS

    def _evaluate(self, x_t: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        """One evaluation of the network, compiled if possible; no error but the network's own."""
        inputs = (x_t, t, tokens)
        if self.reason or torch.is_grad_enabled():  # guidance toward a target differentiates the network
            return self._backbone(*inputs)
        with self._lock:
            try:
                output = self._fast(inputs)
            except Exception as error:  # a robot that moves must not stop for a compiler
                self._give_up(fault_line(error))
                output = None
        return self._backbone(*inputs) if output is None else output

    def _fast(self, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor | None:
        """The output of compiled code, compared with eager mode at the first time; None for eager mode.

        Raises:
            ValueError: they differ.
        """
        size = self._size(inputs)
        if size is None:
            return None
        output = self._compiled[size](*_filled(inputs, size))[: len(inputs[0])]
        if size in self._unchecked:
            _check(output, self._backbone(*inputs))
            self._unchecked.discard(size)
        return output

    def _size(self, inputs: tuple[Tensor, Tensor, Tensor]) -> int | None:
        """The compiled number of rows that computes inputs; None for eager mode. Compiles when that pays."""
        rows, row_shapes = len(inputs[0]), [(value.shape[1:], value.dtype) for value in inputs]
        if self._compiled and row_shapes != self._row_shapes:
            return None
        sufficient = [size for size in self._compiled if size >= rows]
        is_full = len(self._compiled) == MOST_SIZES
        if rows in sufficient or (sufficient and (self._patience or is_full)):
            return min(sufficient)
        self._eager_evaluations[rows] += 1
        if is_full or self._eager_evaluations[rows] <= self._patience:
            return None
        self._row_shapes = row_shapes
        self._compile(inputs)
        return None

    def _compile(self, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        """Compile for as many rows as the inputs have."""
        rows, begun, device = len(inputs[0]), time.perf_counter(), inputs[0].device
        log.info("%s: compiling the policy's network for %d rows, which may take a minute", SETTING, rows)
        problems = []
        with torch.inference_mode(False), torch.no_grad():
            inputs = tuple(value.clone() for value in inputs)
            expected, eager_s = _measured(self._backbone, inputs)
            for way in self._ways(device):
                try:
                    fast = way(inputs)
                    output, compiled_s = _measured(fast, inputs)
                    _check(output, expected)
                    if compiled_s >= eager_s:
                        raise ValueError(f"it takes {1e3 * compiled_s:.3g} ms and in eager mode {1e3 * eager_s:.3g}")
                except Exception as error:  # of the compiler, the driver or a module: the policy acts without it
                    problems.append(fault_line(error))
                    continue
                self._compiled[rows] = fast
                self._unchecked.add(rows)
                times = f"{1e3 * compiled_s:.3g} ms in place of {1e3 * eager_s:.3g}"
                remarks = "".join(f"; not compiled, only recorded: {problem}" for problem in problems)
                lasted_s = time.perf_counter() - begun
                log.info("%s: %d rows take %s, after %.0f s%s", SETTING, rows, times, lasted_s, remarks)
                return
        self._give_up("; ".join(problems))

    def _ways(self, device: torch.device) -> Iterator[Callable[[tuple[Tensor, ...]], Evaluation]]:
        """Ways to make a faster network, best first: compiled, and on CUDA the kernels of eager mode as a graph."""
        make = _recorded if device.type == "cuda" else _compiled_once
        yield lambda inputs: make(compiled(self._backbone.forward, "default", SETTING, dynamic=False), inputs)
        if device.type == "cuda":
            yield lambda inputs: _recorded(self._backbone, inputs)

    def _give_up(self, reason: str) -> None:
        """Leave the policy in eager mode from now on."""
        self.reason = reason
        self._compiled.clear()
        log.warning("%s: the policy's network runs in eager mode, %s", SETTING, reason)


def _nothing() -> None:
    return None


def _places(backbone: nn.Module) -> list[int]:
    """Where the weights and buffers lie in memory."""
    return [tensor.data_ptr() for tensor in (*backbone.parameters(), *backbone.buffers())]


def _filled(inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    """Inputs of `size` rows: the last row is repeated."""
    missing = size - len(inputs[0])
    if not missing:
        return inputs
    return tuple(torch.cat([value, value[-1:].expand(missing, *value.shape[1:])]) for value in inputs)


def _check(output: Tensor, expected: Tensor) -> None:
    """Raises ValueError if an output differs from that of eager mode by more than rounding."""
    error = (output.float() - expected.float()).abs().max().item()
    largest = LARGEST_ERROR * max(1.0, expected.float().abs().max().item())
    if not error <= largest:  # so for NaN, too
        raise ValueError(f"compiled code differs from it by {error:.2g}; expected at most {largest:.2g}")


def _measured(evaluate: Evaluation, inputs: tuple[Tensor, ...]) -> tuple[Tensor, float]:
    """The output, and the seconds of an evaluation after a first one, which compiles and selects kernels."""
    output = evaluate(*inputs)
    begun = now(output.device)
    for _ in range(REPEATS):
        output = evaluate(*inputs)
    return output, (now(output.device) - begun) / REPEATS


def _compiled_once(evaluate: Evaluation, inputs: tuple[Tensor, ...]) -> Evaluation:
    """An evaluation that is compiled for these inputs; any others are computed without the compiler."""
    evaluate(*inputs)

    def call(*values: Tensor) -> Tensor:
        with torch.compiler.set_stance("eager_on_recompile"):
            return evaluate(*values)

    return call


def _recorded(evaluate: Evaluation, inputs: tuple[Tensor, ...]) -> Evaluation:
    """The kernels of an evaluation as a CUDA graph. Torch's own way in `torch.compile` ties a graph to one thread, and
    servers and `RealtimeAgent` predict in several."""
    device = inputs[0].device
    memory = [value.clone() for value in inputs]
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # kernels are selected and buffers allocated before the recording
                evaluate(*memory)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = evaluate(*memory)

    def replay(*values: Tensor) -> Tensor:
        with torch.cuda.device(device):
            for place, value in zip(memory, values, strict=True):
                place.copy_(value)
            graph.replay()
            return output.clone()

    return replay
