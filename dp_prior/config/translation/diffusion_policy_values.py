"""What becomes of Diffusion Policy's values: the functions of its table, and the settings that follow from several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dp_prior.config.translation.diffusion_policy_rollouts import FIRST_SEEDS, environment, is_pusht, rollouts
from dp_prior.config.translation.published_choices import BATCH_NORM, FREE_NORM, RESNETS
from dp_prior.config.translation.row import Here, NoCounterpart, Theirs, Words, built
from dp_prior.config.translation.translate import TO_FILL_IN

_SCHEDULE = "policy.noise_scheduler"
_KITCHEN, _REAL = "KitchenLowdimDataset", "RealPushTImageDataset"
_NO_PATH = f"{TO_FILL_IN}/data"
_PUSHT_OBS = {"agent_pos": {"key": "state", "slice": [0, 2]}}
_BLOCKS = Words({name: RESNETS[name] for name in ("resnet18", "resnet34", "resnet50")})
_ROOMS = {"rgb": "images", "low_dim": "obs", "point_cloud": "points"}
"""Where `data` has observations, by their type."""
_PUSHT_NAMES = {"image": "camera"}  # as the Push-T environment names its picture


def _dataset(theirs: Theirs) -> str:
    return str(theirs.get("task.dataset._target_", "")).rpartition(".")[2]


def _is_image(theirs: Theirs) -> bool:
    return any(path.startswith("shape_meta.obs.") or ".shape_meta.obs." in path for path in theirs)


def _is_transformer(theirs: Theirs) -> bool:
    return "policy.n_emb" in theirs or "policy.model.n_emb" in theirs


def _is_inpainting(theirs: Theirs) -> bool:
    known = [theirs[key] for key in ("obs_as_global_cond", "obs_as_local_cond", "obs_as_cond") if key in theirs]
    return bool(known) and not any(known)


def _averages(theirs: Theirs) -> bool:
    return bool(theirs.get("training.use_ema", True))


def _steps(theirs: Theirs) -> int:
    return theirs.get("policy.num_inference_steps") or theirs.get(f"{_SCHEDULE}.num_train_timesteps", 100)


def _name(theirs: Theirs, key: str) -> str:
    """The name here of an observation."""
    return _PUSHT_NAMES.get(key, key) if is_pusht(theirs) else key


def skeleton(theirs: Theirs) -> dict[str, Any]:
    """The settings here that follow from several of theirs, or from a default of theirs."""
    ours = {
        "task.type": "inpainting_policy" if _is_inpainting(theirs) else "policy",
        "task.backbone.type": _backbone(theirs),
        "task.diffusion.schedule.type": "cosine",
        "task.diffusion.schedule.steps": 100,
        "task.diffusion.clip": {"type": "fixed", "bound": 1.0},
        "task.sampler": _sampler(theirs),
        "data.type": "trajectories",
        "data.mask_padding": False,
        "data.split": {"train": 1.0, "val": 0.0, "test": 0.0},
        "train.epochs": 1,
        "train.lr": {"type": "cosine"},
        "train.max_grad_norm": FREE_NORM,
        "tracker.data_path": f"runs/{theirs.get('name', 'diffusion_policy')}",
        "tracker.log.<console>.type": "console",
    }
    if not _is_transformer(theirs):
        ours["task.backbone.head_groups"] = 8
    if any(path.startswith("logging.") for path in theirs) and theirs.get("logging.mode") != "disabled":
        ours["tracker.log.<wandb>.type"] = "wandb"
    ours |= _data(theirs) | _evaluators(theirs)
    kept = {"range_eps": 0.05} if "Kitchen" in _dataset(theirs) else {}  # theirs is in units of the data
    for key in ("action", *_low_dim(theirs)):
        ours[f"task.normalizer.{key}"] = {"type": "limits", "clip": None, **kept}
    for key, kind in _shapes(theirs).items():
        if kind == "point_cloud":
            count = theirs.get(f"task.shape_meta.obs.{key}.shape", [512])[0]
            ours[f"task.encoders.{key}"] = {"type": "points", "count": count}
    if not _averages(theirs):
        ours["train.ema"] = {}
    return ours | _rotations(theirs)


def _backbone(theirs: Theirs) -> str:
    if _is_transformer(theirs):
        return "transformer"
    return "unet1d_local" if theirs.get("obs_as_local_cond") else "unet1d"


def _sampler(theirs: Theirs) -> dict[str, Any]:
    steps = {"steps": _steps(theirs), "spacing": "diffusers"}
    if "DDIM" in str(theirs.get(f"{_SCHEDULE}._target_", "")):
        return {"type": "ddim", **steps, "eta": 0.0, "use_clipped_model_output": False}
    return {"type": "ddpm", **steps}


def _low_dim(theirs: Theirs) -> list[str]:
    """The names here of the observations that are no pictures."""
    if _is_image(theirs):
        return [_name(theirs, key) for key, kind in _shapes(theirs).items() if kind == "low_dim"]
    match _dataset(theirs):
        case "PushTLowdimDataset":
            return ["agent_pos", "keypoint"]
        case "RobomimicReplayLowdimDataset":
            return list(theirs.get("task.dataset.obs_keys", theirs.get("task.obs_keys", [])))
    return ["obs"]


def _shapes(theirs: Theirs) -> dict[str, str]:
    """The types of the observations in `shape_meta`, by their keys there."""
    found: dict[str, str] = {}
    for path in theirs:
        _, has, rest = path.partition("shape_meta.obs.")
        if has:
            key = rest.split(".")[0]
            prefix = path[: len(path) - len(rest)]
            found[key] = theirs.get(f"{prefix}{key}.type", "low_dim")
    return found


def _cameras(theirs: Theirs) -> list[str]:
    """The names here of the cameras."""
    return [_name(theirs, key) for key, kind in _shapes(theirs).items() if kind == "rgb"]


def _named(theirs: Theirs, keys: Iterable[str]) -> list[str]:
    return [_name(theirs, key) for key in keys]


def _data(theirs: Theirs) -> dict[str, Any]:
    """The episodes, and the keys of observations and action."""
    if _dataset(theirs) == _KITCHEN:
        return {
            "data.episodes": {"type": "masked_arrays", "path": theirs.get("task.dataset.dataset_dir", _NO_PATH)},
            "data.action.key": "actions_seq",
            "data.obs.obs.key": "observations_seq",
        }
    robomimic = "Robomimic" in _dataset(theirs) or str(theirs.get("task.dataset.dataset_path", "")).endswith("hdf5")
    ours: dict[str, Any] = {
        "data.episodes.type": "robomimic" if robomimic else "zarr",
        "data.episodes.path": _NO_PATH,
        "data.action": {"key": "actions" if robomimic else "action"},
    }
    if _dataset(theirs) == _REAL:
        return ours | _recorded(theirs)
    within = "obs/" if robomimic else ""
    if _is_image(theirs):
        pusht = _dataset(theirs) == "PushTImageDataset"
        for key, kind in _shapes(theirs).items():
            if kind not in _ROOMS:
                continue
            room = f"data.{_ROOMS[kind]}.{_name(theirs, key)}"
            ours[room] = {"key": "img"} if pusht and kind == "rgb" else {"key": f"{within}{key}"}
        return ours | ({"data.obs.agent_pos": _PUSHT_OBS["agent_pos"]} if pusht else {})
    for key in _low_dim(theirs):
        known = {**_PUSHT_OBS, "keypoint": {"key": "keypoint"}} if "PushT" in _dataset(theirs) else {}
        is_known = robomimic or _dataset(theirs).startswith("BlockPush")
        ours[f"data.obs.{key}"] = known.get(key, {"key": f"{within}{key}" if is_known else TO_FILL_IN})
    return ours


def _recorded(theirs: Theirs) -> dict[str, Any]:
    """The keys of their real robot: videos beside the arrays, and of poses the first two numbers where two are said."""
    flat = {"slice": [0, 2]}
    videos = f"{theirs.get('task.dataset.dataset_path', _NO_PATH)}/videos"
    ours = {"data.action": {"key": "action", **(flat if _action_shape(theirs) == [2] else {})}}
    for key, kind in _shapes(theirs).items():
        if kind == "rgb":
            ours[f"data.images.{key}"] = {"folder": videos, "file": f"{key.removeprefix('camera_')}.mp4"}
        else:
            is_flat = "pose" in key and theirs.get(f"task.shape_meta.obs.{key}.shape") == [2]
            ours[f"data.obs.{key}"] = {"key": key, **(flat if is_flat else {})}
    return ours


def _rotations(theirs: Theirs) -> dict[str, Any]:
    """Absolute poses of robomimic: the rotation of an arm is predicted as 6D, and neither quaternions nor grippers are
    normalised. Without pictures theirs divides all observations by the largest number among them."""
    if "Robomimic" not in _dataset(theirs):
        return {}
    kept = {f"task.normalizer.{key}": {"type": "identity"} for key in _low_dim(theirs) if key.endswith("quat")}
    if _dataset(theirs) == "RobomimicReplayLowdimDataset":
        kept = {f"task.normalizer.{key}": {"type": "max_abs", "clip": None} for key in _low_dim(theirs)}
    if not theirs.get("task.dataset.abs_action", theirs.get("task.abs_action", False)):
        return {**kept, "task.normalizer.action": {"type": "identity"}}
    n_arms = 2 if theirs.get("task.action_dim", 10) == 20 or _action_shape(theirs) == [20] else 1
    grippers = [{"slice": [7 * arm + 6, 7 * arm + 7], "normalizer": {"type": "identity"}} for arm in range(n_arms)]
    rotations = [{"slice": [7 * arm + 3, 7 * arm + 6], "form": "axis_angle"} for arm in range(n_arms)]
    legacy = theirs.get("task.dataset.use_legacy_normalizer", False)
    others = {"type": "max_abs" if legacy else "limits", "clip": None}
    return {
        **kept,
        "task.normalizer.action": {"type": "slices", "slices": grippers, "others": others},
        "data.action.rotations": rotations,
    }


def _action_shape(theirs: Theirs) -> Any:
    return next((value for path, value in theirs.items() if path.endswith("shape_meta.action.shape")), None)


def _evaluators(theirs: Theirs) -> dict[str, Any]:
    """Validation, the error of sampled actions, and rollouts on the seeds of test and training."""
    model = "ema" if _averages(theirs) else "online"
    ours: dict[str, Any] = {}
    if theirs.get("task.dataset.val_ratio", 0.0) > 0:
        models = ["ema", "online"] if _averages(theirs) else ["online"]
        ours |= {"evaluate.<validation>.type": "loss", "evaluate.<validation>.models": models}
    ours |= {
        "evaluate.<sampled>.type": "action_error",
        "evaluate.<sampled>.name": "train_action",
        "evaluate.<sampled>.split": "train",
        "evaluate.<sampled>.models": [model],
        "evaluate.<sampled>.n_samples": theirs.get("dataloader.batch_size", 256),
        "evaluate.<sampled>.eval_timesteps": [_steps(theirs)],
    }
    env = _environment(theirs)
    for name, n in rollouts(theirs).items() if env else ():
        ours |= {
            f"evaluate.<{name}>.type": "rollout",
            f"evaluate.<{name}>.name": name,
            f"evaluate.<{name}>.model": model,
            f"evaluate.<{name}>.env": {**env, "n_envs": theirs.get("task.env_runner.n_envs") or n},
            f"evaluate.<{name}>.first_seed": FIRST_SEEDS[name],
        }
    scores = [f"{name}/score" for name in ("test", "train") if f"evaluate.<{name}>.type" in ours]
    error = f"train_action/{model}/mse[steps={_steps(theirs)}]"
    loss = f"validation/{model}/loss" if "evaluate.<validation>.type" in ours else error
    monitor = {"metric": scores[0], "mode": "max"} if scores else {"metric": loss, "mode": "min"}
    return {**ours, "train.monitor": monitor}


def _environment(theirs: Theirs) -> dict[str, Any] | None:
    shapes = {key: theirs.get(f"task.shape_meta.obs.{key}.shape", [3, 96, 96]) for key in _cameras(theirs)}
    return environment(theirs, {key: list(shape[1:]) for key, shape in shapes.items()})


def monitored(key: str, theirs: Theirs, *names: str) -> Here:
    """The metric here of a metric there, and its mode.

    Raises:
        NoCounterpart: the translated run does not measure such a metric.
    """
    model = "ema" if _averages(theirs) else "online"
    metrics = {
        "test_mean_score": ("test", "test/score"),
        "train_mean_score": ("train", "train/score"),
        "val_loss": ("validation", f"validation/{model}/loss"),
        "train_action_mse_error": ("sampled", f"train_action/{model}/mse[steps={_steps(theirs)}]"),
    }
    if key not in metrics:
        raise NoCounterpart(f"{key!r} selects no checkpoint here; choose a metric of `evaluate`")
    entry, metric = metrics[key]
    if key.endswith("_score") and _environment(theirs) is None:
        raise NoCounterpart("the translated run has no rollouts, since their environment is not here")
    if f"evaluate.<{entry}>.type" not in _evaluators(theirs):
        raise NoCounterpart(f"nothing measures {key!r} in the translated run; choose a metric of `evaluate`")
    mode = theirs.get("checkpoint.topk.mode", "max")
    return Here({"train.monitor.metric": metric, "train.monitor.mode": mode})


def average(name: str, shift: int = 0) -> Any:
    """A function of a setting of `ema`, which has no effect without an average."""

    def to(value: Any, theirs: Theirs, *names: str) -> Here:
        if not _averages(theirs):
            raise NoCounterpart("without `training.use_ema` it has no effect")
        return Here({f"train.ema.ema.{name}": value + shift, "train.ema.ema.type": "power"})

    return to


def no_average(use: bool, theirs: Theirs, *names: str) -> Here:
    """The average, or none."""
    return Here({"train.ema.ema.type": "power"} if use else {"train.ema": {}})


def per_camera(field: str) -> Any:
    """A function of a setting of all cameras, the same for every encoder, or of one by its name."""

    def to(value: Any, theirs: Theirs, *names: str) -> Here:
        shared = theirs.get("policy.obs_encoder.share_rgb_model", False)
        read = _cameras(theirs)[: 1 if shared else None]
        rooms = [f"task.encoders.{key}" for key in read if not names or key in _named(theirs, names)]
        if not rooms:
            raise NoCounterpart(f"no encoder of {', '.join(names) or 'a camera'}, which `shape_meta` would name")
        types = {f"{room}.type": "resnet" for room in rooms}
        return Here({**types, **{f"{room}.{field}": value for room in rooms}})

    return to


def shared_encoders(is_shared: bool, theirs: Theirs, *names: str) -> Here:
    """All cameras but the first are read by the encoder of the first."""
    names = _cameras(theirs)
    return Here({f"task.shared_encoders.{key}": names[0] for key in names[1:] if is_shared})


def crop(shape: list[int] | None, theirs: Theirs, *names: str) -> Here:
    """The crop of the encoders of all cameras, or of one; without `random_crop` theirs does not crop."""
    return per_camera("crop")(shape if theirs.get("policy.obs_encoder.random_crop", True) else None, theirs, *names)


def norm(is_group: bool, theirs: Theirs, *names: str) -> Here:
    """The norm of the encoders of all cameras; a shared encoder always has batch norm there.

    Raises:
        NoCounterpart: it is batch norm, whose statistics come with weights here.
    """
    if not is_group or theirs.get("policy.obs_encoder.share_rgb_model", False):
        raise NoCounterpart(BATCH_NORM)
    return per_camera("norm")("group", theirs)


def imagenet(is_normed: bool, theirs: Theirs, *names: str) -> Here:
    """ImageNet's mean and standard deviation, for the encoders of all cameras."""
    if not is_normed:
        return Here()
    mean = per_camera("mean")([0.485, 0.456, 0.406], theirs)
    return Here({**mean, **per_camera("std")([0.229, 0.224, 0.225], theirs)})


