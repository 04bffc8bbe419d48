"""DALLE2-pytorch (lucidrains): the configuration of its `train_diffusion_prior.py`."""

from __future__ import annotations

from typing import Any

from dp_prior.config.errors import ConfigError
from dp_prior_foreign.translation.ema_pytorch import ARGUMENTS, FOLDED_UPDATES, UPDATE_EVERY, average
from dp_prior_foreign.translation.library import Library
from dp_prior_foreign.translation.published_choices import half, run_directory
from dp_prior_foreign.translation.row import (
    NoCounterpart,
    OurSettings,
    Row,
    TheirSettings,
    Words,
    fixed,
    left_out,
    unless_null,
)
from dp_prior_foreign.translation.translate import TO_FILL_IN

_SAVER_TYPES = ("local", "huggingface", "wandb")
_IN_MINUTES = "in minutes"
_BY_EMBEDDINGS = "embeddings are read, and `dp-prior embed` writes them"
_FROM_CHECKPOINTS = "comes from the checkpoint that a run goes on from"
_CLIP_TOKENS = 77
"""Encodings of a text by CLIP; theirs adds learned tokens up to `max_text_len`."""

_ENCODINGS_FOLDER = "`data.text_encodings` names a folder of them"
_TRACKER_FOLDER = ".tracker_data"
"""Their default folder of a tracker."""

_DEFAULT_SECONDS = 3600
"""Seconds between two saves, and between two evaluations, by default."""

_DEFAULT_ROWS = 250_000_000


def _check_kind(settings: TheirSettings) -> None:
    """Refuse a decoder, whose configuration has the objects of a prior's with other settings.

    Raises:
        ConfigError: the settings are of `train_decoder.py`.
    """
    if "data.webdataset_base_url" in settings or any(path.partition(".")[0] == "decoder" for path in settings):
        fault = (
            "decoder: is a configuration of train_decoder.py; only those of train_diffusion_prior.py are translated. "
            'Write an image model by hand, with task.type "image" (docs/images.md)'
        )
        raise ConfigError("DALLE2-pytorch", [fault])


def _skeleton(settings: TheirSettings) -> dict[str, Any]:
    """Build the settings here that follow from several of theirs, or from their defaults."""
    _check_kind(settings)
    n_timesteps, n_steps = settings.get("prior.timesteps", 1000), settings.get("prior.sample_timesteps")
    log = settings.get("tracker.log.log_type", settings.get("tracker.tracker_type", "console"))
    strided = {"type": "ddim", "steps": n_steps, "eta": 1.0}
    config: dict[str, Any] = {
        "task.type": "prior",
        "task.backbone.type": "multi_query_prior",
        "task.backbone.text_tokens": settings.get("prior.net.max_text_len") or 256,
        "task.diffusion.schedule": {"type": "cosine", "steps": n_timesteps},
        "task.sampler": strided if n_steps else {"type": "ddpm", "steps": n_timesteps},
        "task.text_dropout": 0.0,
        "data.type": "embeddings",
        "data.image.path": f"{TO_FILL_IN}/image_embeddings",
        "data.text.path": f"{TO_FILL_IN}/text_embeddings",
        "data.split": {"train": 0.75, "val": 0.15, "test": 0.1, "max_rows": _DEFAULT_ROWS},
        "train.epochs": 1,
        "train.lr": {"type": "constant", "warmup_steps": settings.get("train.warmup_steps") or 0},
        "train.optimizer": {"type": "adamw", "betas": [0.9, 0.99], "eps": 1e-6},
        "evaluate.<validation>.type": "loss",
        "evaluate.<similarity>.type": "similarity",
        "test.<test>": {"type": "loss", "name": "test", "split": "test"},
        "tracker.data_path": _run_directory(settings),
        "tracker.log.<console>.type": "console",
        **_average(None, settings),
    }
    if settings.get("prior.condition_on_text_encodings", True):
        config["data.text_encodings.path"] = f"{TO_FILL_IN}/text_encodings"
        config["data.text_encodings.tokens"] = min(settings.get("prior.net.max_text_len") or _CLIP_TOKENS, _CLIP_TOKENS)
    if "train.save_every" not in settings:
        config["train.save_every.minutes"] = _DEFAULT_SECONDS / 60
    if n_timesteps < 64:  # steps of the evaluator, by default
        config["evaluate.<similarity>.eval_timesteps"] = [n_timesteps]
    for path, kind in settings.items():
        number = path.removeprefix("tracker.save.").removesuffix(".save_to")
        if path == f"tracker.save.{number}.save_to" and kind in _SAVER_TYPES:
            config[f"tracker.save.<{number}>.type"] = kind
    if log == "wandb":
        config["tracker.log.<wandb>.type"] = "wandb"
    if not settings.get("train.use_ema", True):
        config["train.monitor.metric"] = "validation/online/loss"
        config |= {f"evaluate.<{name}>.models": ["online"] for name in ("validation", "similarity")}
        config["test.<test>"] |= {"models": ["online"]}
    if settings.get("data.splits.test", 0.1) == 0:
        del config["test.<test>"]
    return config


