"""LeRobot's diffusion policy: `config.json`, `model.safetensors`, and since 0.4 processors with the statistics.

Before 0.4 the statistics are tensors of the model, `normalize_inputs.buffer_*` and `unnormalize_outputs.buffer_*`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config, ConfigError
from dp_prior.config.errors import short
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.foreign_model import WEIGHTS, under
from dp_prior_foreign.importers.foreign_policy import Observation, Published, unet
from dp_prior_foreign.importers.lerobot_training import training_of
from dp_prior_foreign.importers.scaling import Scaling, identity
from dp_prior_foreign.importers.scheduler import Scheduler
from dp_prior_foreign.translation.published_choices import RESNETS

THEIR_CONFIG, STATE, ENV = "config.json", "observation.state", "observation.environment_state"
EPS = 1e-8  # added to a standard deviation, and used in place of a range of 0
_NORMALIZER_BY_MODE: dict[str, tuple[Any, tuple[str, ...]]] = {  # kind of our normalizer, and the statistics required
    "MIN_MAX": ("limits", ("min", "max")),
    "QUANTILES": ("quantile", ("q01", "q99", "min", "max")),
    "MEAN_STD": ("gaussian", ("mean", "std")),
    "IDENTITY": ("identity", ()),
}
_STATISTICS_READ = ("min", "max", "mean", "std", "q01", "q99")
_PROCESSORS_WITHOUT_EFFECT = ("to_batch_processor", "device_processor")
_RENAME_PROCESSOR = "rename_observations_processor"
_KEYS_WITHOUT_EFFECT = {  # keys of any released version that do not affect actions, by the reason
    "how LeRobot ran the network": ("device", "use_amp", "compile_model", "compile_mode", "gradient_checkpointing"),
    "LeRobot's training only": ("crop_is_random", "drop_n_last_frames", "scheduler_name"),
    "where the weights began; the trained weights are read": (
        *("pretrained_backbone_weights", "pretrained_path", "pretrained_revision"),
    ),
    "where LeRobot publishes": ("push_to_hub", "repo_id", "private", "tags", "license"),
}
_WITHOUT_VALUE = (None, False, "", [], {})
_RENAMED_STATISTICS = (
    "LeRobot's training with a rename_map stores statistics by the recorded name, where its policy does not look for "
    "them; so there and here the observation enters unnormalised"
)
_UNKNOWN_WITHOUT_VALUE = "unknown here, but without a value"

Mode = Literal["MIN_MAX", "MEAN_STD", "QUANTILES", "IDENTITY"]
Pair = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
Stats = dict[str, dict[str, Tensor]]


class LeRobotFeature(Config):
    """An input or output of the policy."""

    type: Literal["STATE", "VISUAL", "ENV", "ACTION"]
    shape: tuple[int, ...]


class LeRobotDiffusionConfig(Config):
    """`config.json`, with LeRobot's keys and defaults."""

    type: Literal["diffusion"] = "diffusion"  # some versions of LeRobot do not write `type`
    n_obs_steps: int = Field(default=2, ge=1)
    horizon: int = Field(default=16, ge=1)
    n_action_steps: int = Field(default=8, ge=1)
    normalization_mapping: dict[str, Mode]
    input_features: dict[str, LeRobotFeature]
    output_features: dict[str, LeRobotFeature]
    vision_backbone: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] = "resnet18"
    resize_shape: Pair | None = None
    crop_ratio: float = Field(default=1.0, gt=0, le=1)
    crop_shape: Pair | None  # required, since LeRobot's default has changed
    use_group_norm: bool = True
    spatial_softmax_num_keypoints: int = 32
    use_separate_rgb_encoder_per_camera: bool = False
    down_dims: tuple[int, ...] = (512, 1024, 2048)
    kernel_size: int = 5
    n_groups: int = 8
    diffusion_step_embed_dim: int = 128
    use_film_scale_modulation: bool = True
    noise_scheduler_type: Literal["DDPM", "DDIM"] = "DDPM"
    num_train_timesteps: int = 100
    beta_schedule: str = "squaredcos_cap_v2"
    beta_start: float = 0.0001
    beta_end: float = 0.02
    prediction_type: str = "epsilon"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    num_inference_steps: int | None = None
    do_mask_loss_for_padding: bool = False
    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.95, 0.999)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 1e-6
    scheduler_warmup_steps: int = 500
    use_peft: Literal[False] = False
    keys_beside: dict[str, Any] = {}  # keys of the file without a field here

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Set keys aside that no action depends on, or that this reader does not know."""
        if beside := sorted(data.keys() - cls.model_fields.keys()):
            data["keys_beside"] = {name: data.pop(name) for name in beside}

    def faults(self) -> Iterator[str]:
        """Keys and features that are not supported here."""
        listed = set().union(*_KEYS_WITHOUT_EFFECT.values())
        for name, value in self.keys_beside.items():
            if name not in listed and not _is_without_value(value):
                problem = f"{name}: unknown key, and its value {short(value)} may change the actions"
                yield f"{problem}; an unknown key is ignored only if it is null, false or empty"
        expected = {STATE: ("STATE", 1), ENV: ("ENV", 1)}
        for name, feature in self.input_features.items():
            kind, axes = expected.get(name, ("VISUAL", 3))
            if (feature.type, len(feature.shape)) != (kind, axes) or (axes == 3 and feature.shape[0] != 3):
                expected_inputs = (
                    "a camera has type VISUAL and shape [3, height, width], other inputs are of one axis and named"
                )
                problem = f"input feature {name!r} is {feature.type} of shape {list(feature.shape)}"
                yield f"{problem}; {expected_inputs} {STATE!r} (STATE) or {ENV!r} (ENV)"
        if STATE not in self.input_features:
            yield f"input_features lack {STATE!r}, which LeRobot's policy always reads"
        action = self.output_features.get("action")
        if len(self.output_features) != 1 or action is None or (action.type, len(action.shape)) != ("ACTION", 1):
            yield f"output_features are {sorted(self.output_features)}; expected one, 'action', of one axis"
        names = [our_name(name) for name in self.input_features]
        if len(set(names)) < len(names):
            yield f"input_features would be named {names} here, two of them alike"

    def ignored(self) -> dict[str, list[str]]:
        """Keys of the file that no action depends on, by the reason."""
        reasons: dict[str, str] = {}
        for reason, names in _KEYS_WITHOUT_EFFECT.items():
            reasons |= dict.fromkeys(names, reason)
        names_by_reason: dict[str, list[str]] = {}
        for name in self.keys_beside:
            names_by_reason.setdefault(reasons.get(name, _UNKNOWN_WITHOUT_VALUE), []).append(name)
        return names_by_reason

    @property
    def crop(self) -> Pair | None:
        """Height and width of the crop: a fraction of `resize_shape`, or without it `crop_shape`; None for no crop."""
        if self.resize_shape is None:
            return self.crop_shape
        height, width = (int(self.crop_ratio * size) for size in self.resize_shape)
        return (height, width) if self.crop_ratio < 1 else None

    def encoder(self) -> dict[str, Any]:
        """The encoder of a camera, as JSON."""
        keypoints = self.spatial_softmax_num_keypoints
        norm = "group" if self.use_group_norm else "frozen_batch"
        shared = {"keypoints": keypoints, "output_dim": 2 * keypoints, "crop": self.crop, "norm": norm}
        return RESNETS[self.vision_backbone] | shared

    def task(self, source: str) -> dict[str, Any]:
        """The policy without its observations, as JSON. Errors name `source`."""
        arguments = {name: value for name, value in self if name in Scheduler.model_fields}
        arguments |= {"type": f"{self.noise_scheduler_type}Scheduler"}
        scheduler = Scheduler.from_json(json.dumps(arguments), source=source)
        sizes = self.down_dims, self.kernel_size, self.n_groups, self.diffusion_step_embed_dim
        return {
            "horizon": self.horizon,
            "n_obs_steps": self.n_obs_steps,
            "n_action_steps": self.n_action_steps,
            "backbone": unet(*sizes, self.use_film_scale_modulation),
            "diffusion": scheduler.diffusion(),
            "sampler": scheduler.sampler(self.num_inference_steps),
        }

    def train(self) -> dict[str, Any]:
        """Optimizer and learning rate, as JSON; the budget is LeRobot's default."""
        names = ("betas", "eps", "weight_decay")
        settings = dict(self)
        return {
            "steps": 100_000,
            "lr": {"type": "cosine", "peak": self.optimizer_lr, "warmup_steps": self.scheduler_warmup_steps},
            "optimizer": {name: settings[f"optimizer_{name}"] for name in names},
        }

    def mode(self, feature: LeRobotFeature) -> Mode:
        """The normalisation of a feature; IDENTITY without an entry in the configuration."""
        return self.normalization_mapping.get(feature.type, "IDENTITY")


