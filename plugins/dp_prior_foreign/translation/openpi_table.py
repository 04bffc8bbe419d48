"""openpi (Physical Intelligence): the settings of its `TrainConfig`."""

from __future__ import annotations

from typing import Any, Literal

from dp_prior_foreign.translation.library import Library
from dp_prior_foreign.translation.openpi_names import NAMED, REPACKED_PREFIX
from dp_prior_foreign.translation.published_choices import DECAY_REMARK, NO_LOADERS, wandb
from dp_prior_foreign.translation.row import NoCounterpart, OurSettings, Row, TheirSettings, Words, built, left_out
from dp_prior_foreign.translation.translate import TO_FILL_IN

_NO_VLM = "vision-language models are not here; `task.encoders` of type vit reads images, `data.language` texts"
_NAME_KEYS = "name observations in `data.obs`, `data.images` and `data.language`"
_LIBERO_KEYS = {
    "observation/image": "image",
    "observation/wrist_image": "wrist_image",
    "state": "state",
    "actions": "actions",
}
_ALOHA_KEYS = {"images.cam_high": "observation.images.top", "state": "observation.state", "actions": "action"}
_CHECKPOINTS, _RUNS = "./checkpoints", "runs"
"""Their default folder of checkpoints, and the folder of runs that takes its place."""

_ALOHA_SETTINGS = tuple(f"data.{name}" for name in ("use_delta_joint_actions", "adapt_to_pi", "action_sequence_keys"))
_FITTED_STATISTICS = "statistics are fitted to the training data and saved with the weights"
_RUN_HOLDS_ALL = "the run directory holds everything that a run writes"


def _is_aloha(settings: TheirSettings) -> bool:
    """Whether the data are of ALOHA, whose settings no other data of theirs have."""
    return any(name in settings for name in _ALOHA_SETTINGS)


def _data_keys(settings: TheirSettings) -> dict[str, str]:
    """Keys of the data set by the places here: the repacked keys, or the usual ones of the kind of data."""
    repacked = {
        path.removeprefix(REPACKED_PREFIX): key for path, key in settings.items() if path.startswith(REPACKED_PREFIX)
    }
    usual = _ALOHA_KEYS if _is_aloha(settings) else _LIBERO_KEYS
    keys = {"actions": usual["actions"], **repacked} if repacked else usual
    return {_place_of_key(name): key for name, key in keys.items() if name != "prompt"}


def _place_of_key(name: str) -> str:
    """The place here of a key, by its name for their networks."""
    if name == "actions":
        return "data.action.key"
    section = "images" if "image" in name else "obs"
    return f"data.{section}.{name.removeprefix('observation/').removeprefix('images.').replace('/', '_')}.key"


def _is_fast(settings: TheirSettings) -> bool:
    """Whether the model is pi0-FAST, whose settings no other model of theirs has."""
    return any(path.startswith("model.fast_model_tokenizer") for path in settings)


def _chunk_length(settings: TheirSettings) -> int:
    """Length of a chunk of actions, by default that of the model."""
    return settings.get("model.action_horizon", 32 if _is_fast(settings) else 50)


