"""Writes the export of a policy: its document, its graphs, and the report of `export.parity`."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import DDPM, SamplerConfig
from dp_prior.files.durable import make_directory, publish, refuse_existing, temporary_directory
from dp_prior.files.json_text import encode_document, seal
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.observations import policy_reads
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_robot.export.example_rows import frame_shapes, observations
from dp_prior_robot.export.exported_policy import FORMATS, PARITY, POLICY, ExportedPolicy, OnnxPolicy
from dp_prior_robot.export.graph_files import graph_file
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS, Format, GraphOptions, Precision
from dp_prior_robot.export.graphs import ActionsGraph, DenoiserGraph, EncoderGraph, InsideGraph
from dp_prior_robot.export.opsets import GraphError
from dp_prior_robot.export.parity import disparity, parity
from dp_prior_robot.export.steps import sampling_steps
from dp_prior_robot.export.torch_policy import TorchExportPolicy
from dp_prior_robot.export.unrolled import unrolled_files

POLICIES: dict[Format, type[ExportedPolicy]] = {"onnx": OnnxPolicy, "torch_export": TorchExportPolicy}


def write_export(
    policy: DiffusionPolicy,
    directory: Path,
    layout: Format,
    *,
    source: str,
    sampler: SamplerConfig | None = None,
    options: GraphOptions = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Write a policy as graphs and numbers, see `exported_policy`; the directory appears complete or not at all.

    Args:
        policy: in evaluation mode, on the CPU, float32.
        source: name of the exported checkpoint, for `policy.json` and errors.
        sampler: instead of the policy's own.

    Returns:
        The content of `parity.json`.

    Raises:
        FileExistsError: `directory` exists.
        ConfigError: the policy cannot be exported, or the export does not compute what the policy computes.
        ImportError: a library of the extra `onnx` is not installed.
    """
    refuse_existing(directory)
    sampler = sampler or policy.sampler
    _refuse(source, _problems(policy, sampler, options))
    content = document(policy, sampler, options) | {"source": source, "files": {}}
    _refuse(source, list(options.faults(layout, len(content["cold"]["evaluations"]))))
    computed = _computed(policy, options.precision)
    make_directory(directory.parent)
    with temporary_directory(directory) as temporary:
        for name, graph in _graphs(computed, layout, source, options, content).items():
            content["files"][name] = hashlib.sha256(graph).hexdigest()
            (temporary / name).write_bytes(graph)
        (temporary / POLICY).write_bytes(seal(content))
        report = parity(policy, computed, POLICIES[layout].load(temporary), sampler, options)
        problem = disparity(report["largest_error"], options.precision, report.get("rounding", 0.0))
        _refuse(source, [problem] if problem else [])
        (temporary / PARITY).write_bytes(encode_document(report))
        publish(temporary, directory)
    return report


def _refuse(source: str, problems: list[str]) -> None:
    if problems:
        raise ConfigError(source, problems)


def _problems(policy: DiffusionPolicy, sampler: SamplerConfig, options: GraphOptions) -> list[str]:
    problems = list(_frame_problems(policy.spec.fits, options.frames))
    if options.precision == "fp16":
        problems.extend(_overflowing(policy))
    if policy.shown is not None:
        problems.append("it diffuses observations with its actions (task inpainting_policy); only policies whose "
                        "observations are conditions can be exported")  # fmt: skip
    if isinstance(sampler, DDPM) and policy.process.output_factor == 2:
        problems.append("sampler 'ddpm' scales its noise by the learned variance, which is no number; use 'ddim'")
    return problems