def resnet(name: str, theirs: Theirs, *names: str) -> Here:
    """The blocks of torchvision's ResNet with the mean of its maps.

    Raises:
        NoCounterpart: another network.
    """
    blocks, bottleneck = _BLOCKS(name, theirs)
    ours = {**per_camera("blocks")(blocks, theirs), **per_camera("bottleneck")(bottleneck, theirs)}
    return Here({**ours, **per_camera("pool")("mean", theirs), **per_camera("output_dim")(None, theirs)})


def size(shape: list[int], theirs: Theirs, key: str) -> Here:
    """Height and width of a camera's frames.

    Raises:
        NoCounterpart: it is no camera, or its frames are resized.
    """
    if _shapes(theirs).get(key) != "rgb":
        raise NoCounterpart("the data say it")
    if theirs.get("policy.obs_encoder.resize_shape") or theirs.get(f"policy.obs_encoder.resize_shape.{key}"):
        raise NoCounterpart("frames are resized to `policy.obs_encoder.resize_shape`")
    return Here({f"data.images.{_name(theirs, key)}.size": shape[1:]})


def kind(word: str, theirs: Theirs, key: str) -> Here:
    """An observation, which has its place by its kind.

    Raises:
        NoCounterpart: another kind.
    """
    if word not in _ROOMS:
        raise NoCounterpart(f"{word!r} has no counterpart, so {key} is not observed; those of {', '.join(_ROOMS)} have")
    place = f"data.{_ROOMS[word]}.{_name(theirs, key)}"
    return Here({f"{place}.{name}": value for name, value in _data(theirs)[place].items() if name in ("key", "file")})