def _skeleton(settings: TheirSettings) -> dict[str, Any]:
    """Build the settings here that follow from several of theirs, or from their defaults."""
    keys = _data_keys(settings)
    cameras = [place.removesuffix(".key") for place in keys if place.startswith("data.images.")]
    steps = settings.get("num_train_steps", 30000)
    averages = settings.get("ema_decay", 0.99) is not None
    config: dict[str, Any] = {
        "seed": 42,
        "task.type": "policy",
        "task.horizon": _chunk_length(settings),
        "task.n_obs_steps": 1,
        "task.n_action_steps": _chunk_length(settings),
        "task.backbone.type": "dit",
        "task.diffusion.schedule": {"type": "flow", "steps": 1000},
        "task.diffusion.objective.type": "flow",
        "task.diffusion.clip": None,
        "task.sampler": {"type": "euler", "steps": 10},
        **_normalizers(True, settings),
        "data.type": "trajectories",
        "data.episodes.type": "lerobot",
        **keys,
        **{f"{camera}.size": [224, 224] for camera in cameras},
        **{f"{camera}.fit": "letterbox" for camera in cameras},
        "data.split": {"train": 1.0, "val": 0.0},
        "data.global_batch_size": 32,
        "train.steps": steps,
        "train.lr": {"type": "cosine", "peak": 2.5e-5, "warmup_steps": 1000, "final_fraction": 0.1},
        "train.optimizer": {"type": "adamw", "betas": [0.9, 0.95], "weight_decay": 1e-10},
        "train.max_grad_norm": 1.0,
        "train.precision": "bf16",
        "train.ema": {"ema": {"type": "constant", "decay": settings.get("ema_decay", 0.99)}} if averages else {},
        "train.log_every.steps": 100,
        "train.save_every.steps": 1000,
        "checkpoints.keep_every": 5000,
        "evaluate": [],
        "tracker.data_path": _run_directory(settings),
        "tracker.log.<console>.type": "console",
    }
    if "${" in str(settings.get("data.repo_id", "${")):
        config["data.episodes.path"] = f"{TO_FILL_IN}/data"
    if settings.get("wandb_enabled", True):
        config |= {"tracker.log.<wandb>.type": "wandb", "tracker.log.<wandb>.project": "openpi"}
    return config


def _normalizer_of_model(settings: TheirSettings) -> dict[str, Any]:
    """Quantiles, but a standard deviation for pi0, whatever `use_quantile_norm` says there."""
    has_quantiles = settings.get("model.pi05", False) or _is_fast(settings)
    return {"type": "quantile" if has_quantiles else "gaussian"}


def _normalizers(value: bool, settings: TheirSettings) -> OurSettings:
    """Set the model's normalizer for every vector."""
    vectors = [place.split(".")[-2] for place in _data_keys(settings) if not place.startswith("data.images.")]
    return OurSettings({f"task.normalizer.{name}": _normalizer_of_model(settings) for name in vectors})


def _horizon_and_actions(n: int, settings: TheirSettings) -> OurSettings:
    """Set the horizon and the executed actions, which are equal there."""
    return OurSettings({"task.horizon": n, "task.n_action_steps": n})


def _adam_beta(index: int) -> Any:
    """A function of one of the two decays of AdamW."""

    def to(value: float, settings: TheirSettings) -> list[float]:
        betas = [settings.get("optimizer.b1", 0.9), settings.get("optimizer.b2", 0.95)]
        betas[index] = value
        return betas

    return to


def _final_fraction(rate: float, settings: TheirSettings) -> float:
    """Convert the last learning rate to a fraction of the peak."""
    return rate / settings.get("lr_schedule.peak_lr", 2.5e-5)


def _peak_rate(rate: float, settings: TheirSettings) -> OurSettings:
    """Set the peak, and with a cosine the last rate as a fraction of the peak."""
    is_cosine = "lr_schedule.timescale" not in settings
    final = {"train.lr.final_fraction": settings.get("lr_schedule.decay_lr", 2.5e-6) / rate} if is_cosine else {}
    return OurSettings({"train.lr.peak": rate, **final})


def _inverse_sqrt_rate(steps: float, settings: TheirSettings) -> OurSettings:
    """Set the learning rates that fall with the square root of the steps."""
    warm_up, peak = settings.get("lr_schedule.warmup_steps", 1000), settings.get("lr_schedule.peak_lr", 5e-5)
    rate = {"type": "inverse_sqrt", "peak": peak, "warmup_steps": warm_up, "timescale_steps": int(steps)}
    return OurSettings({"train.lr": rate})


def _decay_steps(steps: int, settings: TheirSettings) -> OurSettings:
    """Accept a decay that ends with the run."""
    if steps != settings.get("num_train_steps", 30000):
        raise NoCounterpart("rates fall until the end of the run, train.steps")
    return OurSettings()


def _shard(devices: int, settings: TheirSettings) -> Literal["model", False]:
    """The division among several devices."""
    return "model" if devices > 1 else False


def _relative_joints(*slices: tuple[int, int]) -> Any:
    """A function of whether joints are relative: their slices, alike in the action and the state."""

    def to(is_delta: bool, settings: TheirSettings) -> Any:
        arms = [{"type": "offset", "action": [*arm], "key": "state", "slice": [*arm]} for arm in slices]
        return arms if is_delta else OurSettings()

    return to


