"""Runs the network of an acting policy on a CPU by onnxruntime, where that is faster and gives the same numbers.

The network is exported once and kept under `~/.cache/dp_prior/networks`, named by a hash of its weights, its
configuration and the versions of the libraries. A measurement decides between onnxruntime and torch, for each number of
rows; it is kept too, so that a policy acts alike at every start. `load_policy(..., runtime="eager")`
keeps all in torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.diffusion.denoiser import Network
from dp_prior.files.durable import publish, replace_file, temporary_directory
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.regular_files import expanded, read_small
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.graph_files import graph_file
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS
from dp_prior_robot.export.parity import versions

log = logging.getLogger(__name__)

CACHE = Path("~/.cache/dp_prior/networks")
FEWEST_WEIGHTS = 200_000
"""Smaller networks take a millisecond or two, and are not worth an export."""

LARGEST_ERROR = 1e-5
"""Of an output of the network, for each unit of its largest element."""

GAIN = 1.1
"""How many times faster onnxruntime must be to be used."""

MEASURED_S = 0.5
"""Time for which each of both is measured."""

FORGOTTEN_S = 90 * 24 * 3600.0
"""Networks that no policy has used for this long are deleted when another one is stored."""

MOST_BYTES = 4 << 30
"""Bytes of all networks but the newest; those that no policy has used for the longest time are deleted first."""

GRAPH, DIGEST, CHOICES = "network.onnx", "network.sha256", "choices.json"

_ONE_AT_A_TIME = threading.Lock()
"""Held while a policy is given a runtime; threads may make agents of one policy at the same time."""

Inputs = tuple[Tensor, Tensor, Tensor]
"""x_t (B, H, in_channels), t (B,) int64 and tokens (B, N, D)."""


def accelerate(policy: nn.Module) -> None:
    """Give a policy that acts on a CPU a runtime, if onnxruntime is installed; whatever fails is a line in the log."""
    if not _is_supported(policy):
        return
    with _ONE_AT_A_TIME:
        if policy.runtime is not None or not policy.is_loaded:
            return
        try:
            runtime = OnnxNetwork.of(policy)
            runtime.choose(runtime.example)  # a robot is one row
            policy.runtime = runtime
        except Exception as error:  # a full disk, a graph that torch cannot trace, a broken library
            policy.is_loaded = False  # it is not tried again
            _tell_failure(error)


def _is_supported(policy: nn.Module) -> bool:
    """Whether the policy's network is a large one of float32 on a CPU, and the extra `onnx` is installed."""
    if not isinstance(policy, DiffusionPolicy) or type(policy).network is not DiffusionModel.network:
        return False
    weights = [*policy.backbone.parameters()]
    if policy.training or sum(value.numel() for value in weights) < FEWEST_WEIGHTS:
        return False
    if any(value.dtype is not torch.float32 or value.device.type != "cpu" for value in weights):
        return False
    missing = [name for name, version in versions().items() if version is None]
    if missing:
        log.info("the policy's network runs in torch; pip install 'dp_prior[onnx]' may make it faster on a CPU")
    return not missing


