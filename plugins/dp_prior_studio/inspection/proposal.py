"""A configuration that trains on a data set: where own data begin."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dp_prior.config import Config, ConfigError
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.embeddings.parts import EmbeddingSplitConfig
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import overlaps, ranges
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.data.recorded.records import WindowsConfig
from dp_prior.data.recorded.selection import ACTION
from dp_prior.data.recorded.split import USUAL_PARTS, SplitConfig
from dp_prior.evaluation.open_loop import import_film_packages
from dp_prior.run.config import TrainConfig
from dp_prior_studio.inspection.depth import Distances
from dp_prior_studio.inspection.image_survey import Gallery
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.run_names import run_directory
from dp_prior_studio.inspection.simulation import simulated
from dp_prior_studio.inspection.survey import Survey

PICTURE = 96
"""Pixels of the shorter side of a frame as the network sees it."""

LARGEST_IMAGE, LEVELS = 64, 4
"""Pixels of the shorter side of an image that is modelled, and what divides both: the network halves them twice."""

OBS_STEPS = 2
"""`n_obs_steps` that is proposed."""

HORIZON, ACTIONS = 16, 8
"""`horizon` and `n_action_steps` that are proposed at the usual rate."""

EPOCHS, MOST_SAMPLES = 500, 1_000_000
"""Times that a proposed run sees each of its samples, and samples that it sees at most; `--check` warns from twice as
many epochs on."""

USUAL_BATCH = WindowsConfig.model_fields["batch_size"].default

USUAL_RATE = 10.0
"""Control steps per second at which a horizon of 16 is usual."""

CAMERA_BATCH = 64
"""Samples of a batch with cameras, whose encoder takes most of a step."""

_KIND_OF_CAMERA = re.compile(r"depth|images?|rgb|colou?r|[_-]", re.I)

_SMALL_CAMERA = {"type": "resnet", "width": 32, "blocks": [1, 1, 1], "stem": "patch"}


def propose_data(inspection: Inspection, episodes: dict[str, Any]) -> dict[str, Any]:
    """`data` of a configuration: every observation, the action, the cameras, depths and clouds that can be read, and
    the parts of the authors.

    Args:
        episodes: `data.episodes`.
    """
    survey = inspection.survey
    observations = [signal.key for signal in survey.of("observation")]
    cameras = {strip.camera: strip.size for strip in inspection.strips if strip.camera in survey.cameras}
    measured = [entry for entry in inspection.depths if entry.range is not None]
    clouds = [entry.key for entry in inspection.clouds]
    turn = {"turn": inspection.turn} if inspection.turn else {}
    names = _names([*observations, *cameras, *(entry.key for entry in measured), *clouds])
    data: dict[str, Any] = {"episodes": episodes}
    if inspection.leave_out:
        data["choice"] = {"leave_out": ranges(inspection.leave_out)}
    if observations:
        chosen = {key: {"names": inspection.passed[key]} if key in inspection.passed else {} for key in observations}
        data["obs"] = {names[key]: {"key": key, **chosen[key]} for key in observations}
    if cameras:
        data["images"] = {names[key]: {"key": key, "size": _reduced(size), **turn} for key, size in cameras.items()}
    if measured:
        camera_names = [names[key] for key in cameras]
        data["depth"] = {names[entry.key]: _depth(entry, names[entry.key], camera_names) | turn for entry in measured}
    if clouds:
        data["points"] = {names[key]: {"key": key} for key in clouds}
    for signal in survey.of("action"):
        data["action"] = {"key": signal.key}
    if (parts := _parts_of(survey)) is not None:
        data["split"] = {"parts": {part: list(names) for part, names in parts.items()}}
    windows, trained = windows_of(inspection, ACTIONS * _steps(survey.fps))
    largest = CAMERA_BATCH if cameras or measured else USUAL_BATCH
    return data | _batch(largest, min(windows // 2, trained))


def windows_of(inspection: Inspection, n_action_steps: int) -> tuple[int, int]:
    """Windows of all used episodes, and of the training part."""
    survey = inspection.survey
    used = np.flatnonzero(~np.isin(survey.chosen.names, inspection.leave_out))
    chosen = Chosen(survey.chosen.recorded, used, survey.chosen.names)
    windows = np.maximum(np.diff(chosen.recorded, prepend=0) + 1 - n_action_steps, 1)
    split = SplitConfig(parts=_parts_of(survey)).of(survey.store, chosen)
    return int(windows[chosen.numbers].sum()), int(windows[split.train].sum())


def _depth(distances: Distances, name: str, cameras: Collection[str]) -> dict[str, Any]:
    """Propose a `data.depth` entry, paired with the camera of the same name without its depth or colour suffix."""
    near, far = (round(end, 2) for end in distances.range)
    entry = {"key": distances.key, "size": _reduced(distances.size), "near": near, "far": max(far, near + 0.1)}
    plain = {camera: _KIND_OF_CAMERA.sub("", camera) for camera in cameras}
    same_name = [camera for camera, short in plain.items() if short == _KIND_OF_CAMERA.sub("", name)]
    return entry | ({"camera": same_name[0]} if len(same_name) == 1 else {})


def _parts_of(survey: Survey) -> dict[str, tuple[str]] | None:
    """`split.parts` by the data set's own training and validation parts; None without both, or if they overlap."""
    stored_parts = {name: places for name, places in survey.store.parts().items() if places}
    name_of: dict[str, str | None] = {}
    for part, names in USUAL_PARTS.items():
        name_of[part] = next((name for name in names if name in stored_parts), None)
    places_of = {part: stored_parts[name] for part, name in name_of.items() if name is not None}
    if not {"train", "val"} <= places_of.keys() or list(overlaps(places_of, survey.chosen.names)):
        return None
    return {part: (name_of[part],) for part in places_of}