def _repacked_keys(key: Any, settings: TheirSettings) -> OurSettings:
    """Name the column of a repacked key."""
    columns = {place: column for place, column in _data_keys(settings).items() if column == key}
    if key and not columns:
        raise NoCounterpart(_NAME_KEYS)
    return OurSettings(columns)


def _run_directory(settings: TheirSettings) -> str:
    """Name the run directory by the folder of checkpoints, the configuration and the experiment."""
    names = (settings[key] for key in ("name", "exp_name") if settings.get(key))
    folder = settings.get("checkpoint_base_dir", _CHECKPOINTS)
    return "/".join([_RUNS if folder == _CHECKPOINTS else folder, *names])


def _weight_decay(decay: float, settings: TheirSettings) -> OurSettings:
    """Keep the weight decay, and say which weights decay here."""
    return OurSettings({"train.optimizer.weight_decay": decay}, DECAY_REMARK if decay else "")


def _named_settings(settings: TheirSettings) -> dict[str, Any]:
    """The settings of a configuration that is named alone."""
    return NAMED.get(str(settings.get("name")), {})


def _defaults(settings: TheirSettings) -> dict[str, Any]:
    """List the precision, and of ALOHA the relative joints, that a configuration may omit."""
    delta = {"data.use_delta_joint_actions": True} if _is_aloha(settings) else {}
    return {"pytorch_training_precision": "bfloat16", **delta}


def _assumed_columns(settings: TheirSettings) -> dict[str, str]:
    """The columns, which a configuration of another name than theirs leaves out."""
    if (
        str(settings.get("name")) in NAMED
        or _is_aloha(settings)
        or any(path.startswith(REPACKED_PREFIX) for path in settings)
    ):
        return {}
    columns = ", ".join(_LIBERO_KEYS.values())
    return {"data.repack_transforms": f"the columns {columns} of LIBERO are taken; name yours in `data` if they differ"}


def _action_key(keys: list[str], settings: TheirSettings) -> str:
    """Take the only key of the action."""
    if len(keys) != 1:
        raise NoCounterpart("an action is one vector of the data; join the keys there")
    return keys[0]


