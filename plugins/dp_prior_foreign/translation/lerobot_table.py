"""LeRobot: the configuration of `lerobot-train` with its diffusion policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_prior_foreign.translation.lerobot_environments import (
    cameras_of,
    defaults,
    elsewhere,
    env_task,
    env_type,
    environment,
    inputs,
    name_of,
    obs_type,
    unsaid,
    vectors_of,
)
from dp_prior_foreign.translation.library import Library
from dp_prior_foreign.translation.published_choices import (
    BATCH_NORM,
    BETA_SCHEDULES,
    FREE_NORM,
    IMAGENET_MEAN,
    IMAGENET_STD,
    LEARNING_RATES,
    NO_LOADERS,
    PREDICTIONS,
    RESNETS,
    beta_rows,
    clip_rows,
    run_directory,
    wandb,
    wandb_mode,
    warm_up,
)
from dp_prior_foreign.translation.row import (
    NoCounterpart,
    OurSettings,
    Row,
    TheirSettings,
    Words,
    built,
    fixed,
    left_out,
    unchanged,
    unless_null,
)
from dp_prior_foreign.translation.translate import TO_FILL_IN

_NORMALIZERS = {
    "MIN_MAX": {"type": "limits", "clip": None},
    "MEAN_STD": {"type": "gaussian", "clip": None},
    "QUANTILES": {"type": "quantile", "clip": None},
    "IDENTITY": {"type": "identity"},
}
_UPLOAD_BY_SAVER = 'add {"type": "huggingface", "repo": "user/name"} to tracker.save'
_NO_ADAPTERS = "adapters are not here; `train.init_from` fine-tunes whole weights"
_NO_REMOTE_JOBS = "runs start where the command does"
_USES_PRESET = "use_policy_training_preset"
_HUB_SETTINGS = ("push_to_hub", "repo_id", "private", "tags", "license")
_COMMON_SETTINGS = ("type", "device", "use_amp", "input_features", "output_features", *_HUB_SETTINGS)
"""Settings in `policy` that do not depend on its type."""

_PICTURE_MODE = "policy.normalization_mapping.VISUAL"
_AVERAGE_FIELDS = ("inv_gamma", "power", "min_decay", "max_decay", "update_after_step")
"""Settings of an average of growing decay, here as there."""


def _has_preset(settings: TheirSettings) -> bool:
    """Whether the policy's settings of the optimizer count, rather than `optimizer` and `scheduler`."""
    return bool(settings.get(_USES_PRESET, True))


def _sampling_steps(settings: TheirSettings) -> int:
    """Count the sampling steps: as many as trained without `num_inference_steps`."""
    return settings.get("policy.num_inference_steps") or settings.get("policy.num_train_timesteps", 100)


def _has_average(settings: TheirSettings) -> bool:
    """Whether an average of the weights is kept; `use_ema` is the older name."""
    return bool(settings.get("ema.enable", settings.get("use_ema", False)))


def _skeleton(settings: TheirSettings) -> dict[str, Any]:
    """Build the settings here that follow from several of LeRobot's, or from its defaults."""
    model = "ema" if _has_average(settings) else "online"
    held_out = settings.get("dataset.eval_split", 0.0)
    config: dict[str, Any] = {
        "seed": 1000,
        "task.type": "policy",
        "task.horizon": 64,
        "task.n_obs_steps": 2,
        "task.n_action_steps": 32,
        "task.backbone": {"type": "unet1d", "down_dims": [512, 1024, 2048], "head_groups": 8, "step_embed_dim": 128},
        "task.diffusion.schedule": {"type": "cosine", "steps": 100},
        "task.diffusion.clip": {"type": "fixed", "bound": 1.0},
        "task.sampler": {"type": "ddpm", "steps": _sampling_steps(settings), "spacing": "diffusers"},
        "data.type": "trajectories",
        "data.episodes": {"type": "lerobot"},
        "data.action.key": "action",
        "data.mask_padding": False,
        "data.batch_size": 8,
        "data.split": {"train": round(1.0 - held_out, 6), "val": held_out, "test": 0.0},
        "train.steps": 100000,
        "train.lr": {"type": "cosine"},
        "train.max_grad_norm": 10.0,
        "train.log_every.steps": 200,
        "train.save_every.steps": 20000,
        "train.ema": {"ema": {"type": "power", "max_decay": 0.9999}} if _has_average(settings) else {},
        "tracker.data_path": _run_directory(settings),
        "tracker.log.<console>.type": "console",
        "task.normalizer.action": _NORMALIZERS["MIN_MAX"],
    }
    config |= _optimizer_defaults(settings)
    places = (settings.get("dataset.repo_id"), settings.get("dataset.root"))
    if all(place is None or "${" in str(place) for place in places):  # ${HF_USER}/data is of a shell
        config["data.episodes.path"] = f"{TO_FILL_IN}/data"
    config |= _observations(settings)
    if settings.get("wandb.enable", False) and settings.get("wandb.mode") != "disabled":
        config["tracker.log.<wandb>.type"] = "wandb"
    return config | _shared_encoders(settings) | (_evaluators(settings, model) or {"evaluate": []})