def _average(value: Any, settings: TheirSettings) -> OurSettings:
    """All settings of the average together."""
    if not settings.get("train.use_ema", True):
        return OurSettings({"train.ema": {}})
    arguments = {name: settings[f"train.ema_{name}"] for name in ARGUMENTS if f"train.ema_{name}" in settings}
    return average(**{"beta": 0.99, **arguments})


def _predicts_clean(settings: TheirSettings) -> bool:
    """Their `predict_x_start`, without which nothing is clamped to a length."""
    return bool(settings.get("prior.predict_x_start", True))


def _is_clamped(is_clamped: bool, settings: TheirSettings) -> bool:
    """Whether embeddings are clamped to their length."""
    return is_clamped and _predicts_clean(settings)


def _is_clamped_in_training(is_clamped: bool, settings: TheirSettings) -> bool:
    """Whether predictions are clamped to their length in training."""
    if is_clamped and _predicts_clean(settings) and settings.get("prior.predict_v"):
        raise NoCounterpart("velocities, which have no length of their own, are not clamped")
    return _is_clamped(is_clamped, settings)


def _text_encodings(is_conditioned: bool, settings: TheirSettings) -> OurSettings:
    """Ask for a folder of text encodings if the prior is conditioned on them."""
    return OurSettings({"data.text_encodings.path": f"{TO_FILL_IN}/text_encodings"} if is_conditioned else {})


def _clip_of_estimates(is_clamped: bool, settings: TheirSettings) -> dict[str, Any] | None:
    """Choose the clip of the estimated embeddings."""
    if not _predicts_clean(settings):  # to [-1, 1] there, whatever `is_clamped` is
        return {"type": "fixed", "bound": 1.0}
    return {"type": "l2norm", "radius": settings.get("prior.image_embed_scale")} if is_clamped else None


def _text_dropout(share: float | None, settings: TheirSettings) -> Any:
    """Take the share of dropped texts; `text_cond_drop_prob` counts before `cond_drop_prob`."""
    text_share = settings.get("prior.text_cond_drop_prob")
    return unless_null(settings.get("prior.cond_drop_prob") if text_share is None else text_share, settings)


def _sampling_steps(steps: int | None, settings: TheirSettings) -> Any:
    """Take the number of sampling steps; null leaves the default here."""
    return steps or OurSettings()


def _logger(kind: str, settings: TheirSettings) -> OurSettings:
    """Add a logger of this type."""
    if kind in ("wandb", "console"):
        return OurSettings({f"tracker.log.<{kind}>.type": kind})
    raise NoCounterpart(f"{kind!r} is no logger here; see docs/tracking.md")


def _loader(kind: str | None, settings: TheirSettings) -> dict[str, Any]:
    """Translate where a run loads its checkpoint from."""
    if kind is None:
        return OurSettings()
    if kind == "local":
        path = settings.get("tracker.load.file_path")
        return {"type": "local", "path": f"{TO_FILL_IN}/run" if path is None else path}
    raise NoCounterpart('set tracker.load to {"type": "remote", "reference": ...}, see docs/hub.md')


def _saver_field(name: str) -> Any:
    """A function of a setting of a saver, which only a saver here of the same kind has."""
    kinds = {"save_latest_to": "local", "save_best_to": "local", "huggingface_repo": "huggingface"}
    field = {"huggingface_repo": "repo"}.get(name, name)

    def to(value: Any, settings: TheirSettings, number: str) -> OurSettings:
        kind = settings.get(f"tracker.save.{number}.save_to", "local")
        if value is None:
            return OurSettings()
        if kind != kinds[name]:
            raise NoCounterpart(f"a saver {kind!r} has none; `save_latest` and `save_best` say what it gets")
        folder = str(settings.get("tracker.data_path", _TRACKER_FOLDER)).removeprefix("./").rstrip("/")
        place = str(value).removeprefix("./").removeprefix(f"{folder}/").removesuffix(".pth")
        if place.startswith(("/", "..")) and kind == "local":
            raise NoCounterpart(f"copies lie below the run directory; name a directory there instead of {value}")
        return OurSettings({f"tracker.save.<{number}>.{field}": place})

    return to


