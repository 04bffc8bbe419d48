"""Gives a policy that acts on a CPU a runtime: onnxruntime computes its large parts, the network and the encoder, where
that is faster and gives the same numbers. `load_policy(..., runtime="eager")` keeps all in torch.
"""

from __future__ import annotations

import logging
import threading

import torch
from torch import nn

from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.chunk_sampling import ChunkSampling, is_supported, log_failure
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.onnx_encoder import OnnxEncoder
from dp_prior_robot.export.onnx_network import OnnxNetwork
from dp_prior_robot.export.onnx_part import OnnxPart, log_fallback
from dp_prior_robot.export.parity import versions

log = logging.getLogger(__name__)

FEWEST_WEIGHTS = 200_000
"""Smaller networks take a millisecond or two, and are not worth an export."""

FEWEST_ENCODER_WEIGHTS = 200_000
"""The same of encoders; those of states have a few hundred."""

PARTS: dict[str, type[OnnxPart]] = {"runtime": OnnxNetwork, "encoding": OnnxEncoder}
"""By attribute of `DiffusionModel`."""

_ONE_AT_A_TIME = threading.Lock()
"""Held while a policy is given a runtime; threads may make agents of one policy at the same time."""


def accelerate(policy: nn.Module) -> None:
    """Give a policy that acts on a CPU a runtime, if onnxruntime is installed; whatever fails is a line in the log."""
    parts = _parts(policy)
    if not parts:
        return
    with _ONE_AT_A_TIME:
        if any(getattr(policy, name) is not None for name in parts) or not policy.is_loaded:
            return
        for name, kind in parts.items():
            try:
                runtime = kind.of(policy)
                runtime.choose(runtime.example)  # a robot is one row
                setattr(policy, name, runtime)
            except Exception as error:  # a full disk, a graph that torch cannot trace, a broken library
                policy.is_loaded = False  # it is not tried again
                log_fallback(kind.part, error)
                return
        if "runtime" in parts and is_supported(policy):
            _draw_chunks_at_once(policy, policy.runtime)


def _draw_chunks_at_once(policy: DiffusionPolicy, runtime: OnnxNetwork) -> None:
    """Give a policy its `sampling`, and measure that with the policy's sampler, since a robot is about to wait."""
    try:
        cond_shape = tuple(runtime.example.tokens.shape[1:])
        policy.sampling = ChunkSampling(policy, cond_shape, runtime.is_usable, runtime.is_faster)
        policy.predict(observations(policy, 0, 1), Randomness.from_counts(0, "runtime", torch.arange(1)))
    except Exception as error:  # an operator that this onnxruntime does not have
        log_failure(error)


def _parts(policy: nn.Module) -> dict[str, type[OnnxPart]]:
    """The runtimes of a policy by attribute: of its large parts, if they are of float32 on a CPU, and the extra `onnx`
    is installed."""
    if not isinstance(policy, DiffusionPolicy) or policy.training:
        return {}
    weights = [*policy.encoder.parameters(), *policy.backbone.parameters()]
    if any(value.device.type != "cpu" for value in weights):
        return {}
    is_large = {
        "runtime": _size(policy.backbone) >= FEWEST_WEIGHTS and type(policy).network is DiffusionModel.network,
        "encoding": _size(policy.encoder) >= FEWEST_ENCODER_WEIGHTS and type(policy).encode is DiffusionModel.encode,
    }
    parts = {name: kind for name, kind in PARTS.items() if is_large[name]}
    if parts and None in versions().values():
        log.info("the policy's network runs in torch; pip install 'dp_prior[onnx]' may make it faster on a CPU")
        return {}
    types = {str(value.dtype).removeprefix("torch.") for value in weights}
    if types <= {"float32"}:
        return parts
    if parts and policy.is_loaded:
        policy.is_loaded = False  # so that one line is enough
        log.warning(
            "the policy's network runs in torch, in %s; onnxruntime computes in float32 alone, and is often faster for "
            "one robot: leave dtype out and compare",
            " and ".join(sorted(types)),
        )
    return {}


def _size(module: nn.Module) -> int:
    """The number of its weights."""
    return sum(value.numel() for value in module.parameters())