class Step(Config):
    """A step of a processor."""

    registry_name: str
    config: dict[str, Any] = {}
    state_file: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_]+\.safetensors$")


class Processor(Config):
    """`policy_preprocessor.json` or `policy_postprocessor.json`."""

    name: str
    steps: tuple[Step, ...]


class Normalization(Config):
    """The configuration of a processor's step that normalises."""

    eps: float
    features: dict[str, LeRobotFeature]
    norm_map: dict[str, Mode]
    normalize_observation_keys: None = None

    def mode(self, feature: LeRobotFeature) -> Mode:
        """See `LeRobotDiffusionConfig.mode`."""
        return self.norm_map.get(feature.type, "IDENTITY")


class Renaming(Config):
    """The configuration of a processor's step that renames observations."""

    rename_map: dict[str, str] = {}


def read(files: PublishedFiles) -> Published:
    """LeRobot's diffusion policy in our terms.

    Raises:
        ConfigError: the policy is of another type, or has parts without a counterpart here.
    """
    config, tensors = files.document(THEIR_CONFIG, LeRobotDiffusionConfig), files.tensors(WEIGHTS)
    inputs, outputs, recorded = _statistics(files, tensors, config)
    modes = {name: config.mode(feature) for name, feature in config.input_features.items()}
    unscaled = [name for name in recorded if modes[name] != "IDENTITY" and _in_tensors(name) not in inputs]
    modes |= dict.fromkeys(unscaled, "IDENTITY")
    ignored = {_RENAMED_STATISTICS: [f"normalization_mapping of {name}" for name in unscaled]} if unscaled else {}
    observations = {}
    for name, parts in _observation_parts(config).items():
        scaling = _scaling(name, modes[name], config.input_features[name], inputs, files.place)
        key = recorded.get(name, name)
        observations[our_name(key)] = Observation(key=key, scaling=scaling, **parts)
    action, training = config.output_features["action"], training_of(files)
    return Published(
        library="LeRobot",
        origin={},
        place=files.place,
        tensors=tensors,
        prefix="diffusion.unet.",
        others=("normalize_inputs.", "normalize_targets.", "unnormalize_outputs."),
        task=config.task(f"{files.place}/{THEIR_CONFIG}"),
        action_dim=action.shape[0],
        action=_scaling("action", config.mode(action), action, outputs, files.place),
        observations=observations,
        data={"episodes": {"type": "lerobot"}, "mask_padding": config.do_mask_loss_for_padding},
        train=config.train(),
        ignored=config.ignored() | ignored,
        fps=training.fps,
        names=training.names,
        trained_on=training.episodes,
    )


