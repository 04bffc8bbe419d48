"""The state of a trainer: parts that store and load their state, and the snapshot that is the union of these."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dp_prior.checkpoints.documents import PROGRESS
from dp_prior.checkpoints.format import TRAINING
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.config import own_version
from dp_prior.job.ranks import Ranks
from dp_prior.tasks.weights import weights_file
from dp_prior.tensors.metrics import Means
from dp_prior.training.optimizer import AdamW
from dp_prior.training.replicas import Replicas

CODE_QUESTION = "Was its module changed since?"
"""Question in the error of a checkpoint whose tensors do not fit a model of unknown origin."""


class Tensors(dict[str, Tensor]):
    """The state of a part whose tensors have names."""


class Stateful(Protocol):
    """A part of a training that a resumed run continues, stored under the name of the part.

    The state is a tensor or `Tensors`, which `training.safetensors` holds as NAME and as NAME.KEY, or JSON, which
    `progress.json` holds as NAME.
    """

    def state(self) -> Tensor | Tensors | Any:
        """The state to save in a checkpoint. A collective."""

    def load(self, state: Any) -> None:
        """Continue from a `state`.

        If the checkpoint lacks this part, `state` is an empty `Tensors`: keep the initial state.
        """


def snapshot_of(
    models: Mapping[str, nn.Module],
    parts: Mapping[str, Stateful],
    progress: Mapping[str, Any],
    documents: Mapping[str, Any],
) -> Snapshot:
    """A snapshot with everything needed to resume, complete on the main rank; for inference `model.safetensors` is
    enough. All ranks call it.

    Files: `model.safetensors` holds the first average (the trained weights of a run without averages),
    `model_NAME.safetensors` each further average, `training.safetensors` the trained weights and the tensors of the
    parts, `progress.json` the rest.

    Args:
        models: the averages by name and the trained model, `online`, whole on the main rank.
        progress: JSON about the training that belongs to no part.
        documents: further JSON documents by file name.
    """
    averages = [name for name in models if name != "online"]
    names, online = averages or ["online"], models["online"].state_dict()
    tensors = {weights_file(name, names): dict(models[name].state_dict()) for name in names}
    training = {f"online.{key}": weight for key, weight in online.items()} if averages else {}
    document = {**progress, "averages": averages}
    for name, part in parts.items():
        state = part.state()
        if isinstance(state, Tensor):
            training[name] = state
        elif isinstance(state, Tensors):
            training |= {f"{name}.{key}": tensor for key, tensor in state.items()}
        else:
            document[name] = state
    return Snapshot({**tensors, TRAINING: training}, {**documents, PROGRESS: document})


def load_snapshot(
    snapshot: Snapshot, models: Mapping[str, nn.Module], replicas: Replicas, parts: Mapping[str, Stateful]
) -> None:
    """Load a snapshot into newly built parts of the same configuration.

    Averages that the snapshot does not have start at the trained weights.

    Args:
        models: the averages by name and the trained model, `online`, as this rank holds them.

    Raises:
        ValueError: tensors are missing, unknown or of another shape.
    """
    document, training = snapshot.documents[PROGRESS], snapshot.tensors[TRAINING]
    averages = [name for name in models if name != "online"]
    names = document.get("averages", averages) or ["online"]
    stored_averages = {name: snapshot.tensors[weights_file(name, names)] for name in names}
    online = stored_averages.get("online") or _under("online.", training)
    problem, hint = "the checkpoint does not fit the model", CODE_QUESTION
    for name, model in models.items():
        replicas.load(model, stored_averages.get(name, online), problem, hint)
    for name, part in parts.items():
        if name in document:
            part.load(document[name])
        else:
            part.load(training[name] if name in training else _under(f"{name}.", training))


def library_versions() -> dict[str, str]:
    """The versions that decide the last bits of training, by name."""
    return {"dp_prior": own_version(), "python": platform.python_version(), "torch": torch.__version__}


class Moments:
    """The state of an optimizer by the names of its parameters; all on the main rank."""

    def __init__(self, optimizer: AdamW, model: nn.Module):
        """Args: model: the local one, see `Replicas`."""
        self._optimizer, self._model = optimizer, model

    def state(self) -> Tensors:
        """Tensors as MOMENT.PARAMETER. With shards a collective."""
        state = self._optimizer.collected()
        tensors = Tensors()
        for name, parameter in self._parameters().items():
            for moment, tensor in state.get(parameter, {}).items():
                tensors[f"{moment}.{name}"] = tensor
        return tensors

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors, because the optimizer must own its memory.

        A parameter without stored tensors starts without state.

        Raises:
            ValueError: tensors are missing or unknown.
        """
        keys_by_parameter = {}
        for name, parameter in self._parameters().items():
            keys = {moment: f"{moment}.{name}" for moment in self._optimizer.moments(parameter)}
            if not state.keys().isdisjoint(keys.values()):
                keys_by_parameter[parameter] = keys
        expected = {key for keys in keys_by_parameter.values() for key in keys.values()}
        if state.keys() != expected:
            missing, unknown = sorted(expected - state.keys()), sorted(state.keys() - expected)
            problem = f"missing {missing[:3]}, unknown {unknown[:3]}"
            raise ValueError(f"the optimizer state does not fit the model: {problem}")
        moments_by_parameter = {}
        for parameter, keys in keys_by_parameter.items():
            keys = keys if self._optimizer.updates(parameter) else {}
            parts = {moment: self._optimizer.replicas.part(parameter, state[key]) for moment, key in keys.items()}
            moments_by_parameter[parameter] = {moment: _laid_out_as(parameter, part) for moment, part in parts.items()}
        self._optimizer.state = moments_by_parameter

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}


class CollectedMeans:
    """Running means that `Means.collect` has moved to the main rank, whose state covers all ranks."""

    def __init__(self, means: Means, ranks: Ranks):
        self._means, self._ranks = means, ranks

    def state(self) -> Tensors:
        """See `Means.state`."""
        return Tensors(self._means.state())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue the sums on the main rank; the others begin at zero, so that the sums are counted once."""
        share = float(self._ranks.is_main_process)
        self._means.load({name: pair * share for name, pair in state.items()})


class LossScale:
    """The state of the loss scaler of fp16; null without a scaler."""

    def __init__(self, scaler: torch.amp.GradScaler | None):
        self._scaler = scaler

    def state(self) -> dict[str, Any] | None:
        """See `GradScaler.state_dict`."""
        return None if self._scaler is None else self._scaler.state_dict()

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from a scale, where the checkpoint has a scale and this run a scaler."""
        if state and self._scaler is not None:
            self._scaler.load_state_dict(state)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return Tensors({key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)})


def _laid_out_as(parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """Copy to the parameter's device; with the parameter's strides if the shapes agree, because fused kernels read
    memory in order."""
    if tensor.shape != parameter.shape:
        return tensor.to(parameter.device, copy=True)
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