def propose_image_data(gallery: Gallery, data: dict[str, Any]) -> dict[str, Any]:
    """`data` of a configuration of images, with settings that follow from the images: `channels` 1 if all are grey, and
    `size` if sizes differ, do not halve through a network of three levels, or exceed sensible first settings."""
    (height, width), count = Counter(map(tuple, gallery.sizes.tolist())).most_common(1)[0]
    scale = min(1.0, LARGEST_IMAGE / min(height, width))
    size = [max(2 * LEVELS, round(side * scale / LEVELS) * LEVELS) for side in (height, width)]
    if count < len(gallery.sizes) or size != [height, width]:
        data = data | {"size": size}
    return data | {"channels": 1} if gallery.is_grey.all() else data


def proposed(inspections: list[Inspection]) -> dict[str, Any]:
    """A configuration that trains on the data set.

    Raises:
        ConfigError: there are several data sets, no action or observation among the keys, or embeddings of one kind.
        DataError: it cannot be trained on.
    """
    if len(inspections) > 1:
        raise ConfigError("--write-config", ["takes one data set; this is a configuration of several already"])
    inspection = inspections[0]
    if errors := inspection.refusals():
        advice = "training would refuse this, so no configuration is written: repair the data, or write one by hand"
        raise DataError(inspection.name, errors, advice)
    if len(inspection.rows) == 1:
        remedy = "name both in data.image and data.text, or name these in data.language or data.embeddings of a policy"
        raise ConfigError(
            inspection.name, [f"embeddings without their pair; a prior learns images from texts: {remedy}"]
        )
    if inspection.rows:
        return _of_embeddings(inspection)
    return _of_images(inspection) if inspection.galleries else _of_episodes(inspection)


def propose(name: str, data: dict[str, Any], fps: float | None = None) -> dict[str, Any]:
    """A configuration around `data` of episodes that were not looked at.

    Args:
        fps: control steps per second; None if unknown.

    Raises:
        ConfigError: `data` name no action or no observation, so nothing can be trained.
    """
    _check_named(name, data, "")
    return _configuration(name, data, _for_episodes(data, _policy(data, fps, {}), MOST_SAMPLES))


@dataclass
class _Usual:
    """Usual settings for a kind of data.

    Attributes:
        samples: of a run.
        share: how often a run is evaluated.
        metric: that selects the best weights; empty for the loss.
        evaluator: beside the loss; empty for none.
        tests: evaluators of the best weights.
    """

    task: dict[str, Any]
    samples: int
    share: int
    optimizer: str = "adamw"
    peak: float = 1e-3
    metric: str = ""
    evaluator: dict[str, Any] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)