def _observation_parts(config: LeRobotDiffusionConfig) -> dict[str, dict[str, Any]]:
    """The fields of an `Observation` beside key and scaling, by LeRobot's name, in the order of LeRobot's features."""
    features = config.input_features
    cameras = [name for name, feature in features.items() if feature.type == "VISUAL"]
    parts: dict[str, dict[str, Any]] = {STATE: {"shape": features[STATE].shape}}
    for number, name in enumerate(cameras):
        size = tuple(features[name].shape[1:])
        place = f"{number}." if config.use_separate_rgb_encoder_per_camera else ""
        parts[name] = {
            "shape": (*(config.resize_shape or size), 3),
            "encoder": config.encoder(),
            "prefix": f"diffusion.rgb_encoder.{place}",
            "recorded": size,
        }
    if ENV in features:
        parts[ENV] = {"shape": features[ENV].shape}
    return parts


def _statistics(
    files: PublishedFiles, tensors: dict[str, Tensor], config: LeRobotDiffusionConfig
) -> tuple[Stats, Stats, dict[str, str]]:
    """The statistics of inputs and of outputs, and the recorded names of observations that LeRobot renames."""
    if under("normalize_inputs.", tensors):  # before 0.4
        inputs = _by_feature(under("normalize_inputs.buffer_", tensors))
        return inputs, _by_feature(under("unnormalize_outputs.buffer_", tensors)), {}
    inputs, recorded = _state(files, "policy_preprocessor", "normalizer_processor", config)
    outputs, _ = _state(files, "policy_postprocessor", "unnormalizer_processor", config)
    return inputs, outputs, recorded


def _is_without_value(value: Any) -> bool:
    return any(type(value) is type(empty) and value == empty for empty in _WITHOUT_VALUE)