def _saver(kind: str, settings: TheirSettings, number: str) -> OurSettings:
    """Set the type of a saver."""
    if kind not in _SAVER_TYPES:
        raise NoCounterpart(f"{kind!r} is no saver here; see docs/hub.md")
    return OurSettings({f"tracker.save.<{number}>.type": kind})


def _saver_role(role: str) -> Any:
    """A function of whether a saver gets the latest or the best checkpoints; a local saver has a directory for each."""

    def to(is_saved: bool, settings: TheirSettings, number: str) -> OurSettings:
        if settings.get(f"tracker.save.{number}.save_to", "local") == "local":
            return OurSettings({} if is_saved else {f"tracker.save.<{number}>.save_{role}_to": None})
        return OurSettings({f"tracker.save.<{number}>.save_{role}": is_saved})

    return to


def _save_type(kind: str, settings: TheirSettings, number: str) -> OurSettings:
    """Set what a saver writes: a checkpoint or the model alone."""
    return OurSettings({f"tracker.save.<{number}>.save_type": kind})


def _objective(is_clean: bool, settings: TheirSettings) -> str:
    """The objective of the network; `predict_v` takes precedence over `predict_x_start`."""
    if is_clean not in (True, False):
        raise NoCounterpart(f"{is_clean!r} has no counterpart; True and False have")
    if settings.get("prior.predict_v"):
        return "v"
    return "x0" if is_clean else "eps"


def _velocity_objective(is_velocity: bool, settings: TheirSettings) -> Any:
    """Set objective v if velocities are predicted."""
    return "v" if is_velocity else OurSettings()


def _minutes_between_saves(seconds: float, settings: TheirSettings) -> float:
    """Convert seconds between saves, unless `save_every` counts steps."""
    if "train.save_every" in settings:
        raise NoCounterpart("`train.save_every` counts")
    return seconds / 60


def _whole_number(count: float, settings: TheirSettings) -> int:
    """Convert a number in scientific notation, which YAML and JSON read as a float."""
    return int(count)


def _data_path(folder: str, settings: TheirSettings) -> str:
    """Replace the tracker's default folder by the run directory here."""
    return _run_directory(settings) if folder == _TRACKER_FOLDER else folder


def _run_directory(settings: TheirSettings) -> str:
    """Name the run directory by the images."""
    return run_directory("prior", settings.get("data.image_url"))


def _minutes_between_evaluations(seconds: float, settings: TheirSettings) -> OurSettings:
    """Convert seconds between evaluations, for both evaluators."""
    return OurSettings({f"evaluate.<{name}>.every.minutes": seconds / 60 for name in ("validation", "similarity")})


_NETWORK_FIELDS = {
    "depth": "n_layers",
    "num_time_embeds": "n_time_tokens",
    "num_image_embeds": "n_image_tokens",
    "num_text_embeds": "n_text_tokens",
    "heads": "n_heads",
    "dim_head": "head_dim",
    "num_timesteps": "time_table",
    "ff_mult": "expansion",
    "norm_in": "norm_in",
    "norm_out": "norm_out",
    "attn_dropout": "attention_dropout",
    "ff_dropout": "dropout",
    "final_proj": "final_proj",
    "normformer": "normformer",
    "rotary_emb": "rotary",
}