def _of_episodes(inspection: Inspection) -> dict[str, Any]:
    """The proposal for recorded episodes; of a single episode nothing is held out."""
    survey, clouds = inspection.survey, {cloud.key: cloud for cloud in inspection.clouds}
    encoders = {name: clouds[entry["key"]].encoder() for name, entry in inspection.data.get("points", {}).items()}
    task = _policy(inspection.data, survey.fps, encoders)
    _, trained = windows_of(inspection, task["n_action_steps"])
    _check_named(inspection.name, inspection.data, survey.action_hint)
    usual = _for_episodes(inspection.data, task, _samples(trained))
    usual.tests = simulated(survey, inspection.data)
    return _configuration(
        inspection.name, inspection.data, usual, holds_out=survey.count - len(inspection.leave_out) > 1
    )


def _for_episodes(data: dict[str, Any], task: dict[str, Any], samples: int) -> _Usual:
    film = {"filmed": 1} if "images" in data and can_film() else {}
    error = {"type": "action_error", "every": _every(samples, 10), "eval_timesteps": [8], **film}
    metric = "action_error/ema/lower_quartile[steps=8]"  # docs/study.md
    return _Usual(task, samples, 10, "muon", 5e-3, metric, error)  # docs/training.md


def _of_embeddings(inspection: Inspection) -> dict[str, Any]:
    count = inspection.rows[0].folder.count
    usual = _Usual(_prior(), _samples(count - _held_out(count)), share=50)
    return _of_rows(inspection, EmbeddingsConfig, count, usual)


def _of_images(inspection: Inspection) -> dict[str, Any]:
    images = inspection.galleries[0].source
    count = len(images)
    height, _ = inspection.data.get("size") or images.size
    usual = _Usual(_image(height, "labels" in inspection.data), _samples(count - _held_out(count)), share=20)
    if count > 1:
        usual.evaluator = {"type": "images", "every": _every(usual.samples, 4), "n_samples": 64, "eval_timesteps": [50]}
    return _of_rows(inspection, ImagesConfig, count, usual)


