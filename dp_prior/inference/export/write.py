"""Writes the export of a policy, and measures how far the exported policy differs from the original."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import DDPM, SamplerConfig
from dp_prior.files.durable import encode_document, make_directory, seal, sync_directory, temporary_beside
from dp_prior.inference.export import numpy_randomness
from dp_prior.inference.export.exported_policy import FORMATS, PARITY, POLICY, ExportedPolicy, OnnxPolicy
from dp_prior.inference.export.graphs import (
    EXTENSIONS,
    ActionsGraph,
    DenoiserGraph,
    EncoderGraph,
    Format,
    InsideGraph,
    graph_file,
)
from dp_prior.inference.export.steps import sampling_steps
from dp_prior.inference.export.torch_policy import TorchExportPolicy
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.observations import policy_reads
from dp_prior.tensors.randomness import Randomness

Frames = Mapping[str, tuple[int, int]]
"""Height and width of frames by camera."""

POLICIES: dict[Format, type[ExportedPolicy]] = {"onnx": OnnxPolicy, "torch_export": TorchExportPolicy}
LARGEST_ERROR = 1e-3
"""Normalised units. Rounding errors are 100 times smaller; a part that draws random numbers, or that torch traced
wrongly, errs far more."""
SEEDS, BATCHES = (0, 1), (1, 3)
LIBRARIES = ("dp_prior", "torch", "numpy", "onnx", "onnxscript", "onnxruntime")


def write_export(
    policy: DiffusionPolicy,
    directory: Path,
    layout: Format,
    *,
    source: str,
    sampler: SamplerConfig | None = None,
    frames: Frames | None = None,
) -> dict[str, Any]:
    """Write a policy as graphs and numbers, see `exported_policy`; the directory appears complete or not at all.

    Args:
        policy: in evaluation mode, on the CPU, float32.
        source: name of the exported checkpoint, for `policy.json` and errors.
        sampler: instead of the policy's own.
        frames: height and width, by camera, of frames that the graph resizes; other cameras give the final size.

    Returns:
        The content of `parity.json`.

    Raises:
        FileExistsError: `directory` exists.
        ConfigError: the policy cannot be exported, or the export does not compute what the policy computes.
        ImportError: a library of the extra `onnx` is not installed.
    """
    if os.path.lexists(directory):
        raise FileExistsError(f"{directory} exists; choose another directory for the export, or delete it")
    sampler = sampler or policy.sampler
    frames = frames or {}
    if problems := [*_problems(policy, sampler), *_frame_problems(policy, frames)]:
        raise ConfigError(source, problems)
    make_directory(directory.parent)
    temporary = temporary_beside(directory)
    temporary.mkdir()
    try:
        content = document(policy, sampler, frames) | {"source": source, "files": {}}
        for name, graph in _graphs(policy, layout, source, frames).items():
            content["files"][name] = hashlib.sha256(graph).hexdigest()
            _write(temporary / name, graph)
        _write(temporary / POLICY, seal(content))
        report = _parity(policy, POLICIES[layout].load(temporary), sampler, frames)
        if not report["largest_error"] <= LARGEST_ERROR:  # NaN is no parity either
            raise ConfigError(
                source,
                [
                    f"the exported policy differs by {report['largest_error']:.2g} in normalised units, and rounding "
                    f"explains {LARGEST_ERROR:g}: a part draws numbers of its own, or torch traced it wrongly"
                ],
            )
        _write(temporary / PARITY, encode_document(report))
        sync_directory(temporary)
        os.rename(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(directory.parent)
    return report


def _problems(policy: DiffusionPolicy, sampler: SamplerConfig) -> list[str]:
    problems = []
    if policy.shown is not None:
        problems.append("it diffuses observations with its actions (task inpainting_policy); only policies whose "
                        "observations are conditions can be exported")  # fmt: skip
    if isinstance(sampler, DDPM) and policy.process.output_factor == 2:
        problems.append("sampler 'ddpm' scales its noise by the learned variance, which is no number; use 'ddim'")
    return problems


def _frame_problems(policy: DiffusionPolicy, frames: Frames) -> list[str]:
    known = sorted(policy.spec.fits)
    unknown = sorted(set(frames) - set(known))
    return [f"frames are given for {unknown}; the cameras whose frames it resizes are {known}"] if unknown else []


def document(policy: DiffusionPolicy, sampler: SamplerConfig, frames: Frames | None = None) -> dict[str, Any]:
    """The content of `policy.json`: shapes, units, and the sampler's steps from noise and from a previous sample."""
    spec, buffers = policy.spec, dict(policy.normalizer.named_buffers())
    offset, scale, divisor = (buffers[f"x/{name}"].cpu().double() for name in ("offset", "scale", "divisor"))
    try:
        cold, warm = (sampling_steps(policy.process.config, sampler, renoised=one) for one in (False, True))
    except ValueError as error:
        raise ConfigError("task.sampler", [str(error)]) from None
    transforms, reads = references(policy), policy_reads(policy).metadata()
    return {
        "format": FORMATS[transforms is not None],
        "horizon": policy.horizon,
        "n_obs_steps": policy.n_obs_steps,
        "n_action_steps": policy.n_action_steps,
        "action_dim": spec.x_shape[-1],
        "spec": spec.model_dump(mode="json"),
        "obs": {
            key: {"shape": shape, "dtype": str(spec.dtype(key)).removeprefix("torch.")}
            for key, shape in _shapes(policy, frames or {}).items()
        },
        "trained": {"obs": reads["trained"], "action": reads["action"]},
        "action": {
            "offset": offset.tolist(),
            "scale": scale.tolist(),
            "inverse": divisor.reciprocal().tolist(),  # 0 where the data were constant
            "clip": buffers["x/clip"].tolist() if "x/clip" in buffers else policy.normalizer.modes["x"].clip,
            "relative_to": policy.record.relative_to,
        },
        "transforms": None if transforms is None else {"x_dim": policy.x_shape[-1], "references": transforms},
        "self_condition": policy.process.input_factor == 2,
        "sampler": sampler.model_dump(mode="json"),
        "cold": cold,
        "warm": warm,
    }