def folder(path: str, theirs: Theirs, *names: str) -> str:
    """The folder of the kitchen's arrays.

    Raises:
        NoCounterpart: it holds logs of a simulator.
    """
    if _dataset(theirs) != _KITCHEN:
        raise NoCounterpart(
            "logs of MuJoCo (.mjl) are not read; save their `qpos` and `ctrl` as `obs` and `action` "
            "(docs/own_data.md) and set data.episodes"
        )
    return path


def replay_buffer(path: str, theirs: Theirs, *names: str) -> str:
    """The data set; their real robot's lies in a folder beside its videos."""
    return f"{path}/replay_buffer.zarr" if _dataset(theirs) == _REAL else path


def observations(keys: list[str], theirs: Theirs, *names: str) -> Here:
    """Low-dimensional observations of robomimic, by their keys."""
    return Here({f"data.obs.{key}.key": f"obs/{key}" for key in keys})


def validation(ratio: float, theirs: Theirs, *names: str) -> Here:
    """The parts of training and validation."""
    return Here({"data.split.train": round(1 - ratio, 6), "data.split.val": ratio})


def rotation(value: Any, theirs: Theirs, *names: str) -> Here:
    """The rotations of absolute actions.

    Raises:
        NoCounterpart: actions are relative.
    """
    found = _rotations(theirs).get("data.action.rotations")
    if not found:
        raise NoCounterpart("actions without absolute poses are taken as they are")
    return Here({"data.action.rotations": found})