def _of_rows(inspection: Inspection, record: type[Config], count: int, usual: _Usual) -> dict[str, Any]:
    """Images or rows of embeddings, of which none are held out where fewer than two would be."""
    holds_out = _held_out(count) > 1
    split = {} if holds_out else {"split": {"train": 1.0, "val": 0.0}}
    data = _batch(record.model_fields["batch_size"].default, count // 2) | inspection.data | split
    return _configuration(inspection.name, data, usual, holds_out)


def _configuration(name: str, data: dict[str, Any], usual: _Usual, holds_out: bool = True) -> dict[str, Any]:
    """Args: holds_out: whether samples are held out; otherwise evaluators measure the training samples."""
    part, naming = ({}, {}) if holds_out else ({"split": "train"}, {"name": "training"})
    samples = usual.samples
    batch = data.get("global_batch_size", USUAL_BATCH)
    proposal = {
        "description": f"First settings for {name}, by dp-prior inspect.",
        "task": usual.task,
        "data": data,
        "train": {
            "samples": samples,
            "optimizer": {"type": usual.optimizer},
            "lr": {"type": "cosine", "peak": usual.peak, "warmup_steps": min(200, samples // batch // 10)},
            "monitor": {"metric": usual.metric or f"{naming.get('name', 'validation')}/ema/loss"},
            "save_every": _every(samples, 10),
        },
        "evaluate": [{"type": "loss", **naming, "every": _every(samples, usual.share), **part}],
        "tracker": {"data_path": run_directory(name, data)},
    }
    if usual.evaluator:
        proposal["evaluate"].append(usual.evaluator | part)
    if usual.tests:
        proposal["test"] = usual.tests
    TrainConfig.from_json(json.dumps(proposal), source=name)
    return proposal


def _check_named(name: str, data: dict[str, Any], hint: str) -> None:
    """Raises ConfigError if `data` of episodes name no action, or no observation."""
    missing = [] if "action" in data else ["action"]
    missing += [] if {"obs", "images", "depth", "points"} & data.keys() else ["obs"]
    if missing:
        problem = f"no key looks like {' or '.join(missing)}; name it in data.{missing[0]} (docs/data.md)"
        raise ConfigError(name, [f"{problem}; {hint}" if hint and "action" in missing else problem])


def _every(samples: int, share: int) -> dict[str, int]:
    """A cadence that is due `share` times in a run."""
    return {"samples": max(1, samples // share)}


def _samples(trained: int) -> int:
    """Samples of a run, from the number of different samples; two digits."""
    return int(float(f"{min(MOST_SAMPLES, EPOCHS * trained):.2g}"))


def _held_out(n_samples: int) -> int:
    """Number of images, or of rows of embeddings, that the usual split holds out; 0 if it leaves none to train on."""
    try:
        return len(EmbeddingSplitConfig().rows(n_samples, "")["val"])
    except DataError:
        return 0


def _batch(largest: int, trained: int) -> dict[str, int]:
    """`global_batch_size`, for any number of ranks: `largest`, or a power of two that `trained` samples fill."""
    return {"global_batch_size": min(largest, 2 ** max(0, trained.bit_length() - 1))}


def _prior() -> dict[str, Any]:
    """Its `task` for embeddings."""
    backbone = {"type": "prior_transformer", "embed_dim": 256, "n_layers": 2, "n_heads": 4, "dropout": 0.2}
    return {"type": "prior", "backbone": backbone}


def _image(height: int, has_labels: bool) -> dict[str, Any]:
    """Its `task` for images, whose attention is at the lowest resolution."""
    return {
        "type": "image",
        "backbone": {
            "type": "unet2d",
            "channels": 32,
            "channel_mult": [1, 2, 4],
            "n_res_blocks": 1,
            "attention_resolutions": [height // LEVELS],
            "head_dim": 32,
            "n_groups": 8,
        },
        "diffusion": {"schedule": {"type": "cosine", "steps": 1000}, "objective": {"type": "v"}},
        "sampler": {"type": "ddim", "steps": 50},
        "label_dropout": 0.1 if has_labels else 0.0,
    }


def _policy(data: dict[str, Any], fps: float | None, encoders: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Its `task` for episodes, with a horizon of about as many seconds as is usual."""
    steps = _steps(fps)
    task = {
        "horizon": HORIZON * steps,
        "n_obs_steps": OBS_STEPS,
        "n_action_steps": ACTIONS * steps,
        "backbone": {"type": "unet1d", "down_dims": [32, 64, 128], "step_embed_dim": 64},
        "diffusion": {"objective": {"type": "v"}, "weighting": {"type": "min_snr"}},
        "sampler": {"type": "ddim", "steps": 8},
    }
    if cameras := [*data.get("images", {}), *data.get("depth", {})]:
        encoders = {**dict.fromkeys(cameras, _SMALL_CAMERA), **encoders}
        task["diffusion"]["draws"] = 4  # docs/cameras.md
    return {**task, "encoders": encoders} if encoders else task


def _steps(fps: float | None) -> int:
    """Times that horizon and actions are longer than usual."""
    return 2 ** min(2, max(0, round(math.log2((fps or USUAL_RATE) / USUAL_RATE))))


def _names(keys: list[str]) -> dict[str, str]:
    """The policy's name of each key: its last part; where two would be the same, the whole key, with a number where
    whole keys are the same too, as of keys in Japanese."""
    short = {key: _plain(re.split(r"[./]", key)[-1]) for key in keys}
    count = Counter([*short.values(), ACTION])
    taken, names = {name for name in count if count[name] == 1}, {}
    for key, name in short.items():
        whole = _plain(f"obs_{key}")
        numbered = itertools.chain([whole], (f"{whole}_{number}" for number in itertools.count(2)))
        names[key] = name if count[name] == 1 else next(candidate for candidate in numbered if candidate not in taken)
        taken.add(names[key])
    return names


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "data"


def _reduced(size: tuple[int, int]) -> list[int]:
    """Height and width at which the shorter side has at most `PICTURE` pixels."""
    scale = min(1.0, PICTURE / min(size))
    return [max(1, round(length * scale)) for length in size]


def can_film() -> bool:
    """Whether the packages that a film needs are installed."""
    try:
        import_film_packages()
    except ImportError:
        return False
    return True
