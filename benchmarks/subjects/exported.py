"""Acting: the policy in eager, compiled, exported and bf16 form and as agents run it, one row at a time."""

from __future__ import annotations

import copy
import math
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.image_policy import SPECS, policy, record
from benchmarks.measure import Case, Options, compare
from dp_prior.diffusion.sampler import DDIM
from dp_prior.networks.convolution import Convolution
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export import graph_cache, numpy_randomness, onnx_runtime
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.exported_policy import OnnxPolicy
from dp_prior_robot.export.torch_policy import TorchExportPolicy
from dp_prior_robot.export.write import write_export

COMPILE_LIMIT_S = 300
SAMPLER = DDIM(steps=8)
AS_AGENTS = "as agents run it"


def run(options: Options) -> list[Case]:
    cases = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as place:
        for name, spec in SPECS.items():
            created = policy(record(name=name), spec).eval().requires_grad_(False)
            cases.append(_acting(name, created, options, Path(place)))
            if options.quick:
                return cases
        published = policy(record()).eval().requires_grad_(False)
        cases.append(_published(published, options, Path(place)))
    return cases


def _acting(name: str, policy: DiffusionPolicy, options: Options, place: Path) -> Case:
    obs, random = observations(policy, 0, 1), Randomness.from_counts(0, "benchmark", torch.arange(1))
    arrays, noise = (
        {k: v.numpy() for k, v in obs.items()},
        numpy_randomness.NumpyRandomness.from_counts(0, "benchmark", [0]),
    )
    half, chosen = _half(policy), _accelerated(policy, place)
    variants: dict[str, Callable[[], object]] = {
        "eager": lambda: policy.predict(obs, random, SAMPLER),
        AS_AGENTS: lambda: chosen.predict(obs, random, SAMPLER),
        "eager, bf16 weights": lambda: half.predict(obs, random, SAMPLER),
    }
    fast = SAMPLER.model_copy(update={"compile": "default"})
    note = f"{_multiply_adds(policy, obs, random)} {_runtime(chosen)} "
    if options.quick:
        note += "Compiled: not measured with --quick."
    elif not _finishes(lambda: policy.predict(obs, random, fast)):
        note += f"Compiled: SKIPPED, torch.compile did not finish within {COMPILE_LIMIT_S} s."
    else:
        variants["compiled"] = lambda: policy.predict(obs, random, fast)
    for layout, kind, how in (("torch_export", TorchExportPolicy, {}), ("onnx", OnnxPolicy, {"threads": _threads()})):
        report = write_export(policy, place / f"{name}_{layout}", layout, source=name, sampler=SAMPLER)
        exported = kind.load(place / f"{name}_{layout}", **how)
        variants[layout] = lambda exported=exported: exported.predict(arrays, noise)
        note += f" Parity of {layout}: {report['largest_error']:.1e} normalised."
    return Case(
        f"{name}: one chunk, DDIM-8, {_threads()} threads", "ms", compare(variants, options.times(30)), note=note
    )


def _published(policy: DiffusionPolicy, options: Options, place: Path) -> Case:
    """The published image network; its control at 10 Hz has 800 ms for a chunk of 8 actions."""
    obs, random = observations(policy, 0, 1), Randomness.from_counts(0, "benchmark", torch.arange(1))
    half, chosen = _half(policy), _accelerated(policy, place)
    variants = {
        "eager": lambda: policy.predict(obs, random, SAMPLER),
        AS_AGENTS: lambda: chosen.predict(obs, random, SAMPLER),
        "eager, bf16 weights": lambda: half.predict(obs, random, SAMPLER),
        "its encoder alone": lambda: policy.encode(obs),
    }
    n_bytes = sum(parameter.nbytes for parameter in policy.backbone.parameters())
    reading = f"An evaluation reads {n_bytes / 1e9:.2f} GB of weights, bf16 half."
    note = f"{_multiply_adds(policy, obs, random)} {_runtime(chosen)} {reading}"
    name = f"pusht_image_paper: one chunk, DDIM-8, {_threads()} threads"
    return Case(name, "ms", compare(variants, options.times(5)), note=note)


def _accelerated(policy: DiffusionPolicy, place: Path) -> DiffusionPolicy:
    """A copy with the runtime that an agent gives it, chosen anew."""
    chosen = copy.deepcopy(policy)
    graph_cache.CACHE = place / "networks"
    onnx_runtime.accelerate(chosen)
    return chosen


def _runtime(policy: DiffusionPolicy) -> str:
    runtime = policy.runtime
    is_onnx = runtime is not None and runtime.choose(runtime.example)
    return f"Agents run its network in {'onnxruntime' if is_onnx else 'torch'}."


def _half(policy: DiffusionPolicy) -> DiffusionPolicy:
    """A copy whose network computes in bfloat16, as `load_policy(dtype=torch.bfloat16)` makes it."""
    half = copy.deepcopy(policy)
    for parameter in [*half.encoder.parameters(), *half.backbone.parameters()]:
        parameter.data = parameter.data.bfloat16()
    return half


def _finishes(work: Callable[[], Any]) -> bool:
    """Whether something is done within the limit; it is interrupted otherwise."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(COMPILE_LIMIT_S)
    try:
        work()
    except Exception as error:  # the compiler wraps the interruption
        if not isinstance(error, TimeoutError) and "TimeoutError" not in repr(error):
            raise
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True


def _multiply_adds(policy: DiffusionPolicy, obs: dict[str, torch.Tensor], random: Randomness) -> str:
    """Multiply-adds of an observation's encoding and of one evaluation, of linear layers and convolutions."""
    counts = {"encoder": 0, "backbone": 0}

    def count(part: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            channels = 1 if isinstance(module, nn.Conv2d) else -1
            places = math.prod(output.shape) // output.shape[channels]
            if isinstance(module, Convolution):  # its weight serves all phases of a place at once
                places //= module.taps.targets
            counts[part] += places * module.weight.numel()

        return hook

    kinds = (nn.Linear, nn.Conv2d, Convolution)
    handles = []
    for part in counts:
        layers = [module for module in policy.get_submodule(part).modules() if isinstance(module, kinds)]
        handles += [layer.register_forward_hook(count(part)) for layer in layers]
    policy.predict(obs, random, DDIM(steps=1))
    for handle in handles:
        handle.remove()
    return f"{counts['encoder'] / 1e6:.1f} M multiply-adds to encode, {counts['backbone'] / 1e6:.1f} M an evaluation."


def _threads() -> int:
    return torch.get_num_threads()