def _frame_problems(fits: Mapping[str, Fit], frames: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    cameras = sorted(fits)
    if unknown := sorted(set(frames) - set(cameras)):
        has = f"the cameras whose frames it resizes are {cameras}" if cameras else "the policy reads no camera"
        yield f"--frames names {', '.join(unknown)}; {has}; leave --frames out for others"
    for key, fit in fits.items():
        if fit.changes_all and key not in frames:
            change = f"sees region {list(fit.region)} of its frames" if fit.region else "sees turned frames"
            yield (
                f"{key!r} {change}, which the graph must make; give the size of the robot's whole frames, such as "
                f"--frames {key}=480x640 (in a folder for LeRobot: --inside checkpoint)"
            )
        elif key in frames:
            try:
                fit.box(*frames[key])
            except ValueError as error:
                yield f"--frames {key}: {error}"


def _overflowing(policy: DiffusionPolicy) -> list[str]:
    """The weights that half precision cannot hold."""
    limit = torch.finfo(torch.float16).max
    problems = []
    for part in ("encoder", "backbone"):
        for name, weight in policy.get_submodule(part).named_parameters():
            largest = float(weight.abs().max()) if weight.numel() else 0.0
            if largest > limit:
                problems.append(
                    f"{part}.{name} holds {largest:.3g}, and fp16 at most {limit:.0f}; use --precision fp32"
                )
    return problems


def _computed(policy: DiffusionPolicy, precision: Precision) -> DiffusionPolicy:
    """The policy in the precision that the graphs compute in."""
    if precision == "fp32":
        return policy
    policy = copy.deepcopy(policy)
    policy.cast_weights(torch.float16)
    return policy


def document(
    policy: DiffusionPolicy, sampler: SamplerConfig, options: GraphOptions = DEFAULT_OPTIONS
) -> dict[str, Any]:
    """The content of `policy.json`: shapes, units, and the sampler's steps from noise and from a previous sample."""
    spec, buffers = policy.spec, dict(policy.normalizer.named_buffers())
    offset, scale, divisor = (buffers[f"x/{name}"].cpu().double() for name in ("offset", "scale", "divisor"))
    try:
        cold = sampling_steps(policy.process.config, sampler, renoised=False)
        warm = sampling_steps(policy.process.config, sampler, renoised=True)
    except ValueError as error:
        raise ConfigError("task.sampler", [str(error)]) from None
    transforms, reads = references(policy), policy_reads(policy).metadata()
    graphs = options.described()
    return {
        "format": FORMATS[-1 if options.unroll or options.batch else transforms is not None],
        "horizon": policy.horizon,
        "n_obs_steps": policy.n_obs_steps,
        "n_action_steps": policy.n_action_steps,
        "action_dim": spec.x_shape[-1],
        "spec": spec.model_dump(mode="json"),
        "obs": {
            key: {"shape": shape, "dtype": str(spec.dtype(key)).removeprefix("torch.")}
            for key, shape in frame_shapes(policy, options.frames).items()
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
        "sampler": sampler.model_dump(mode="json") | {"compile": "off"},  # no effect on a graph
        "cold": cold,
        "warm": warm,
        **({"graphs": graphs} if graphs else {}),
    }


def references(policy: DiffusionPolicy) -> list[str] | None:
    """Keys of the observations that actions are relative to, for a policy of arms or rotations; None for other
    policies, which need no graph for actions."""
    has_graphs = policy.record.arms or "x" in policy.spec.rotations
    return sorted(policy.transforms.references) if has_graphs else None


def _graphs(
    policy: DiffusionPolicy, layout: Format, source: str, options: GraphOptions, content: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of the graphs by name. Args: content: see `document`."""
    files = {}
    for name, graph, inputs in graph_parts(policy, options):
        try:
            files[name + POLICIES[layout].extension] = graph_file(graph, inputs, layout, options)
        except ImportError:
            raise
        except GraphError as error:
            raise ConfigError(source, [f"its {name} {error}"]) from error
        except Exception as error:  # a plug-in's part may do anything that torch's tracer refuses
            cause = str(error).strip().partition("\n")[0]
            problem = f"torch cannot export its {name}: {type(error).__name__}: {cause}"
            raise ConfigError(source, [problem]) from error
    if not options.unroll:
        return files
    try:
        return unrolled_files(files, content)
    except ValueError as error:
        raise ConfigError(source, [f"{error}; export it without --unroll"]) from error


def graph_parts(policy: DiffusionPolicy, options: GraphOptions) -> list[tuple[str, nn.Module, tuple[Any, ...]]]:
    """The graphs of an export, each with its name and example inputs."""
    rows = options.batch or 3  # torch takes sizes 0 and 1 for constants
    obs = observations(policy, 0, rows, options.frames)
    encoder, denoiser = EncoderGraph(policy, options.frames), DenoiserGraph(policy)
    with torch.no_grad():
        tokens = encoder(obs)
    x_t, t = torch.zeros(rows, *policy.x_shape), torch.arange(rows) % policy.process.steps
    # a separate tensor: torch.export merges inputs that are the same object
    estimate = (torch.zeros_like(x_t),) if policy.process.input_factor == 2 else ()
    parts = [("encoder", encoder, (obs,)), ("denoiser", denoiser, (x_t, t, tokens, *estimate))]
    if references(policy) is not None or options.unroll:
        keys = sorted(policy.transforms.references)
        relative_to = ({key: obs[key] for key in keys},) if keys else ()
        parts.append(("actions", ActionsGraph(policy), (x_t, *relative_to)))
        parts.append(("inside", InsideGraph(policy), (torch.zeros(rows, *policy.spec.x_shape), *relative_to)))
    return parts