_ROWS = (
    *(Row(f"prior.net.{name}", f"task.backbone.{field}") for name, field in _NETWORK_FIELDS.items()),
    Row("prior.net.max_text_len", "task.backbone.text_tokens", "null: 256", unless_null),
    *left_out("the data say it", "prior.net.dim"),
    Row("prior.net.self_cond", "task.diffusion.self_condition", "true: 0.5", half),
    *left_out(_BY_EMBEDDINGS, "prior.clip.make", "prior.clip.model", "prior.clip.base_model_kwargs.**"),
    *left_out("the data say it", "prior.image_embed_dim", "prior.image_size", "prior.image_channels"),
    Row("prior.timesteps", "task.diffusion.schedule.steps"),
    Row("prior.sample_timesteps", "task.sampler.steps", "with `eta` 1; null: ddpm over all timesteps", _sampling_steps),
    Row("prior.cond_drop_prob", "task.text_dropout", "", _text_dropout),
    Row("prior.text_cond_drop_prob", "task.text_dropout", "instead of `cond_drop_prob`", _text_dropout),
    fixed(
        "prior.image_cond_drop_prob",
        (0, 0.0, None),
        "the noisy embedding is never dropped, the network's own estimate only with `task.diffusion.self_condition`",
        "task.image_dropout",
    ),
    Row("prior.loss_type", "task.diffusion.criterion.type", "", Words({"l2": "l2", "l1": "l1", "huber": "huber"})),
    Row("prior.predict_x_start", "task.diffusion.objective.type", "true: x0; false: eps", _objective),
    Row("prior.predict_v", "task.diffusion.objective.type", "true: v", _velocity_objective),
    Row(
        "prior.beta_schedule",
        "task.diffusion.schedule.type",
        "",
        Words(
            {
                "cosine": "cosine",
                "linear": "linear",
                "quadratic": "scaled_linear",
                "jsd": "linear_signal",
                "sigmoid": "sigmoid_beta",
            }
        ),
    ),
    Row("prior.condition_on_text_encodings", "data.text_encodings", _ENCODINGS_FOLDER, _text_encodings),
    Row("prior.sampling_clamp_l2norm", "task.diffusion.clip", "true: l2norm", _clip_of_estimates),
    Row("prior.sampling_final_clamp_l2norm", "task.clamp_end", "", _is_clamped),
    Row("prior.training_clamp_l2norm", "task.clamp_training", "", _is_clamped_in_training),
    Row("prior.init_image_embed_l2norm", "task.clamp_start"),
    Row("prior.image_embed_scale", "task.embedding_scale"),
    Row("data.image_url", "data.image.path"),
    Row("data.text_url", "data.text.path"),
    Row("data.meta_url", "data.image.metadata"),
    Row("data.splits.train", "data.split.train"),
    Row("data.splits.val", "data.split.val"),
    Row("data.splits.test", "data.split.test"),
    Row("data.batch_size", "data.batch_size"),
    Row("data.num_data_points", "data.split.max_rows", "", _whole_number),
    Row("data.eval_every_seconds", "evaluate.<validation>.every.minutes", _IN_MINUTES, _minutes_between_evaluations),
    Row("train.epochs", "train.epochs"),
    Row("train.lr", "train.lr.peak"),
    Row("train.wd", "train.optimizer.weight_decay"),
    Row("train.max_grad_norm", "train.max_grad_norm"),
    Row("train.use_ema", "train.ema", "false: an empty object", _average),
    Row("train.ema_beta", "train.ema.<average>.max_decay", "to the power 1 / `ema_update_every`", _average),
    Row("train.ema_update_after_step", "train.ema.<average>.update_after_step", "", _average),
    Row("train.ema_update_every", "train.ema.<average>.inv_gamma", FOLDED_UPDATES, _average),
    Row("train.ema_inv_gamma", "train.ema.<average>.inv_gamma", "over `ema_update_every` ** (1 / power)", _average),
    Row("train.ema_power", "train.ema.<average>.power", "", _average),
    Row("train.ema_min_value", "train.ema.<average>.min_decay", "to the power 1 / `ema_update_every`", _average),
    Row("train.amp", "train.precision", "true: fp16, which needs a GPU", Words({False: "fp32", True: "fp16"})),
    Row("train.warmup_steps", "train.lr.warmup_steps", "", lambda steps, *_: steps or 0),
    Row("train.save_every_seconds", "train.save_every.minutes", _IN_MINUTES, _minutes_between_saves),
    Row("train.save_every", "train.save_every.steps", "of the older form"),
    Row("train.eval_timesteps", "evaluate.<similarity>.eval_timesteps"),
    Row("train.random_seed", "seed"),
    *left_out(
        "an argument of functions there; here `batch_size` of each evaluator and of `predict`, and --batch-size of "
        "`dp-prior sample`; in training `train.accumulation`",
        "max_batch_size",
    ),
    *left_out(_FROM_CHECKPOINTS, "train.best_validation_loss", "train.current_epoch", "train.num_samples_seen"),
    *left_out("the option --resume of `dp-prior train`, `auto` by default", "load.source", "load.resume"),
    Row(
        "tracker.data_path",
        "tracker.data_path",
        f"`{_TRACKER_FOLDER}`, theirs by default: `runs/prior_IMAGES`",
        _data_path,
    ),
    *left_out("delete the run directory by hand; nothing is overwritten", "tracker.overwrite_data_path"),
    Row("tracker.log.log_type", "tracker.log.<logger>.type", "a list of loggers", _logger),
    Row("tracker.tracker_type", "tracker.log.<logger>.type", "of the older form", _logger),
    Row("tracker.log.wandb_entity", "tracker.log.<wandb>.entity"),
    Row("tracker.log.wandb_project", "tracker.log.<wandb>.project"),
    Row("tracker.log.wandb_run_name", "tracker.run_name"),
    Row("tracker.log.wandb_run_id", "tracker.run_id"),
    Row("tracker.wandb_entity", "tracker.log.<wandb>.entity"),
    Row("tracker.wandb_project", "tracker.log.<wandb>.project"),
    *left_out(
        "a run that goes on keeps its id", "tracker.log.resume", "tracker.log.auto_resume", "tracker.log.wandb_resume"
    ),
    *left_out("the console's `style` in `tracker.log`", "tracker.log.verbose", "tracker.verbose"),
    Row("tracker.load.load_from", "tracker.load", "local, or remote with a `reference`", _loader),
    *left_out("part of `tracker.load`", "tracker.load.file_path", "tracker.load.url", "tracker.load.wandb_run_path"),
    *left_out("part of `tracker.load`", "tracker.load.wandb_file_path"),
    *left_out("a run always goes on from its own newest checkpoint first", "tracker.load.only_auto_resume"),
    Row("tracker.save.*.save_to", "tracker.save.<saver>.type", "", _saver),
    Row(
        "tracker.save.*.save_latest_to",
        "tracker.save.<saver>.save_latest_to",
        "a directory below the run",
        _saver_field("save_latest_to"),
    ),
    Row(
        "tracker.save.*.save_best_to",
        "tracker.save.<saver>.save_best_to",
        "a directory below the run",
        _saver_field("save_best_to"),
    ),
    Row(
        "tracker.save.*.save_latest",
        "tracker.save.<saver>.save_latest",
        "of a local saver `save_latest_to`",
        _saver_role("latest"),
    ),
    Row(
        "tracker.save.*.save_best",
        "tracker.save.<saver>.save_best",
        "of a local saver `save_best_to`",
        _saver_role("best"),
    ),
    Row("tracker.save.*.save_type", "tracker.save.<saver>.save_type", "", _save_type),
    Row("tracker.save.*.huggingface_repo", "tracker.save.<saver>.repo", "", _saver_field("huggingface_repo")),
    *left_out("`checkpoints.keep_every` keeps checkpoints for good", "tracker.save.*.save_all"),
    *left_out("a checkpoint holds its configuration and its figures", "tracker.save.*.save_meta_to"),
    *left_out("from `hf auth login`, or HF_TOKEN; never in a configuration", "tracker.save.*.token_path"),
    *left_out("`project` and `artifact` of the saver wandb", "tracker.save.*.wandb_run_path"),
)

