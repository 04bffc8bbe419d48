"""The configuration of a run that goes on from a policy, with actions of an expert or of a person beside the first
data."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.data.errors import ChangedError, DataError, first_few
from dp_prior.data.formats.choice import named
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.recorded.records import RecordedConfig, WindowsConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.places.reference import is_downloaded, resolve
from dp_prior.run.changes import OtherRunError
from dp_prior.run.config import TrainConfig
from dp_prior.run.stored import COPY, check_origin
from dp_prior.tracking import TrackerConfig
from dp_prior_foreign.recognition import record_at
from dp_prior_lab.trained_configuration import stored_config
from dp_prior_studio.inspection.faults import marks_corrections

FIRST_SET = "demonstrations"
"""Name of the first data set, if there was no other."""

_UNRECORDED = ("embeddings", "depth", "points")


def trained_config(run: str) -> tuple[Path, TrainConfig]:
    """The checkpoint that a reference names, and the configuration of its training.

    Raises:
        ConfigError: the checkpoint holds no configuration, or a downloaded one names files or machines, see
            `check_origin`.
        FileNotFoundError, CheckpointError, RemoteError: there is no checkpoint, see `resolve`.
    """
    policy = resolve(run)
    config = stored_config(policy)
    if config is None:
        raise ConfigError(
            run, ["holds no configuration of a training that could go on; name a run of `dp-prior train`"]
        )
    if is_downloaded(run):
        parts = {name: getattr(config, name) for name in ("task", "data", "evaluate", "test")}
        check_origin(run, parts, remedy=f"To improve it, {COPY}")
        plain = TrackerConfig(data_path=config.tracker.data_path)  # nothing is logged on a machine of its choice
        config = config.model_copy(update={"tracker": plain})
    return policy, config


def observations(config: TrainConfig) -> dict[str, tuple[int, ...] | None]:
    """The contents that an expert's episodes need: the policy's vectors and texts, and the states that its pictures are
    drawn from.

    Returns:
        Shape by name of the environment's observation; None if the policy itself says it.

    Raises:
        ConfigError: the data are not recorded episodes, or have something that episodes of an expert lack.
    """
    sets, problems = _recorded_sets(config), []
    for name, record in sets.items():
        unrecorded = [f"images.{key}" for key, camera in record.images.items() if camera.render is None]
        for field in _UNRECORDED:
            unrecorded += [f"{field}.{key}" for key in getattr(record, field)]
        has = "an expert's episodes have vectors (obs), texts (language), and pictures drawn from states (render)"
        problems += [f"{name} has {', '.join(unrecorded)}; {has}"] if unrecorded else []
    _refuse([*problems, *_unmixable(config)])
    first = next(iter(sets.values()))
    from_data = dict.fromkeys([*first.obs, *first.language])
    return from_data | {camera.key: camera.render.state_shape for camera in first.images.values()}


def _recorded_sets(config: TrainConfig) -> dict[str, TrajectoriesConfig]:
    """The recorded data sets of a run by name; raises ConfigError for a run on other data."""
    if sets := config.data.recorded_sets():
        return sets
    finding = f"is {config.data.type!r}, which holds no recorded episodes that others could be added to"
    raise ConfigError("data.type", [f"{finding}; name the run of a policy"])


def _unmixable(config: TrainConfig) -> list[str]:
    """Faults that keep the data of a run from being joined with others."""
    if getattr(config.data, "previous_action", None) is None:
        return []
    return ["previous_action is given; a mixture with further episodes does not have it"]


def _refuse(problems: Sequence[str]) -> None:
    """Raises ConfigError with all problems of the data of a run, if there are any."""
    if problems:
        raise ConfigError("data", [f"{problem}; train without it to use `dp-prior improve`" for problem in problems])


def expert_set(config: TrainConfig, episodes: Path) -> dict[str, Any]:
    """A folder of an expert's episodes, see `correct`, as a data set like the first of a run.

    Args:
        config: of the first run.
    """
    first = _first_set(config)
    texts = first["language"]
    return {
        "episodes": {"type": "episode_files", "path": str(episodes)},
        "obs": {
            name: {"key": f"obs.{name}", "rotations": settings["rotations"]} for name, settings in first["obs"].items()
        },
        "images": {name: {**settings, "key": f"obs.{settings['key']}"} for name, settings in first["images"].items()},
        "language": {
            name: {**_drawn_alike(settings), "key": f"obs.{name}", "texts": None} for name, settings in texts.items()
        },
        "action": {"key": "action", "rotations": first["action"]["rotations"]},
        "mirror": first["mirror"],
    }


def rollout_set(config: TrainConfig, place: str) -> dict[str, Any]:
    """The steps of recorded rollouts at which a person acted, as a data set like the first of a run.

    A key marks these steps, see `marks_corrections`; without such a key, a person acted at every step.

    Args:
        config: of the first run.
        place: of the rollouts, see `record_at`.

    Raises:
        ConfigError: the first data are no recorded episodes, or have something that the set could not have.
        DataError, UnreadableError: there are no such rollouts, or a person acted at no step.
    """
    embedded = [
        f"{name} has embeddings of its own steps"
        for name, record in _recorded_sets(config).items()
        if record.embeddings
    ]
    _refuse([*embedded, *_unmixable(config)])
    record, first = record_at(place), _first_set(config)
    weights = _of_persons(record.local({}, []).create(), place)
    texts = {name: _drawn_alike(record) for name, record in first["language"].items()}
    replaced = ("choice", "fps", "action_names")
    retained = {key: value for key, value in first.items() if key not in replaced}
    return {**retained, "episodes": json.loads(record.model_dump_json()), "language": texts, "weights": weights}


def _of_persons(store: EpisodeStore, place: str) -> dict[str, Any] | None:
    """Weights that leave out the steps at which no person acted; None for rollouts without such steps.

    Raises:
        DataError: a person acted at no step, or a mark is neither true nor false.
    """
    if not (marks := sorted(filter(marks_corrections, store.keys()))):
        return None
    if len(marks) > 1:
        raise DataError(place, [f"has {' and '.join(marks)}; expected one key that marks what a person did"])
    values = np.unique(store.read(marks[0]))
    # a text and NaN would count as true, whatever they mean
    if wrong := [value for value in values.tolist() if isinstance(value, (str, bytes)) or not math.isfinite(value)]:
        finding = (
            f"{marks[0]!r} holds {first_few([*map(repr, wrong)])}; expected true or false, or 1 or 0, at every step"
        )
        raise DataError(place, [f"{finding}; correct it, or rename it if it marks something else"])
    if not values.any():
        remedy = "record with corrections, or name rollouts without this key if a person acted at every step"
        raise DataError(place, [f"{marks[0]!r} is true at no step, so there is nothing to learn; {remedy}"])
    unweighted = {named(value): 0 for value in values if not value}
    return {"key": marks[0], "values": unweighted, "mask": True} if unweighted else None


def _drawn_alike(text: dict[str, Any]) -> dict[str, Any]:
    """JSON of an instruction, without weights."""
    return {**text, "weights": None, "success_of": "rollout"}


def _first_set(config: TrainConfig) -> dict[str, Any]:
    """JSON of the data set of a run, or of the first of a mixture."""
    data = config.to_document()["data"]
    return next(iter(data["sets"].values())) if "sets" in data else _as_set(data)


def _as_set(data: dict[str, Any]) -> dict[str, Any]:
    """The part of the JSON of `data` that a set of a mixture has."""
    return {key: value for key, value in data.items() if key in RecordedConfig.model_fields}


def _weighted(sets: dict[str, Any], config: TrainConfig, overrides: Iterable[str]) -> dict[str, Any]:
    """The sets of a mixture with weights; those that had none share 1 in proportion to their samples.

    Args:
        overrides: changes of the new run, which say where sets lie that were moved.
    """
    if all(settings["weight"] is not None for settings in sets.values()):
        return sets
    prefixes = tuple(f"data.sets.{name}." for name in sets)
    set_overrides = [override for override in overrides if override.startswith(prefixes)]
    now = TrainConfig.from_json(config.to_json(), set_overrides)
    sizes = {name: len(settings.train) for name, settings in now.open_data().sets.items()}
    return {name: {**settings, "weight": sizes[name] / sum(sizes.values())} for name, settings in sets.items()}


def improved_config(
    config: TrainConfig,
    policy: Path,
    added: Sequence[dict[str, Any]],
    *,
    weight: float,
    samples: int,
    directory: Path,
    overrides: Sequence[str] = (),
) -> TrainConfig:
    """The configuration of a run that begins with the weights and the normalizer of `policy`.

    Savers are left out, since they would replace what the first run has sent; evaluators measure the first data.

    Args:
        config: of the first run.
        added: data sets with an expert's or a person's actions, see `expert_set` and `rollout_set`.
        weight: of each of these sets; the first data have 1, or the weights of their sets if they are given.
        directory: of the new run.
        overrides: changes of the result.

    Raises:
        ConfigError: the result is no valid configuration.
    """
    document = config.to_document()
    data, train, tracker = document["data"], document["train"], document["tracker"]
    is_single = "sets" not in data
    sets = {FIRST_SET: {"weight": 1.0, **_as_set(data)}} if is_single else _weighted(data["sets"], config, overrides)
    whole = {"weight": weight, "split": {"train": 1.0, "val": 0.0, "test": 0.0}}
    free = (name for number in itertools.count(1) if (name := f"corrections_{number}") not in sets)
    further = {name: {**settings, **whole} for name, settings in zip(free, added, strict=False)}
    shared = {key: data[key] for key in WindowsConfig.model_fields}
    document["data"] = {"type": "mixture", **shared, "sets": sets | further}
    train |= {"samples": samples, "epochs": None, "steps": None, "init_from": str(policy)}
    tracker |= {"data_path": str(directory), "save": [], "load": {"type": "local"}, "run_id": None, "run_name": None}
    for evaluator in (*document["evaluate"], *document["test"]):
        if is_single and evaluator.get("data_set", FIRST_SET) is None:
            evaluator["data_set"] = FIRST_SET
    document["description"] = f"Made by `dp-prior improve` from {policy}."
    made = TrainConfig.from_json(json.dumps(document), overrides, source=f"the run {directory}")
    if (made.tracker.data_path, made.train.init_from, made.train.samples) != (str(directory), str(policy), samples):
        fixed = "tracker.data_path, train.init_from and train.samples are those of a round"
        raise ConfigError("--set", [f"{fixed}; say --out, RUN and --samples instead"])
    return made


@contextlib.contextmanager
def telling(remedy: str) -> Iterator[None]:
    """Let the error of a stopped training whose data or settings have changed say what to do; the command has no option
    to allow a change."""
    try:
        yield
    except (OtherRunError, ChangedError) as error:
        raise type(error)(error.source, error.problems, advice=f"undo the change, or {remedy}") from None