_ROWS = (
    Row("name", "tracker.data_path", "runs/NAME, with `exp_name`", built(_skeleton, "tracker.data_path")),
    Row("exp_name", "tracker.run_name"),
    Row("project_name", "tracker.log.<wandb>.project"),
    Row("seed", "seed"),
    Row("batch_size", "data.global_batch_size"),
    *left_out(NO_LOADERS, "num_workers"),
    Row("num_train_steps", "train.steps"),
    Row("log_interval", "train.log_every.steps"),
    Row("save_interval", "train.save_every.steps"),
    Row("keep_period", "checkpoints.keep_every"),
    *left_out("delete the run directory by hand; nothing is overwritten", "overwrite"),
    *left_out("the option --resume of `dp-prior train`, `auto` by default", "resume"),
    Row("wandb_enabled", "tracker.log.<wandb>.type", "true: wandb in the list", wandb),
    *left_out("`description` is saved with the run", "policy_metadata.**"),
    Row("fsdp_devices", "train.shard", '"model" if above 1, among all ranks', _shard),
    Row("ema_decay", "train.ema.<average>.decay", "null: an empty object", built(_skeleton, "train.ema")),
    *left_out("`freeze` of an encoder", "freeze_filter.**"),
    *left_out(
        "`train.init_from`, of a checkpoint of ours; theirs are not read", "weight_loader.**", "pytorch_weight_path"
    ),
    Row("pytorch_training_precision", "train.precision", "", Words({"bfloat16": "bf16", "float32": "fp32"})),
    *left_out(_RUN_HOLDS_ALL, "assets_base_dir"),
    Row(
        "checkpoint_base_dir", "tracker.data_path", "with `name` and `exp_name`", built(_skeleton, "tracker.data_path")
    ),
    Row("lr_schedule.peak_lr", "train.lr.peak", "", _peak_rate),
    Row("lr_schedule.warmup_steps", "train.lr.warmup_steps"),
    Row("lr_schedule.decay_steps", "train.steps", "rates fall until the end of the run", _decay_steps),
    Row("lr_schedule.decay_lr", "train.lr.final_fraction", "a fraction of the peak", _final_fraction),
    Row("lr_schedule.timescale", "train.lr.timescale_steps", "of inverse_sqrt", _inverse_sqrt_rate),
    Row("optimizer.b1", "train.optimizer.betas", "the first", _adam_beta(0)),
    Row("optimizer.b2", "train.optimizer.betas", "the second", _adam_beta(1)),
    Row("optimizer.eps", "train.optimizer.eps"),
    Row("optimizer.weight_decay", "train.optimizer.weight_decay", "", _weight_decay),
    Row("optimizer.clip_gradient_norm", "train.max_grad_norm"),
    *left_out("AdamW is fused where it can be", "optimizer.fused"),
    *left_out("SGD is not here; see docs/extending.md", "optimizer.lr", "optimizer.momentum", "optimizer.nesterov"),
    Row("model.action_horizon", "task.horizon", "and `n_action_steps`", _horizon_and_actions),
    *left_out("the data say it", "model.action_dim"),
    *left_out(_NO_VLM, "model.paligemma_variant", "model.action_expert_variant", "model.max_token_len"),
    *left_out(
        _NO_VLM, "model.discrete_state_input", "model.fast_model_tokenizer", "model.fast_model_tokenizer_kwargs.**"
    ),
    Row("model.pi05", "task.normalizer.<name>.type", "true: quantile; false: gaussian", _normalizers),
    *left_out("`train.precision`", "model.dtype"),
    *left_out("`train.compile`", "model.pytorch_compile_mode"),
    Row("data.repo_id", "data.episodes.repo"),
    *left_out("follows from the model there: quantiles but for pi0", "data.base_config.use_quantile_norm"),
    *left_out("`data.language` reads LeRobot's tasks", "data.base_config.prompt_from_task", "data.default_prompt"),
    Row("data.repack_transforms.**", "data.images.<camera>.key", "or in `data.obs`, `data.action`", _repacked_keys),
    *left_out(_NAME_KEYS, "data.data_transforms.**", "data.model_transforms.**"),
    Row("data.base_config.action_sequence_keys", "data.action.key", "one key", _action_key),
    Row("data.action_sequence_keys", "data.action.key", "one key", _action_key),
    *left_out(_FITTED_STATISTICS, "data.assets.assets_dir", "data.assets.asset_id", "data.base_config.norm_stats.**"),
    *left_out(_FITTED_STATISTICS, "data.base_config.asset_id", "data.base_config.repo_id"),
    Row(
        "data.use_delta_joint_actions",
        "task.arms",
        "offsets of two arms of 6 joints",
        _relative_joints((0, 6), (7, 13)),
    ),
    Row("data.extra_delta_transform", "task.arms", "offsets of 6 joints", _relative_joints((0, 6))),
    *left_out("joints are in the units of the data", "data.adapt_to_pi"),
    *left_out("RLDS is not read; see docs/data.md for converting", "data.rlds_data_dir", "data.action_space"),
    *left_out("several data sets: `data.type` mixture", "data.datasets.**"),
    *left_out("RLDS is not read; see docs/data.md for converting", "data.filter_dict_path"),
    *left_out(
        "RLDS is not read; see docs/data.md for converting",
        "data.base_config.rlds_data_dir",
        "data.base_config.action_space",
        "data.base_config.datasets",
    ),
)

OPENPI = Library(
    key="openpi",
    name="openpi",
    link="https://github.com/Physical-Intelligence/openpi",
    about="A `TrainConfig` written as YAML or JSON, or the command of its `train.py` with the name of one "
    "of its configurations. The training is translated; "
    "the model becomes a flow-matching transformer of our own size, trained from the beginning. Repacked keys name "
    "cameras and vectors; without any the keys of ALOHA or LIBERO do.",
    rows=_ROWS,
    skeleton=_skeleton,
    elsewhere=_named_settings,
    defaults=_defaults,
    unsaid=_assumed_columns,
    blocks={
        "model": "task",
        "lr_schedule": "train.lr",
        "weight_loader": "train.init_from",
    },
)