def legacy_normalizer(is_legacy: bool, theirs: Theirs, *names: str) -> Here:
    """The normalizer of absolute actions; relative actions have none."""
    found = _rotations(theirs).get("task.normalizer.action", {})
    return Here({"task.normalizer.action": found} if "others" in found else {})


def previous(is_seen: bool, theirs: Theirs, *names: str) -> str | None:
    """The name of the observation of past actions."""
    return "previous_action" if is_seen else None


def class_of(*known: str) -> Any:
    """A function of the name of a class: a known class follows from its settings, other classes are not here."""

    def to(target: str, theirs: Theirs, *names: str) -> Here:
        name = target.rpartition(".")[2]
        if name not in known:
            raise NoCounterpart(f"{name} is not here, and its settings are read as those of {' or '.join(known)}")
        return Here()

    return to


def scheduler(target: str, theirs: Theirs, *names: str) -> Here:
    """The sampler.

    Raises:
        NoCounterpart: another one than DDPM and DDIM.
    """
    class_of("DDPMScheduler", "DDIMScheduler")(target, theirs)
    return built(skeleton, "task.sampler")(target, theirs)


def eta(share: float, theirs: Theirs, *names: str) -> Here:
    """The share of fresh noise.

    Raises:
        NoCounterpart: the sampler is not DDIM.
    """
    if _sampler(theirs)["type"] != "ddim":
        raise NoCounterpart("DDPM has no such value, there neither")
    return Here({"task.sampler.eta": share})