def _state(
    files: PublishedFiles, name: str, normalizes: str, config: LeRobotDiffusionConfig
) -> tuple[Stats, dict[str, str]]:
    """Statistics since 0.4, from the state of the processor's step that normalises, and the recorded names of the
    observations that a step before it renames.

    Args:
        name: name of the processor.
        normalizes: name of the normalising step.

    Raises:
        ConfigError: a step changes observations or actions in another way.
    """
    steps, source = files.document(f"{name}.json", Processor).steps, f"{files.place}/{name}.json"
    stats: Stats | None = None
    recorded: dict[str, str] = {}
    features = config.input_features if normalizes == "normalizer_processor" else config.output_features
    for index, step in enumerate(steps):
        if step.registry_name == normalizes and step.state_file is not None and stats is None:
            step_config = Normalization.from_json(json.dumps(step.config), source=f"{source}, step {index}")
            differs = [key for key, feature in features.items() if _is_unlike(step_config, key, feature, config)]
            if differs or step_config.eps != EPS:
                problem = f"with eps {step_config.eps}, not {EPS}"
                if differs:
                    problem = f"{', '.join(differs)} unlike {THEIR_CONFIG}"
                raise ConfigError(source, [f"step {index} normalises {problem}"])
            stats = _by_feature(files.tensors(step.state_file))
        elif step.registry_name == _RENAME_PROCESSOR and stats is None and not recorded:
            recorded = _recorded_names(step, f"{source}, step {index}", config)
        elif step.registry_name not in _PROCESSORS_WITHOUT_EFFECT and (
            step.registry_name != _RENAME_PROCESSOR or step.config.get("rename_map")
        ):
            raise ConfigError(source, [f"step {index} is {step.registry_name!r}, which has no counterpart here"])
    if stats is None:
        raise ConfigError(source, [f"has no step {normalizes!r} with a state_file"])
    return stats, recorded


def _is_unlike(step: Normalization, key: str, feature: LeRobotFeature, config: LeRobotDiffusionConfig) -> bool:
    """Whether a step and the policy's configuration normalise a feature differently."""
    normalized = step.features.get(key)
    return normalized != feature or step.mode(normalized) != config.mode(feature)


def _recorded_names(step: Step, source: str, config: LeRobotDiffusionConfig) -> dict[str, str]:
    """Names in the recording of the observations that a step renames, by their names in the policy.

    Raises:
        ConfigError: two observations would have one name.
    """
    renames = Renaming.from_json(json.dumps(step.config), source=source).rename_map
    recorded = {name: key for key, name in renames.items() if name in config.input_features}
    used = [our_name(recorded.get(name, name)) for name in config.input_features]
    if len(set(used)) < len(used) or len(recorded) < sum(name in config.input_features for name in renames.values()):
        raise ConfigError(source, [f"rename_map {renames} gives two observations one name"])
    return recorded


def _by_feature(tensors: dict[str, Tensor]) -> Stats:
    stats: Stats = {}
    for name, value in tensors.items():
        feature, _, statistic = name.rpartition(".")
        stats.setdefault(_in_tensors(feature), {})[statistic] = value
    return stats


def _in_tensors(name: str) -> str:
    """The name of a feature among the statistics, which before 0.4 has no dots."""
    return name.replace(".", "_")


def _scaling(name: str, mode: Mode, feature: LeRobotFeature, stats: Stats, source: str) -> Scaling:
    """The normalisation of a feature.

    A range of width 0: for an action we use LeRobot's eps as width, as LeRobot does, so the action stays constant. For
    an observation the constant becomes -1, as in LeRobot, but other values stay near -1; LeRobot divides them by eps.
    """
    shape = (3,) if feature.type == "VISUAL" else feature.shape
    if mode == "IDENTITY":
        return identity(*shape)
    kind, needed = _NORMALIZER_BY_MODE[mode]
    tensors = stats.get(_in_tensors(name), {})
    statistics = {key: value.double().numpy() for key, value in tensors.items() if key in _STATISTICS_READ}
    faults = [key for key in needed if key not in statistics or statistics[key].size != math.prod(shape)]
    if faults:
        shapes = {key: list(value.shape) for key, value in statistics.items()}
        problem = f"{name!r} is normalised by {mode}, which needs {' and '.join(faults)} of shape {list(shape)}; "
        raise ConfigError(source, [problem + f"its statistics are {shapes or 'missing'}"])
    statistics = {key: value.reshape(shape) for key, value in statistics.items() if value.size == math.prod(shape)}
    first, second = (statistics[key] for key in needed[:2])
    if mode == "MEAN_STD":
        return Scaling(kind, 1 / (second + EPS), first, statistics)
    with np.errstate(invalid="ignore"):  # the normalizer refuses values that are not finite
        width = second - first
    unit = np.exp2(np.ceil(np.log2(np.maximum(np.abs(first), 1.0))))
    half = np.where(width == 0, EPS / 2 if feature.type == "ACTION" else unit, width / 2)
    return Scaling(kind, 1 / half, first + half, statistics)


def our_name(name: str) -> str:
    """Our name of a feature, without dots."""
    return name.removeprefix("observation.").replace(".", "_")
