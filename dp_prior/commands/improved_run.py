"""The configuration of a run that goes on from a policy, with an expert's episodes beside the first data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.data.recorded.records import RecordedConfig, WindowsConfig
from dp_prior.run_directory.config import TrainConfig

FIRST_SET = "demonstrations"
"""Name of the first data set, if there was no other."""

_UNRECORDED = ("embeddings", "depth", "points", "language")


def observations(config: TrainConfig) -> dict[str, tuple[int, ...] | None]:
    """What an expert's episodes must hold: the policy's vectors, and the states that its pictures are drawn from.

    Returns:
        Shape by name of the environment's observation; None if the policy itself says it.

    Raises:
        ConfigError: the data are not recorded episodes, or have something that episodes of an expert lack.
    """
    sets, problems = config.data.recorded_sets(), []
    if not sets:
        found = f"is {config.data.type!r}, which holds no recorded episodes that an expert's could be added to"
        raise ConfigError("data.type", [f"{found}; name the run of a policy"])
    for name, one in sets.items():
        others = [f"images.{key}" for key, camera in one.images.items() if camera.render is None]
        others += [f"{field}.{key}" for field in _UNRECORDED for key in getattr(one, field)]
        has = "an expert's episodes have vectors (obs), and pictures that are drawn from them (render)"
        problems += [f"{name} has {', '.join(others)}; {has}"] if others else []
    if getattr(config.data, "previous_action", None) is not None:
        problems.append("previous_action is given; a mixture with an expert's episodes does not have it")
    if config.data.split.parts is not None:
        problems.append("split.parts is given; an expert's episodes are divided by the fractions split.train and val")
    if problems:
        raise ConfigError("data", [f"{problem}; train without it to use `dp-prior improve`" for problem in problems])
    first = next(iter(sets.values()))
    return dict.fromkeys(first.obs) | {camera.key: camera.render.state_shape for camera in first.images.values()}


def improved_config(
    config: TrainConfig,
    policy: Path,
    episodes: Sequence[Path],
    *,
    weight: float,
    samples: int,
    directory: Path,
    overrides: Iterable[str] = (),
) -> TrainConfig:
    """The configuration of a run that begins with the weights and the normalizer of `policy`.

    Savers are left out, since they would replace what the first run has sent; evaluators measure the first data.

    Args:
        config: of the first run.
        episodes: folders of an expert's episodes, see `correct`; each becomes a set.
        weight: of each of these sets; the first data have 1, or the weights of their sets.
        directory: of the new run.
        overrides: changes of the result.

    Raises:
        ConfigError: the result is no valid configuration.
    """
    given = json.loads(config.to_json())
    data, train, tracker = given["data"], given["train"], given["tracker"]
    is_single = "sets" not in data
    alone = {key: value for key, value in data.items() if key in RecordedConfig.model_fields}
    sets = {FIRST_SET: {"weight": 1.0, **alone}} if is_single else data["sets"]
    first = next(iter(sets.values()))
    like_first = {
        "weight": weight,
        "obs": {name: {"key": f"obs.{name}", "rotations": one["rotations"]} for name, one in first["obs"].items()},
        "images": {name: {**one, "key": f"obs.{one['key']}"} for name, one in first["images"].items()},
        "action": {"key": "action", "rotations": first["action"]["rotations"]},
        "mirror": first["mirror"],
    }
    free = (name for number in itertools.count(1) if (name := f"corrections_{number}") not in sets)
    added = {
        name: {"episodes": {"type": "episode_files", "path": str(path)}, **like_first}
        for name, path in zip(free, episodes, strict=False)
    }
    shared = {key: data[key] for key in WindowsConfig.model_fields}
    given["data"] = {"type": "mixture", **shared, "sets": sets | added}
    train |= {"samples": samples, "epochs": None, "steps": None, "init_from": str(policy)}
    tracker |= {"data_path": str(directory), "save": [], "load": {"type": "local"}, "run_id": None, "run_name": None}
    for evaluator in (*given["evaluate"], *given["test"]):
        if is_single and evaluator.get("data_set", FIRST_SET) is None:
            evaluator["data_set"] = FIRST_SET
    given["description"] = f"Made by `dp-prior improve` from {policy}."
    made = TrainConfig.from_json(json.dumps(given), overrides, source=f"the run {directory}")
    if (made.tracker.data_path, made.train.init_from, made.train.samples) != (str(directory), str(policy), samples):
        kept = "tracker.data_path, train.init_from and train.samples are those of a round"
        raise ConfigError("--set", [f"{kept}; say --out, RUN and --samples instead"])
    return made