def _optimizer_defaults(settings: TheirSettings) -> dict[str, Any]:
    """Defaults of `optimizer` and `scheduler`; empty with the preset, whose defaults are those here."""
    if _has_preset(settings):
        return {}
    decay = 1e-2 if settings.get("optimizer.type") == "adamw" else 0.0
    return {
        "train.lr.peak": 1e-3,
        "train.lr.warmup_steps": 0,
        "train.optimizer": {"type": "adamw", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": decay},
    }


def _run_directory(settings: TheirSettings) -> str:
    """Name the run directory by the job, else by the data set."""
    if settings.get("job_name"):
        return f"runs/{settings['job_name']}"
    return run_directory("lerobot_diffusion", settings.get("dataset.repo_id"), settings.get("dataset.root"))


def _observations(settings: TheirSettings) -> dict[str, Any]:
    """The columns of the observations, their normalizers, and the encoders of cameras."""
    config: dict[str, Any] = {}
    for key in vectors_of(settings):
        name = name_of(settings, key)
        config[f"data.obs.{name}.key"] = key
        mode = (
            "IDENTITY" if _is_environment_state(settings, key) else "MIN_MAX"
        )  # LeRobot names no mode for ENV by default
        config[f"task.normalizer.{name}"] = _NORMALIZERS[mode]
    for key in cameras_of(settings):
        config[f"data.images.{name_of(settings, key)}"] = {"key": key, "size": [96, 96]}
    for name in _encoded_cameras(settings):
        config[f"task.encoders.{name}"] = {"type": "resnet", "norm": "group", "crop": None}
    return config | _picture_statistics(settings)


def _picture_statistics(settings: TheirSettings) -> dict[str, Any]:
    """The mean and standard deviation of pictures, for every encoder."""
    mode = settings.get(_PICTURE_MODE, "MEAN_STD")
    if mode == "MEAN_STD" and settings.get("dataset.use_imagenet_stats", True):
        return _encoders(settings, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return _encoders(settings, mean=[0.0] * 3, std=[1.0] * 3) if mode == "IDENTITY" else {}


def _evaluators(settings: TheirSettings, model: str) -> dict[str, Any]:
    """Validation where episodes are held out, and rollouts in an environment that is here."""
    config: dict[str, Any] = {}
    if settings.get("dataset.eval_split", 0.0) > 0:
        config |= {"evaluate.<validation>.type": "loss", "evaluate.<validation>.models": [model]}
        config["train.monitor"] = {"metric": f"validation/{model}/loss", "mode": "min"}
    env = environment(settings)
    if env is not None:
        n = max(2, settings.get("eval.n_episodes", 50))
        n_envs = settings.get("eval.batch_size") or n
        config |= {
            "evaluate.<rollout>.type": "rollout",
            "evaluate.<rollout>.model": model,
            "evaluate.<rollout>.env": {**env, "n_envs": n_envs},
            "train.monitor": {"metric": "rollout/score", "mode": "max"},
        }
        if not {"eval_freq", "env_eval_freq"} & settings.keys():
            config["evaluate.<rollout>.every.steps"] = 20000
        if min(n, n_envs) < 4:
            config["evaluate.<rollout>.videos"] = min(n, n_envs)  # of episodes side by side; 4 by default
    return config


def _settings_of_other_policy(settings: TheirSettings) -> dict[str, str]:
    """List the settings of another policy and of its optimizer, with the reason why no counterpart exists."""
    kind = settings.get("policy.type", "diffusion")
    if kind == "diffusion":
        return {}
    reason = f"belongs to policy {kind!r}; the diffusion policy keeps its own"
    reasons = {}
    for path in settings:
        section, *names = path.split(".")
        is_of_policy = section == "policy" and names[0] not in _COMMON_SETTINGS
        if is_of_policy or section in ("optimizer", "scheduler", _USES_PRESET):
            reasons[path] = reason
    return reasons


def _task_type(kind: str, settings: TheirSettings) -> str:
    """Translate the type of the policy, of which diffusion alone has a counterpart."""
    if kind != "diffusion":
        raise NoCounterpart(f"policy {kind!r} is not here; a diffusion policy takes its place")
    return "policy"


def _feature_key(kind: str, settings: TheirSettings, *key: str) -> OurSettings:
    """Name the column of an input, in `data.images` for a camera and in `data.obs` for a vector."""
    section = "images" if kind == "VISUAL" else "obs"
    return OurSettings({f"data.{section}.{name_of(settings, '.'.join(key))}.key": ".".join(key)})


def _size_of_camera(shape: list[int], settings: TheirSettings, *key: str) -> OurSettings:
    """Take height and width of a camera's frames, unless `resize_shape` replaces them."""
    if ".".join(key) not in cameras_of(settings) or settings.get("policy.resize_shape"):
        return OurSettings()
    return OurSettings({f"data.images.{name_of(settings, '.'.join(key))}.size": shape[1:]})


def _cameras(settings: TheirSettings) -> list[str]:
    """The names here of cameras."""
    return [name_of(settings, key) for key in cameras_of(settings)]


def _encoded_cameras(settings: TheirSettings) -> list[str]:
    """The names of the cameras that have an encoder of their own."""
    has_own_encoders = settings.get("policy.use_separate_rgb_encoder_per_camera", True)
    return _cameras(settings) if has_own_encoders else _cameras(settings)[:1]


def _encoders(settings: TheirSettings, **fields: Any) -> OurSettings:
    """The same settings for every encoder."""
    encoders = itertools.product(fields, _encoded_cameras(settings))
    return OurSettings({f"task.encoders.{name}.{field}": fields[field] for field, name in encoders})


def _shared_encoders(settings: TheirSettings) -> dict[str, str]:
    """Name the first camera as the encoder of every camera without an encoder of its own."""
    encoded = _encoded_cameras(settings)
    return {f"task.shared_encoders.{name}": encoded[0] for name in _cameras(settings) if name not in encoded}


def _norm_layer(is_group: bool, settings: TheirSettings) -> OurSettings:
    """Set group norm in every encoder."""
    if not is_group:
        raise NoCounterpart(BATCH_NORM)
    return _encoders(settings, norm="group")


def _backbone(name: str, settings: TheirSettings) -> OurSettings:
    """Set the residual blocks of every encoder, by torchvision's name of the network."""
    resnet = Words(RESNETS)(name, settings)
    return _encoders(settings, blocks=resnet["blocks"], bottleneck="bottleneck" in resnet)


def _resized_frames(shape: list[int] | None, settings: TheirSettings) -> OurSettings:
    """Set one size of frames for every camera."""
    return OurSettings({f"data.images.{name}.size": shape for name in _cameras(settings) if shape is not None})


def _picture_normalization(mode: str, settings: TheirSettings) -> OurSettings:
    """Translate the normalisation of pictures, which follows from no statistics of the data here."""
    if mode == "QUANTILES" or mode not in _NORMALIZERS:
        raise NoCounterpart(f"{mode!r} has no counterpart; set `mean` and `std` of the encoders")
    if mode == "MIN_MAX":
        return OurSettings({}, "pictures in [0, 1] are mapped to [-1, 1]")
    if mode == "MEAN_STD" and not settings.get("dataset.use_imagenet_stats", True):
        raise NoCounterpart("the mean of the data is not measured; set `mean` and `std` of the encoders")
    return OurSettings(_picture_statistics(settings))


def _imagenet_statistics(is_imagenet: bool, settings: TheirSettings) -> OurSettings:
    """Set ImageNet's mean and standard deviation where pictures are normalised by a mean."""
    if settings.get(_PICTURE_MODE, "MEAN_STD") != "MEAN_STD":
        raise NoCounterpart("pictures are not normalised by a mean, there neither")
    return _picture_normalization("MEAN_STD", settings)


def _weight_decay(decay: float, settings: TheirSettings) -> OurSettings:
    """Keep the weight decay, and say how LeRobot's differs."""
    is_l2 = _has_preset(settings) or settings.get("optimizer.type", "adam") == "adam"
    adam_remark = "theirs adds the decay to gradients (Adam), of biases and norms too"
    remark = adam_remark if is_l2 else "theirs decays biases and norms too"
    return OurSettings({"train.optimizer.weight_decay": decay}, f"{remark}; here weights alone decay" if decay else "")


def _precision(name: str, settings: TheirSettings) -> str:
    """Translate accelerate's word for the precision."""
    return Words({"no": "fp32", "bf16": "bf16", "fp16": "fp16"})(name, settings)


def _crop_of_encoders(value: Any, settings: TheirSettings) -> OurSettings:
    """Set the crop of every encoder: a share of `resize_shape`, or `crop_shape` without a resize."""
    frame = settings.get("policy.resize_shape")
    if not frame:
        return _encoders(settings, crop=settings.get("policy.crop_shape"))
    ratio = settings.get("policy.crop_ratio", 1.0)
    return _encoders(settings, crop=[int(ratio * side) for side in frame] if ratio < 1 else None)


def _is_environment_state(settings: TheirSettings, key: str) -> bool:
    """Whether an input is of the environment (ENV) instead of the robot."""
    return inputs(settings).get(key) == "ENV"


def _normalizer_of(kind: str) -> Any:
    """A function of a mode of normalisation, for the features of a kind."""

    def to(mode: str, settings: TheirSettings) -> OurSettings:
        normalizer = Words(_NORMALIZERS)(mode, settings)
        vectors = [
            name_of(settings, key)
            for key in vectors_of(settings)
            if _is_environment_state(settings, key) == (kind == "ENV")
        ]
        keys = ["action"] if kind == "ACTION" else vectors
        return OurSettings({f"task.normalizer.{key}": normalizer for key in keys})

    return to


def _sampler(kind: str, settings: TheirSettings) -> OurSettings:
    """Set the sampler with its steps and diffusers' spacing."""
    samplers = Words({"DDIM": {"type": "ddim", "use_clipped_model_output": False}, "DDPM": {"type": "ddpm"}})
    return OurSettings(
        {"task.sampler": {**samplers(kind, settings), "steps": _sampling_steps(settings), "spacing": "diffusers"}}
    )


def _compile_mode(value: Any, settings: TheirSettings) -> str:
    """Join `compile_model` and `compile_mode` into the one setting here; LeRobot's default leaves ours, which compiles
    where a step is then the same and faster."""
    is_compiled = settings.get("policy.compile_model", False)
    return settings.get("policy.compile_mode", "reduce-overhead") if is_compiled else "auto"


def _local_path(path: str | None, settings: TheirSettings) -> OurSettings:
    """Take a local path of the data set, which replaces the repository."""
    return OurSettings() if path is None else OurSettings({"data.episodes.path": path, "data.episodes.repo": None})


def _hub_setting(value: str | None, settings: TheirSettings) -> Any:
    """A setting of a data set on the Hub, which a local one does without."""
    if value is not None and settings.get("dataset.root") is not None:
        raise NoCounterpart("`dataset.root` says where the data lie")
    return unless_null(value, settings)


def _evaluation_steps(steps: int, settings: TheirSettings) -> int:
    """The cadence of an evaluator, in steps; 0 for never."""
    if not steps:
        raise NoCounterpart("evaluators run at the end at least; leave it out of `evaluate`")
    return steps


def _log_steps(steps: int, settings: TheirSettings) -> int:
    """Take the cadence of log rows, which cannot be switched off here."""
    if not steps:
        raise NoCounterpart("rows are always logged; train.log_every says how often")
    return steps


@dataclass(frozen=True)
class OfPreset:
    """A function of a setting with two paths, between which `use_policy_training_preset` chooses.

    Attributes:
        is_preset: whether this path counts with the preset.
        other: the path that counts otherwise.
        to: the function of the value, see `Row.to`.
    """

    is_preset: bool
    other: str
    to: Callable[..., Any] = unchanged

    def __call__(self, value: Any, settings: TheirSettings) -> Any:
        """Translate the value.

        Raises:
            NoCounterpart: the other path counts, or the value has no counterpart.
        """
        if _has_preset(settings) is not self.is_preset:
            raise NoCounterpart(f"`{self.other}` counts, as `{_USES_PRESET}` says")
        return self.to(value, settings)


def _preset_rows(preset: str, path: str, place: str, to: Callable[..., Any] = unchanged) -> list[Row]:
    """Rows of a setting with two paths, see `OfPreset`."""
    note = to.remark if isinstance(to, Words) else ""
    copied = f"a copy of `{preset}` unless `{_USES_PRESET}` is false"
    return [
        Row(preset, place, note, OfPreset(True, path, to)),
        Row(path, place, copied, OfPreset(False, preset, to), is_copy=True),
    ]


def _warm_up_steps(steps: int, settings: TheirSettings) -> int:
    """Take the warm-up, unless the chosen schedule is constant."""
    return warm_up("policy.scheduler_name" if _has_preset(settings) else "scheduler.name")(steps, settings)


def _optimizer_type(kind: str, settings: TheirSettings) -> str:
    """Set adamw, which also takes the place of Adam."""
    if not _has_preset(settings) and kind not in ("adam", "adamw"):
        raise NoCounterpart(f"{kind!r} is not here; adamw takes its place, or set train.optimizer")
    return "adamw"


def _average_of_weights(value: Any, settings: TheirSettings) -> OurSettings:
    """All settings of `ema` together, since a constant decay excludes the others."""
    if not _has_average(settings):
        return OurSettings({"train.ema": {}})
    decay = settings.get("ema.decay")
    if decay is not None:
        return OurSettings({"train.ema.ema": {"type": "constant", "decay": decay}})
    average = {field: settings[f"ema.{field}"] for field in _AVERAGE_FIELDS if f"ema.{field}" in settings}
    return OurSettings({"train.ema.ema": {"type": "power", **average}})


_ROWS = (
    Row("policy.type", "task.type", "diffusion: policy", _task_type),
    Row("policy.n_obs_steps", "task.n_obs_steps"),
    Row("policy.horizon", "task.horizon"),
    Row("policy.n_action_steps", "task.n_action_steps"),
    Row("policy.normalization_mapping.STATE", "task.normalizer.<name>.type", "", _normalizer_of("STATE")),
    Row("policy.normalization_mapping.ENV", "task.normalizer.<name>.type", "", _normalizer_of("ENV")),
    Row("policy.normalization_mapping.ACTION", "task.normalizer.action.type", "", _normalizer_of("ACTION")),
    Row(
        _PICTURE_MODE,
        "task.encoders.<camera>.mean",
        "and `std`; MEAN_STD with `use_imagenet_stats`: ImageNet's",
        _picture_normalization,
    ),
    Row(
        "policy.input_features.*.*.*.type", "data.images.<camera>.key", "VISUAL; others are in `data.obs`", _feature_key
    ),
    Row(
        "policy.input_features.*.*.type",
        "data.obs.<name>.key",
        "STATE and ENV; VISUAL is in `data.images`",
        _feature_key,
    ),
    Row(
        "policy.input_features.*.*.*.shape",
        "data.images.<camera>.size",
        "of cameras, without the channels",
        _size_of_camera,
    ),
    Row(
        "policy.input_features.*.*.shape",
        "data.images.<camera>.size",
        "of cameras, without the channels",
        _size_of_camera,
    ),
    *left_out("the data say it", "policy.output_features.**", "env.features.**", "env.features_map.**"),
    *left_out("all windows are trained on, padding as `data.mask_padding` says", "policy.drop_n_last_frames"),
    Row("policy.vision_backbone", "task.encoders.<camera>.blocks", "and `bottleneck`", _backbone),
    Row("policy.resize_shape", "data.images.<camera>.size", "", _resized_frames),
    Row(
        "policy.crop_ratio",
        "task.encoders.<camera>.crop",
        "pixels of `resize_shape`, rounded down; 1: null",
        _crop_of_encoders,
    ),
    Row("policy.crop_shape", "task.encoders.<camera>.crop", "", _crop_of_encoders),
    fixed("policy.crop_is_random", True, "crops are random in training and the centre otherwise"),
    fixed(
        "policy.pretrained_backbone_weights",
        None,
        "a path of a safetensors file of these weights, where theirs is a name",
        "task.encoders.<camera>.weights",
    ),
    Row("policy.use_group_norm", "task.encoders.<camera>.norm", "true: group; false: frozen_batch", _norm_layer),
    Row(
        "policy.spatial_softmax_num_keypoints",
        "task.encoders.<camera>.keypoints",
        "",
        lambda count, settings: _encoders(settings, keypoints=count),
    ),
    Row(
        "policy.use_separate_rgb_encoder_per_camera",
        "task.shared_encoders.<camera>",
        "false: the first camera, of all others",
        lambda _, settings: OurSettings(_shared_encoders(settings)),
    ),
    Row("policy.down_dims", "task.backbone.down_dims"),
    Row("policy.kernel_size", "task.backbone.kernel_size"),
    Row("policy.n_groups", "task.backbone.n_groups"),
    Row("policy.diffusion_step_embed_dim", "task.backbone.step_embed_dim"),
    Row("policy.use_film_scale_modulation", "task.backbone.film_scale"),
    fixed("policy.gradient_checkpointing", False, "networks of policies keep intermediate values"),
    Row("policy.noise_scheduler_type", "task.sampler.type", "DDPM: ddpm; DDIM: ddim", _sampler),
    Row("policy.num_train_timesteps", "task.diffusion.schedule.steps"),
    Row("policy.beta_schedule", "task.diffusion.schedule.type", "", BETA_SCHEDULES),
    *beta_rows("policy", "squaredcos_cap_v2", 100),
    Row("policy.prediction_type", "task.diffusion.objective.type", "", PREDICTIONS),
    *clip_rows("policy"),
    Row(
        "policy.num_inference_steps",
        "task.sampler.steps",
        "null: as many as trained",
        lambda _, settings: _sampling_steps(settings),
    ),
    Row("policy.do_mask_loss_for_padding", "data.mask_padding"),
    Row("policy.compile_model", "train.compile", "with `compile_mode`", _compile_mode),
    Row("policy.compile_mode", "train.compile", "with `compile_model`", _compile_mode),
    *_preset_rows("policy.optimizer_lr", "optimizer.lr", "train.lr.peak"),
    *_preset_rows("policy.optimizer_betas", "optimizer.betas", "train.optimizer.betas"),
    *_preset_rows("policy.optimizer_eps", "optimizer.eps", "train.optimizer.eps"),
    *_preset_rows(
        "policy.optimizer_weight_decay", "optimizer.weight_decay", "train.optimizer.weight_decay", _weight_decay
    ),
    *_preset_rows("policy.scheduler_name", "scheduler.name", "train.lr", LEARNING_RATES),
    *_preset_rows(
        "policy.scheduler_warmup_steps", "scheduler.num_warmup_steps", "train.lr.warmup_steps", _warm_up_steps
    ),
    Row("policy.use_amp", "train.precision", "true: bf16", lambda is_amp, *_: "bf16" if is_amp else "fp32"),
    *left_out("CUDA_VISIBLE_DEVICES chooses the GPU", "policy.device"),
    *left_out("`dp-prior import`, then `train.init_from`", "policy.path", "policy.pretrained_path"),
    *left_out("`dp-prior import`, then `train.init_from`", "policy.pretrained_revision"),
    *left_out(_UPLOAD_BY_SAVER, *(f"policy.{name}" for name in _HUB_SETTINGS)),
    *left_out(_UPLOAD_BY_SAVER, "save_checkpoint_to_hub"),
    *left_out(_NO_ADAPTERS, "policy.use_peft", "peft.**"),
    *left_out(
        "name relative actions in `task.arms`", "policy.use_relative_actions", "policy.use_delta_joint_actions_aloha"
    ),
    Row("dataset.repo_id", "data.episodes.repo", "", _hub_setting),
    Row("dataset.root", "data.episodes.path", "", _local_path),
    Row("dataset.revision", "data.episodes.revision", "", _hub_setting),
    Row("dataset.episodes", "data.choice.only", "", unless_null),
    Row("dataset.exclude_episodes", "data.choice.leave_out", "", unless_null),
    Row("dataset.eval_split", "data.split.val", "and `train`, the rest", built(_skeleton, "data.split")),
    *left_out("`jitter` of a camera's encoder", "dataset.image_transforms.**"),
    Row(
        "dataset.use_imagenet_stats", "task.encoders.<camera>.mean", "and `std`; true: ImageNet's", _imagenet_statistics
    ),
    *left_out("frames are decoded once, into the frame cache", "dataset.video_backend", "dataset.streaming"),
    *left_out("frames are decoded once, into the frame cache", "dataset.return_uint8", "dataset.repo_type"),
    *left_out("depth is read in metres, by `data.depth`", "dataset.depth_output_unit"),
    Row("output_dir", "tracker.data_path", "", unless_null),
    Row("job_name", "tracker.run_name", "", unless_null),
    *left_out("the option --resume of `dp-prior train`, `auto` by default", "resume", "checkpoint_path", "config_path"),
    Row("seed", "seed", "", unless_null),
    *left_out(NO_LOADERS, "num_workers", "prefetch_factor", "persistent_workers"),
    *left_out(NO_LOADERS, "dataloader_multiprocessing_context"),
    *left_out("results are those of the kernels; nothing to set", "cudnn_deterministic"),
    Row("batch_size", "data.batch_size"),
    Row("steps", "train.steps"),
    Row("log_freq", "train.log_every.steps", "", _log_steps),
    Row("save_freq", "train.save_every.steps"),
    *left_out("checkpoints are always saved", "save_checkpoint"),
    *left_out("tensors are saved as safetensors", "checkpoint_format"),
    Row("accelerator.mixed_precision", "train.precision", "", _precision),
    Row("accelerator.gradient_accumulation.steps", "train.accumulation"),
    *left_out("options of `accelerate launch`", "accelerator.ddp.**", "accelerator.fsdp.**", "parallelism.**"),
    *left_out("`train.compile` and `checkpointing` of a backbone", "accelerator.compile.**"),
    *left_out("`train.compile` and `checkpointing` of a backbone", "accelerator.activation_checkpointing.**"),
    Row("eval_freq", "evaluate.<rollout>.every.steps", "", _evaluation_steps),
    Row("env_eval_freq", "evaluate.<rollout>.every.steps", "", _evaluation_steps),
    Row("eval_steps", "evaluate.<validation>.every.steps", "", _evaluation_steps),
    Row("max_eval_samples", "evaluate.<validation>.max_samples", "0: null", lambda n, *_: n or None),
    *left_out("time stamps are compared by the reader of the data", "tolerance_s"),
    *left_out("false: `optimizer` and `scheduler` count, else their copies in `policy`", _USES_PRESET),
    Row("optimizer.type", "train.optimizer.type", "adam, adamw: adamw", _optimizer_type),
    Row(
        "optimizer.grad_clip_norm",
        "train.max_grad_norm",
        f"0: {FREE_NORM:g}, no limit",
        lambda norm, _: norm if norm > 0 else FREE_NORM,
    ),
    fixed("scheduler.type", "diffuser", "learning rates are those of diffusers; set train.lr", "train.lr"),
    *(Row(f"ema.{name}", "train.ema", f"`{name}` of the average", _average_of_weights) for name in ("enable", "decay")),
    *(Row(f"ema.{name}", f"train.ema.<average>.{name}", "", _average_of_weights) for name in _AVERAGE_FIELDS),
    *left_out("`models` and `model` of evaluators say which weights", "ema.use_for_eval"),
    Row("env.type", "evaluate.<rollout>.env.type", "pusht and aloha; others by gymnasium's id", env_type),
    Row("env.task", "evaluate.<rollout>.env.task", "of ALOHA; of Push-T it follows from `env.type`", env_task),
    Row("env.episode_length", "evaluate.<rollout>.env.max_steps"),
    Row("env.obs_type", "", "the data say what is observed", obs_type),
    *left_out("environments show and step as here", "env.fps", "env.render_mode", "env.disable_env_checker"),
    *left_out("rollouts draw cameras as the data have them", "env.observation_height", "env.observation_width"),
    *left_out("environments show and step as here", "env.visualization_width", "env.visualization_height"),
    *left_out("environments show and step as here", "env.max_parallel_tasks"),
    Row("eval.n_episodes", "evaluate.<rollout>.n_episodes", "2 at least", lambda n, *_: max(2, n)),
    Row("eval.batch_size", "evaluate.<rollout>.env.n_envs", "0: all at once", lambda n, _: n or OurSettings()),
    *left_out("`workers` of the rollout", "eval.use_async_envs"),
    *left_out("rollouts are filmed; `videos` of the rollout", "eval.recording", "eval.recording_repo_id"),
    *left_out("rollouts are filmed; `videos` of the rollout", "eval.recording_private", "eval.save_predicted_video"),
    Row("wandb.enable", "tracker.log.<wandb>.type", "true: wandb in the list", wandb),
    Row("wandb.project", "tracker.log.<wandb>.project"),
    Row("wandb.entity", "tracker.log.<wandb>.entity"),
    Row("wandb.mode", "tracker.log.<wandb>.mode", "", wandb_mode),
    Row("wandb.run_id", "tracker.run_id", "", unless_null),
    Row("wandb.notes", "description", "", unless_null),
    *left_out("`tracker.save` of type wandb sends checkpoints", "wandb.disable_artifact"),
    *left_out("`tags` of wandb in `tracker.log`", "wandb.add_tags"),
    *left_out("name observations in `data.obs` and `data.images`", "rename_map.**"),
    *left_out("weights of samples: `weight` of a data set of `data.type` mixture", "sample_weighting.**"),
    *left_out("reward models are not here", "reward_model.**"),
    *left_out(_NO_REMOTE_JOBS, "job.**"),
)

LEROBOT = Library(
    key="lerobot",
    name="LeRobot",
    link="https://github.com/huggingface/lerobot",
    about="`train_config.json` of a run, or the flags of `lerobot-train`, of its diffusion policy. Flags do not "
    "say the observations, which are in `train_config.json`: those of `meta/info.json` in `dataset.root` are taken, "
    "else of Push-T and ALOHA those of the published data sets, else `observation.state`, which a line says. What "
    "flags omit has the value of LeRobot 0.6. A policy of another type is replaced by the diffusion policy with these "
    "values; its own settings are left out.",
    rows=_ROWS,
    skeleton=_skeleton,
    defaults=defaults,
    elsewhere=elsewhere,
    unsaid=unsaid,
    ignored=_settings_of_other_policy,
    blocks={
        "policy": "task",
        "dataset": "data.episodes",
        "env": "evaluate",
        "eval": "evaluate",
        "wandb": "tracker.log",
        "scheduler": "train.lr",
        "optimizer": "train.optimizer",
        "ema": "train.ema",
    },
)