def references(policy: DiffusionPolicy) -> list[str] | None:
    """Keys of the observations that actions are relative to, for a policy of arms or rotations; None for other
    policies, which need no graph for actions."""
    has_graphs = policy.record.arms or "x" in policy.spec.rotations
    return sorted(policy.transforms.references) if has_graphs else None


def _shapes(policy: DiffusionPolicy, frames: Frames) -> dict[str, tuple[int, ...]]:
    """Shapes of the observations, cameras in the size of the frames that go in."""
    shapes = policy.spec.cond_shapes
    return {key: (shape[0], *frames[key], shape[-1]) if key in frames else shape for key, shape in shapes.items()}


def _graphs(policy: DiffusionPolicy, layout: Format, source: str, frames: Frames) -> dict[str, bytes]:
    """The files of the graphs by name."""
    rows = 3  # torch takes sizes 0 and 1 for constants
    obs = observations(policy, 0, rows, frames)
    encoder, denoiser = EncoderGraph(policy, frames), DenoiserGraph(policy)
    with torch.no_grad():
        tokens = encoder(obs)
    x_t = torch.zeros(rows, *policy.x_shape)
    # a separate tensor: torch.export merges inputs that are the same object
    estimate = (torch.zeros_like(x_t),) if policy.process.input_factor == 2 else ()
    parts = [
        ("encoder", encoder, (obs,), ()),
        (
            "denoiser",
            denoiser,
            (x_t, torch.arange(rows) % policy.process.steps, tokens, *estimate),
            ("x_t", "t", "tokens", "estimate"),
        ),
    ]
    if (keys := references(policy)) is not None:
        seen = ({key: obs[key] for key in keys},) if keys else ()
        parts.append(("actions", ActionsGraph(policy), (x_t, *seen), ("x",)))
        parts.append(("inside", InsideGraph(policy), (torch.zeros(rows, *policy.spec.x_shape), *seen), ("actions",)))
    files = {}
    for name, graph, inputs, names in parts:
        try:
            files[name + EXTENSIONS[layout]] = graph_file(graph, inputs, layout, names)
        except ImportError:
            raise
        except Exception as error:  # a plug-in's part may do anything that torch's tracer refuses
            cause = str(error).strip().partition("\n")[0]
            problem = f"torch cannot export its {name}: {type(error).__name__}: {cause}"
            raise ConfigError(source, [problem]) from error
    return files


def observations(policy: DiffusionPolicy, seed: int, rows: int, frames: Frames | None = None) -> dict[str, Tensor]:
    """Random observations (rows, n_obs_steps, *shape) by key, within the range of the training data."""
    random = Randomness.from_counts(seed, "observations", torch.arange(rows))
    found = {}
    for key, shape in _shapes(policy, frames or {}).items():
        draws = random.stream(key)
        if policy.spec.kind(key) == "vector":
            low, high = (policy.normalizer.get_buffer(f"{key}/{end}") for end in ("min", "max"))
            found[key] = low + draws.uniform(shape[0], *low.shape) * (high - low)
        elif policy.spec.kind(key) == "points":
            found[key] = draws.normal(*shape)
        elif policy.spec.kind(key) == "text":
            found[key] = F.normalize(draws.normal(*shape), dim=-1)
        elif policy.spec.kind(key) == "depth":
            found[key] = 1.25 * draws.uniform(*shape) - 0.25  # scaled: a fifth was not measured
        else:
            found[key] = draws.integers(256 if policy.spec.kind(key) == "image" else 2, *shape).to(
                policy.spec.dtype(key)
            )
    return policy.transforms.decode_obs(found)


def _parity(
    policy: DiffusionPolicy, exported: ExportedPolicy, sampler: SamplerConfig, frames: Frames
) -> dict[str, Any]:
    """The largest difference of actions by batch size and seed, in normalised and in data units."""
    scale = policy.normalizer.get_buffer("x/scale")
    cases = []
    for rows in BATCHES:
        for seed in SEEDS:
            obs = observations(policy, seed, rows, frames)
            eager = policy.predict(obs, Randomness.from_counts(seed, "parity", torch.arange(rows)), sampler)
            noise = numpy_randomness.NumpyRandomness.from_counts(seed, "parity", range(rows))
            other = torch.from_numpy(exported.predict({k: v.numpy() for k, v in obs.items()}, noise))
            difference = (policy.encode_x(eager, obs) - policy.encode_x(other, obs)).abs()  # a rotation has two signs
            found = {"error": float((difference * scale).max()), "error_in_data_units": float(difference.max())}
            cases.append({"rows": rows, "seed": seed, **found})
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            versions[library] = None
    return {"largest_error": float(np.max([case["error"] for case in cases])), "cases": cases, "versions": versions}


def _write(path: Path, content: bytes) -> None:
    """Write and sync a new file; the caller syncs the directory."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