_DEFAULTS = {
    "prior.condition_on_text_encodings": True,
    "prior.sampling_clamp_l2norm": False,
    "prior.sampling_final_clamp_l2norm": False,
    "data.eval_every_seconds": _DEFAULT_SECONDS,
    "train.lr": 1.1e-4,
    "train.wd": 6.02e-2,
    "train.max_grad_norm": 0.5,
    "train.use_ema": True,
}


def _defaults(settings: TheirSettings) -> dict[str, Any]:
    """List defaults that a file may omit; `ema_update_every` only where weights are averaged."""
    averages = settings.get("train.use_ema", True)
    return {**_DEFAULTS, "train.ema_update_every": UPDATE_EVERY} if averages else _DEFAULTS


DALLE2 = Library(
    key="dalle2",
    name="DALLE2-pytorch",
    link="https://github.com/lucidrains/DALLE2-pytorch",
    about="The JSON of `train_diffusion_prior.py`. Embeddings are read as there; their text encodings, on which theirs "
    "conditions by default, lie in a folder beside them.",
    rows=_ROWS,
    skeleton=_skeleton,
    blocks={
        "prior": "task",
        "net": "task.backbone",
        "splits": "data.split",
        "clip": "data.image",
        "load": "tracker.load",
    },
    defaults=_defaults,
    lists=("tracker.save",),
)