def inference_steps(steps: int | None, theirs: Theirs, *names: str) -> int:
    """The number of sampling steps."""
    return _steps(theirs)


def optimizer(target: str, theirs: Theirs, *names: str) -> Here:
    """The optimizer.

    Raises:
        NoCounterpart: another one than AdamW and Adam.
    """
    if target.rpartition(".")[2] not in ("AdamW", "Adam"):
        raise NoCounterpart(f"{target!r} has no counterpart; `adamw` is taken. For others see docs/extending.md")
    return Here({"train.optimizer.type": "adamw"})


def word(name: Any, theirs: Theirs, *names: str) -> str | None:
    """A name, which may be a number there, such as the seed."""
    return None if name is None else str(name)


def words(tags: list[Any], theirs: Theirs, *names: str) -> list[str]:
    """Several names."""
    return [str(tag) for tag in tags]


def both(field: str) -> Any:
    """A function of a setting of the environment, which test and train rollouts share."""

    def to(value: Any, theirs: Theirs, *names: str) -> Here:
        if _environment(theirs) is None:
            raise NoCounterpart(
                "the translated run has no rollouts, since their environment is not here; see docs/environments.md"
            )
        return Here({f"evaluate.<{name}>.{field}": value for name in rollouts(theirs)} if value is not None else {})

    return to