class NetworkGraph(nn.Module):
    """The backbone of a policy alone."""

    outputs = ("output",)

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone

    def forward(self, x_t: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        """See `Inputs`."""
        return self.backbone(x_t, t, tokens)


class OnnxNetwork:
    """The `runtime` of a policy: its backbone in onnxruntime, used for the numbers of rows at which it is faster.

    Copies and pickles of a policy have no runtime.
    """

    def __init__(self, backbone: nn.Module, example: Inputs, folder: Path):
        """
        Args:
            example: one row.
            folder: holds the graph.

        Raises:
            ValueError: the graph is not what was stored.
        """
        if _digest(folder / GRAPH) != read_small(folder / DIGEST).decode():
            raise ValueError(f"{folder / GRAPH} is damaged; the next start writes it again")
        self.example = example
        self._backbone, self._folder = backbone, folder
        self._run = _session(folder / GRAPH)
        self._samples = _samples(backbone)
        self._weights = self._stamp()
        self._choices = _stored_choices(folder / CHOICES)
        self._process, self._is_checked, self._lock = os.getpid(), False, threading.Lock()

    @classmethod
    def of(cls, policy: DiffusionPolicy) -> OnnxNetwork:
        """The network of a policy, exported if it is not in the cache."""
        rows = _example(policy, 3)  # torch takes sizes 0 and 1 for constants
        folder = expanded(CACHE) / _key(policy)
        if not folder.exists():
            _store(policy.backbone, rows, folder)
        with contextlib.suppress(OSError):  # a read-only disk, a folder of another user
            os.utime(folder)
        try:
            return cls(policy.backbone, tuple(value[:1] for value in rows), folder)
        except Exception:
            with contextlib.suppress(OSError):  # a damaged graph is written again at the next start
                shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
            raise

    def __call__(self, tokens: Tensor) -> Network | None:
        """See `DiffusionModel.runtime`; None for weights or tokens that are not those of the export, or gradients."""
        if torch.is_grad_enabled() or tokens.dtype is not torch.float32 or self._stamp() != self._weights:
            return None
        if os.getpid() != self._process:  # the threads of a session do not survive a fork
            return None
        inputs = *(value.expand(len(tokens), *value.shape[1:]) for value in self.example[:2]), tokens
        try:
            if not self.choose(inputs):
                return None
        except Exception as error:  # a robot that moves must not stop for a measurement
            self._give_up(error)
            return None
        is_first, self._is_checked = not self._is_checked, True

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            if torch.compiler.is_compiling() or x_t.requires_grad or self._weights is None:
                return self._backbone(x_t, t, tokens)
            try:
                output = self._run((x_t, t, tokens))
            except Exception as error:
                self._give_up(error)
                return self._backbone(x_t, t, tokens)
            return self._checked(output, (x_t, t, tokens)) if is_first else output

        return network

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _nothing, ()

    @torch.no_grad()
    def choose(self, inputs: Inputs) -> bool:
        """Whether onnxruntime computes inputs of about so many rows: as measured before, or else now, on these."""
        rows = len(inputs[0])
        at_most = 1 << (rows - 1).bit_length()  # the episodes of a rollout end at different steps
        key = f"up to {at_most} rows, {torch.get_num_threads()} threads, {_cpu()}"
        with self._lock:
            if key in self._choices:
                return self._choices[key]
            eager_s, onnx_s = self._measured(inputs)
            self._choices[key] = eager_s > GAIN * onnx_s
            with contextlib.suppress(OSError):  # a full or read-only disk: it is measured again at the next start
                replace_file(self._folder / CHOICES, seal(self._choices))
        log.info(
            "the policy's network runs in %s: %d rows take %.2f ms in torch and %.2f ms in onnxruntime",
            "onnxruntime" if self._choices[key] else "torch",
            rows,
            1e3 * eager_s,
            1e3 * onnx_s,
        )
        return self._choices[key]

    def _measured(self, inputs: Inputs) -> tuple[float, float]:
        """Seconds of an evaluation in torch and in onnxruntime, the medians of turns.

        Raises:
            ValueError: they differ.
        """
        both = (lambda: self._backbone(*inputs), lambda: self._run(inputs))
        problem = _disagreement(*(compute() for compute in both))
        if problem:
            raise ValueError(problem)
        seconds: tuple[list[float], list[float]] = [], []
        end = time.perf_counter() + 2 * MEASURED_S
        while time.perf_counter() < end or len(seconds[0]) < 3:
            for compute, taken in zip(both, seconds, strict=True):
                start = time.perf_counter()
                compute()
                taken.append(time.perf_counter() - start)
        return statistics.median(seconds[0]), statistics.median(seconds[1])

    def _checked(self, output: Tensor, inputs: Inputs) -> Tensor:
        """The output of onnxruntime if the backbone agrees; the backbone's own, now and for ever, if not."""
        expected = self._backbone(*inputs)
        problem = _disagreement(expected, output)
        if not problem:
            return output
        self._give_up(ValueError(problem))
        return expected

    def _give_up(self, error: Exception) -> None:
        """Leave the policy in torch from now on."""
        self._weights = None
        _tell_failure(error)

    def _stamp(self) -> tuple[list[tuple[int, int]], bytes]:
        """What changes with the weights: their places in memory, how often torch wrote to them, and some numbers."""
        weights = self._backbone.parameters()
        places = [(value.data_ptr(), 0 if value.is_inference() else value._version) for value in weights]
        return places, b"".join(sample.tobytes() for sample in self._samples)


def _nothing() -> None:
    return None


def _disagreement(expected: Tensor, output: Tensor) -> str:
    """How two outputs of the network differ by more than `LARGEST_ERROR`; an empty text for rounding."""
    error = (expected - output).abs().max().item()
    largest = LARGEST_ERROR * max(1.0, expected.abs().max().item())
    if error <= largest:
        return ""
    return f"onnxruntime differs from it by {error:.2g}, and rounding explains {largest:.2g}"


def _samples(backbone: nn.Module) -> list[np.ndarray]:
    """Some numbers of each weight, read from its memory: `.data` and inference mode write without a trace in torch."""
    flat = (value.detach().numpy().ravel(order="K") for value in backbone.parameters())
    return [values[:: max(1, values.size // 4)] for values in flat]


def _tell_failure(error: Exception) -> None:
    cause = f"{type(error).__name__}: {error}".partition("\n")[0]
    log.warning("the policy's network runs in torch, since onnxruntime cannot run it: %s", cause)


def _session(path: Path) -> Callable[[Inputs], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the robot's other work has the cores
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Tensor:
        values = dict(zip(("x_t", "t", "tokens"), (value.detach().numpy() for value in inputs), strict=True))
        return torch.from_numpy(np.asarray(session.run(None, values)[0]))

    return run


class _FirstInputs(Exception):
    """Ends a sampling at its first evaluation."""


@torch.no_grad()
def _example(policy: DiffusionPolicy, rows: int) -> Inputs:
    """The inputs of the first evaluation of the network, for observations within the range of training."""
    inputs: list[Tensor] = []
    caller = threading.get_ident()

    def runtime(tokens: Tensor) -> Network | None:
        if threading.get_ident() != caller:  # the policy acts meanwhile
            return None

        def network(x_t: Tensor, t: Tensor) -> Tensor:
            inputs.extend((x_t, t, tokens))
            raise _FirstInputs

        return network

    policy.runtime = runtime
    try:
        random = Randomness.from_counts(0, "runtime", torch.arange(rows))
        policy.predict(observations(policy, 0, rows), random)
    except _FirstInputs:
        pass
    finally:
        policy.runtime = None
    x_t, t, tokens = (value.contiguous().clone() for value in inputs)
    return x_t, t, tokens


def _store(backbone: nn.Module, rows: Inputs, folder: Path) -> None:
    """Export the backbone to a folder, which appears whole or not at all; forgotten ones are deleted."""
    log.warning("exporting the policy's network once, which takes half a minute, to %s", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _delete_unused(folder.parent)
    with temporary_directory(folder) as temporary:
        (temporary / GRAPH).write_bytes(graph_file(NetworkGraph(backbone), rows, "onnx", DEFAULT_OPTIONS))
        (temporary / DIGEST).write_text(_digest(temporary / GRAPH))
        with contextlib.suppress(FileExistsError):  # another process was faster
            publish(temporary, folder)


def _delete_unused(networks: Path) -> None:
    """Delete the networks that no policy has used for `FORGOTTEN_S`, and the longest unused beyond `MOST_BYTES`."""
    times: dict[Path, float] = {}
    for network in networks.iterdir():
        with contextlib.suppress(OSError):  # another process deletes it
            times[network] = network.stat().st_mtime
    held = 0
    for network in sorted(times, key=lambda network: -times[network]):
        with contextlib.suppress(OSError):
            held += sum(file.stat().st_size for file in network.rglob("*") if file.is_file())
            if held > MOST_BYTES or time.time() - times[network] > FORGOTTEN_S:
                shutil.rmtree(network)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _key(policy: DiffusionPolicy) -> str:
    """A hash of whatever the graph depends on."""
    about: Mapping[str, Any] = {"task": policy.record.to_document(), "spec": policy.spec.model_dump(mode="json")}
    digest = hashlib.sha256(json.dumps([versions(), about], sort_keys=True, default=str).encode())
    for name, tensor in policy.backbone.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().data)
    return digest.hexdigest()[:40]


def _stored_choices(path: Path) -> dict[str, bool]:
    """The measurements of earlier starts; those of a damaged file are made again."""
    try:
        return {key: bool(value) for key, value in unseal(read_small(path)).items()}
    except (OSError, ValueError):
        return {}


@functools.cache
def _cpu() -> str:
    """The name of the processor, as far as the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
