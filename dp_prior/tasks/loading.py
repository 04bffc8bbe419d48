"""Loads a model from its files, wherever they lie: finds them, builds what they describe, takes their weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dp_prior.checkpoints.errors import GoneError
from dp_prior.checkpoints.format import TRAINING, read_checkpoint, read_manifest
from dp_prior.config import ORIGINS, Config, an, changed_code, kinds_in, record_for, unknown_type
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import expanded
from dp_prior.places.errors import RemoteError
from dp_prior.places.reference import resolve
from dp_prior.tasks.bounded import UnbuildableError, build_bounded
from dp_prior.tasks.weights import load_weights, weights_file
from dp_prior.tensors.batch import Spec

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)


def check_placement(device: torch.device | str, dtype: torch.dtype | None) -> None:
    """Refuse a place for the weights before anything is read.

    Raises:
        ValueError: the device cannot be used, or no weights have that dtype.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype is {dtype!r}; expected a floating-point torch.dtype such as torch.bfloat16")
    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("it has shapes alone, and no numbers")
    except (AssertionError, ImportError, RuntimeError) as error:  # for example a torch built without CUDA
        raise ValueError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from None


def load_model(
    model_class: type[Model], asked: str, weights: str | None, revision: str | None, hub: Mapping[str, Any]
) -> Model:
    """Load a model of a class; see `Pretrained.from_pretrained`, which places it.

    Args:
        asked: path or reference, as the user wrote it.
        hub: arguments for the Hub's client.
    """
    reference = _hub_or_path(asked, revision)
    gone: Path | None = None
    while True:
        try:
            directory = resolve(reference, whole=weights is not None, **hub)
        except RemoteError as error:
            if "://" in asked:
                raise
            raise RemoteError(f"there is no directory {asked}, and the Hub failed: {error}") from None
        try:
            return _read_model(model_class, directory, weights)
        except (FileNotFoundError, GoneError):
            if directory.is_dir() or directory == gone:
                raise
            gone = directory  # a training in progress has replaced this checkpoint


def _read_model(model_class: type[Model], directory: Path, weights: str | None) -> Model:
    """The model of a directory, see `from_pretrained`."""
    files = read_checkpoint(directory, ["config.json", "spec.json"])
    config = files.documents["config.json"]
    if not isinstance(config, dict) or not isinstance(config.get("task"), dict):
        raise ValueError(f"{directory / 'config.json'} has no key 'task', so it does not describe a model")
    source = f"{directory / 'config.json'}, task"
    task = {ORIGINS: config.get(ORIGINS, {}), **config["task"]}
    record_type = _record_type(task, model_class, directory)
    name, tensors = _read_weights(directory, weights, _averages(directory, config))
    problem = f"{directory / name} does not fit its config.json"
    hint = f"Were files of two runs mixed?{changed_code(config.get(ORIGINS))}"

    def create() -> Model:
        record = record_type.from_json(json.dumps(task), source=source)
        shapes = Spec.from_json(json.dumps(files.documents["spec.json"]), source=str(directory / "spec.json"))
        return record.create(shapes)

    try:
        model = build_bounded(create, tensors.values())
    except UnbuildableError as error:
        raise ValueError(f"{problem}: {error}. {hint}") from error
    load_weights(model, tensors, problem, hint)
    return model


def _hub_or_path(name: str, revision: str | None) -> str:
    """An existing path wins; otherwise `user/name` is a Hub repository."""
    if "://" not in name and not expanded(name).exists():
        from dp_prior.files.hub_files import HubRepository

        repository = HubRepository.parse(name)
        if repository is not None and not expanded(repository.name).exists():
            if Path(repository.name).parent.is_dir():
                if advice := misplaced(expanded(repository.name), "checkpoint"):
                    raise FileNotFoundError(f"there is no directory {name}{advice} Of the Hub write hf://{name}")
                log.warning(
                    "there is no directory %s; asking the Hub, which takes half a minute without a network", name
                )
            name = f"hf://{name}"
    if revision is None:
        return name
    if not name.startswith("hf://") or "@" in name:
        raise ValueError(f"revision {revision!r} needs a Hub repository, user/name; found {name!r}")
    return f"{name}@{revision}"


def _record_type(task: dict[str, Any], model_class: Any, directory: Path) -> type[Config]:
    """The record type of a task.

    Raises:
        ValueError: it is unknown or of another kind than the models of the class.
    """
    tasks, kind = model_class.tasks, model_class.task
    expected = kind or "policy"
    stored_type = task.get("type", expected)
    record = record_for(tasks, {"type": stored_type})
    if record is None:
        origins = task[ORIGINS] if isinstance(task[ORIGINS], dict) else {}
        kinds = ", ".join(kinds_in(tasks))
        advice = unknown_type(stored_type, origins) or f"this version knows {kinds}; perhaps a newer one wrote it"
        raise ValueError(f"{directory / 'config.json'}: task.type is {stored_type!r}. {advice}")
    if kind is not None and not issubclass(record, record_for(tasks, {"type": kind})):
        loader = "policy" if issubclass(record, record_for(tasks, {"type": "policy"})) else record.kind
        advice = f"load_{loader} loads it, and dp-prior sample draws from it"
        raise ValueError(f"{directory} holds {an(stored_type)}, not {an(expected)}; {advice}")
    return record


def _averages(directory: Path, config: dict[str, Any]) -> list[str]:
    """The names of a run's averages. Raises ValueError if `train.ema` is malformed."""
    train = config.get("train", {})
    averages = train.get("ema", {}) if isinstance(train, dict) else None
    if not isinstance(averages, dict):
        raise ValueError(f"{directory / 'config.json'}: train.ema is {averages!r:.80}; expected averages by name")
    return list(averages)


def _read_weights(directory: Path, name: str | None, averages: list[str]) -> tuple[str, dict[str, Tensor]]:
    """The file of some weights of a checkpoint, and its tensors; at once, since a running training may prune it.

    Raises:
        ValueError: it has no weights of that name.
    """
    is_whole = name == "online" and TRAINING in read_manifest(directory).files
    if name is not None and name not in averages and not is_whole:
        choices = ", ".join(map(repr, averages)) or "one set without a name"
        raise ValueError(f"{directory} has no weights {name!r}; the run had {choices}")
    if is_whole and averages:
        tensors = read_checkpoint(directory, [TRAINING]).tensors[TRAINING]
        online = {key.removeprefix("online."): tensor for key, tensor in tensors.items() if key.startswith("online.")}
        return TRAINING, online
    file = "model.safetensors" if name in (None, "online") else weights_file(name, averages)
    return file, read_checkpoint(directory, [file]).tensors[file]