def epochs(entries: tuple[str, ...]) -> Any:
    """A function of a cadence in epochs, for these evaluators."""

    def to(value: float, theirs: Theirs, *names: str) -> Here:
        present = [entry for entry in entries if f"evaluate.<{entry}>.type" in _evaluators(theirs)]
        if not present:
            raise NoCounterpart("the translated run has no evaluator to which this belongs")
        return Here({f"evaluate.<{entry}>.every.epochs": value for entry in present})

    return to


def resized(shape: list[int] | None, theirs: Theirs, *names: str) -> Here:
    """The size of the frames of all cameras, or of one."""
    cameras = _named(theirs, names) if names else _cameras(theirs)
    return Here({f"data.images.{key}.size": shape for key in cameras if shape is not None and key in _cameras(theirs)})


def rotation_form(form: str, theirs: Theirs, *names: str) -> Here:
    """The only form that policies predict.

    Raises:
        NoCounterpart: another form.
    """
    if form != "rotation_6d":
        raise NoCounterpart("policies predict rotations as 6D")
    return rotation(form, theirs)


def val_samples(batches: int | None, theirs: Theirs, *names: str) -> Here:
    """Samples of validation, of a number of its batches."""
    if batches is None:
        return Here()
    return Here({"evaluate.<validation>.max_samples": batches * theirs.get("val_dataloader.batch_size", 256)})


def runner(target: str, theirs: Theirs, *names: str) -> Here:
    """The environment of a runner.

    Raises:
        NoCounterpart: none of ours.
    """
    if _environment(theirs) is None:
        raise NoCounterpart("their environment is not here; see docs/environments.md for one of gymnasium")
    return built(skeleton, "evaluate.<test>.env", "evaluate.<train>.env")(target, theirs)


def episodes(name: str) -> Any:
    """A function of the number of episodes of test or training seeds; rollouts have 2 at least."""

    def to(n: int, theirs: Theirs, *names: str) -> Here:
        if n < 2:
            raise NoCounterpart("a rollout has at least 2 episodes, so this one is left out")
        return Here({f"evaluate.<{name}>.n_episodes": n})

    return to


def monitor_mode(mode: str, theirs: Theirs, *names: str) -> Here:
    """The mode of the monitored metric, if that is translated."""
    return monitored(theirs.get("checkpoint.topk.monitor_key", "test_mean_score"), theirs)
