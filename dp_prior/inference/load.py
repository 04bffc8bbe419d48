"""From a checkpoint or export to a policy that is ready to act, or a prior that is ready to predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dp_prior.batch import Spec
from dp_prior.checkpoints.fetch import resolve
from dp_prior.checkpoints.format import read_checkpoint

if TYPE_CHECKING:
    from dp_prior.tasks.model import DiffusionModel
    from dp_prior.tasks.policy import DiffusionPolicy
    from dp_prior.tasks.prior import DiffusionPrior


def load_policy(
    reference: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> DiffusionPolicy:
    """Load a policy in evaluation mode.

    Nothing in a checkpoint is executed: it is JSON, checked by the same records as a configuration file, and plain
    tensors, whose hashes are compared. The caller's random state is left as it was.

    Args:
        reference: path of a checkpoint, an export or a run; of a run the best checkpoint is taken, unless it ends in
            `@latest` or `@step_00012000`.
        dtype: of the network's weights, for example torch.bfloat16; None keeps float32. The normalizer, the noise
            levels and the sampler stay float32, and so do observations and actions.

    Raises:
        FileNotFoundError: the directory, or config.json, spec.json or model.safetensors in it, is missing.
        CheckpointError: there is no usable checkpoint, or a file is not what the manifest says.
        ConfigError: the configuration or the shapes are not ones of a policy.
        ValueError: the weights do not fit the configuration.
    """
    return _load(reference, "policy", device, dtype)


def load_prior(
    reference: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> DiffusionPrior:
    """Load a prior in evaluation mode; `predict` then gives image embeddings. Otherwise like `load_policy`."""
    return _load(reference, "prior", device, dtype)


def _load(reference: str | Path, kind: str, device: torch.device | str, dtype: torch.dtype | None) -> DiffusionModel:
    directory = resolve(reference)
    files = read_checkpoint(directory, ["config.json", "spec.json", "model.safetensors"])
    config = files.documents["config.json"]
    if not isinstance(config, dict) or not isinstance(config.get("task"), dict):
        raise ValueError(f"{directory / 'config.json'} has no key 'task', so it does not describe a model")
    found = config["task"].get("type", "policy")
    if found != kind and found in ("policy", "prior"):
        raise ValueError(f"{directory} holds a {found}, not a {kind}; load it with load_{found}")
    model = _create(config["task"], kind, files.documents["spec.json"], directory)
    _load_weights(model, files.tensors["model.safetensors"], directory / "model.safetensors")
    model.requires_grad_(False).eval().to(device)
    if dtype is not None and dtype != torch.float32:
        for parameter in [*model.encoder.parameters(), *model.backbone.parameters()]:
            parameter.data = parameter.data.to(dtype)  # not `.to`: buffers such as frequencies keep their precision
    return model


def _create(task: dict[str, Any], kind: str, spec: Any, directory: Path) -> DiffusionModel:
    """The model as configured, with weights still to be loaded."""
    from dp_prior.tasks import TASKS  # the networks: a second that `import dp_prior` need not take

    config = TASKS[kind].from_json(json.dumps(task), source=f"{directory / 'config.json'}, task")
    shapes = Spec.from_json(json.dumps(spec), source=str(directory / "spec.json"))
    with torch.random.fork_rng(devices=[]):
        return config.create(shapes)


def _load_weights(policy: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Strictly: every tensor is there, has its shape, and nothing is left over."""
    expected = policy.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is unknown" for name in tensors if name not in expected]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if problems:
        listed = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise ValueError(f"{path} does not fit its config.json: {listed}. Were files of two runs mixed?")
    policy.load_state_dict(tensors)
