"""Choices that several libraries name alike, of torch, diffusers, torchvision and wandb, and their values here."""

from __future__ import annotations

import re
from typing import Any

from dp_prior_foreign.translation.row import NoCounterpart, OurSettings, Row, TheirSettings, Words

FREE_NORM = 1e9
"""`train.max_grad_norm` for libraries that do not clip gradients."""

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Mean and standard deviation of torchvision's weights, of RGB in [0, 1]."""

BATCH_NORM = (
    "group norm is taken: batch norm keeps the statistics of pretrained weights here; give them as a safetensors file, "
    "task.encoders.NAME.weights, and set norm frozen_batch"
)
DECAY_REMARK = "theirs decays biases and norms too, here weights alone"
NO_LOADERS = "batches are read without worker processes; nothing to set"
FREEZE_BY_WEIGHTS = "give the pretrained weights as a safetensors file, task.encoders.NAME.weights, and set freeze"

BETA_SCHEDULES = Words(
    {"squaredcos_cap_v2": "cosine", "linear": "linear", "scaled_linear": "scaled_linear", "sigmoid": "sigmoid_beta"}
)
"""Schedules of diffusers, by its names."""

PREDICTIONS = Words({"epsilon": "eps", "sample": "x0", "v_prediction": "v"})
"""Prediction types of diffusers."""

SPACINGS = Words({"leading": "diffusers", "trailing": "trailing"})
"""Timestep spacings of diffusers."""

VARIANCES = Words(
    {
        "fixed_small": "fixed_small",
        "fixed_small_log": "fixed_small",
        "fixed_large": "fixed_large",
        "fixed_large_log": "fixed_large",
        "learned": "learned",
        "learned_range": "learned_range",
    }
)
"""Variance types of diffusers."""

RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": [2, 2, 2, 2]},
    "resnet34": {"blocks": [3, 4, 6, 3]},
    "resnet50": {"blocks": [3, 4, 6, 3], "bottleneck": True},
    "resnet101": {"blocks": [3, 4, 23, 3], "bottleneck": True},
    "resnet152": {"blocks": [3, 8, 36, 3], "bottleneck": True},
}
"""torchvision's networks, as fields of the encoder here."""

LEARNING_RATES = Words(
    {
        "cosine": {"type": "cosine"},
        "linear": {"type": "linear"},
        "constant": {"type": "constant", "warmup_steps": 0},
        "constant_with_warmup": {"type": "constant"},
        "cosine_with_restarts": {"type": "cosine_restarts", "cycles": 1},
        "polynomial": {"type": "linear"},
    }
)
"""Learning rates of diffusers' `get_scheduler`, with its defaults."""


LONGEST_TASK = 80
"""Most characters of a task's name in the name of a run directory."""


def run_directory(method: str, *origins: Any) -> str:
    """The run directory of a method on a task, so that two tasks of one method have two directories.

    Args:
        origins: names of the task, or paths and addresses of its data; the first without a formula counts.
    """
    for origin in origins:
        words = re.findall(r"[\w.-]+", origin) if isinstance(origin, str) and "${" not in origin else []
        names = [word.rstrip(".")[:LONGEST_TASK] for word in words if word.strip(".-")]
        if names:
            return f"runs/{method}_{names[-1]}"
    return f"runs/{method}"


def betas(settings: TheirSettings, section: str) -> dict[str, float]:
    """The ends of diffusers' betas that settings leave out, by path; here their defaults depend on the timesteps.

    Args:
        section: the path of the scheduler's arguments. Empty without a schedule among them, and for the cosine.
    """
    if settings.get(f"{section}.beta_schedule", "squaredcos_cap_v2") == "squaredcos_cap_v2":
        return {}
    return {f"{section}.beta_start": 1e-4, f"{section}.beta_end": 0.02}


def beta_rows(section: str, default: str = "linear", n_steps: int = 1000) -> list[Row]:
    """Rows of both ends of diffusers' betas: here they are stated for 1000 timesteps and scaled to the others.

    Args:
        section: the path of the object that holds them, their schedule and its number of timesteps.
        default, n_steps: the schedule and its number of timesteps where they are omitted.
    """

    def to(value: float, settings: TheirSettings) -> float:
        if settings.get(f"{section}.beta_schedule", default) == "squaredcos_cap_v2":
            raise NoCounterpart("the cosine schedule has no such value, there neither")
        return value * settings.get(f"{section}.num_train_timesteps", n_steps) / 1000

    note = "stated for 1000 timesteps: theirs times T / 1000; cosine has none"
    return [Row(f"{section}.{end}", f"task.diffusion.schedule.{end}", note, to) for end in ("beta_start", "beta_end")]


def clip_rows(section: str) -> list[Row]:
    """Rows of diffusers' `clip_sample` and `clip_sample_range`, which are one clip of x_0 here.

    Args:
        section: the path of the object that holds them.
    """

    def to(value: Any, settings: TheirSettings) -> OurSettings:
        bound = float(settings.get(f"{section}.clip_sample_range", 1.0))
        is_clipped = settings.get(f"{section}.clip_sample", True)
        return OurSettings({"task.diffusion.clip": {"type": "fixed", "bound": bound} if is_clipped else None})

    return [
        Row(f"{section}.clip_sample", "task.diffusion.clip", "true: fixed; false: null", to),
        Row(f"{section}.clip_sample_range", "task.diffusion.clip.bound", "", to),
    ]


def warm_up(schedule: str) -> Any:
    """A function of the warm-up of diffusers' learning rates, which `constant` does without."""

    def to(steps: int, settings: TheirSettings) -> int:
        if settings.get(schedule) == "constant":
            raise NoCounterpart("the constant rate has none, there neither")
        return steps or 0

    return to


def wandb(is_used: bool, settings: TheirSettings) -> Any:
    """Whether wandb is among the loggers: its type, or nothing."""
    return "wandb" if is_used else OurSettings()


def wandb_mode(mode: str | None, settings: TheirSettings) -> str | None:
    """The mode of wandb."""
    if mode == "disabled":
        raise NoCounterpart("leave wandb out of tracker.log")
    return mode


def half(is_set: bool, settings: TheirSettings) -> float:
    """The share of samples for a choice that the other library makes for half of the samples, or never."""
    return 0.5 if is_set else 0.0
