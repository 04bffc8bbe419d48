"""A configuration that trains on a data set: where own data begin."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.data.selection import ACTION
from dp_prior.inspection.survey import Survey
from dp_prior.run_files.config import TrainConfig

PICTURE = 96
"""Pixels of the shorter side of a frame as the network sees it."""

USUAL_RATE = 10.0
"""Control steps per second at which a horizon of 16 is usual."""

_SMALL_CAMERA = {"type": "resnet", "width": 32, "blocks": [1, 1, 1], "stem": "patch"}


def propose_data(seen: Survey, episodes: dict[str, Any], cameras: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """`data` of a configuration: every observation, the action and these cameras.

    Args:
        episodes: `data.episodes`.
        cameras: height and width of the frames that can be read, by key.
    """
    observations = [signal.key for signal in seen.of("observation")]
    names = _names([*observations, *cameras])
    data: dict[str, Any] = {"episodes": episodes}
    if observations:
        data["obs"] = {names[key]: {"key": key} for key in observations}
    if cameras:
        data["images"] = {names[key]: {"key": key, "size": _reduced(size)} for key, size in cameras.items()}
    for signal in seen.of("action"):
        data["action"] = {"key": signal.key}
    return data


def propose(name: str, data: dict[str, Any], fps: float | None) -> dict[str, Any]:
    """A whole configuration around `data`.

    Raises:
        ConfigError: it names no action or no observation, so nothing can be trained.
    """
    if data.get("type") == "embeddings":
        task: dict[str, Any] = {
            "type": "prior",
            "backbone": {"type": "prior_transformer", "embed_dim": 256, "n_layers": 2, "n_heads": 4, "dropout": 0.2},
        }
        measured = {"type": "loss", "every": {"samples": 20_000}}
        metric = "validation/ema/loss"
    else:
        missing = [what for what in ("action",) if what not in data] + ["obs"] * (not {"obs", "images"} & data.keys())
        if missing:
            problem = f"no key looks like {' or '.join(missing)}; name it in data.{missing[0]} yourself (docs/data.md)"
            raise ConfigError(name, [problem])
        steps = 2 ** min(2, max(0, round(math.log2((fps or USUAL_RATE) / USUAL_RATE))))
        task = {
            "horizon": 16 * steps,
            "n_obs_steps": 2,
            "n_action_steps": 8 * steps,
            "backbone": {"type": "unet1d", "down_dims": [32, 64, 128], "step_embed_dim": 64},
            "diffusion": {"objective": {"type": "v"}, "weighting": {"type": "min_snr"}},
            "sampler": {"type": "ddim", "steps": 8},
        }
        if data.get("images"):
            task["encoders"] = dict.fromkeys(data["images"], _SMALL_CAMERA)
        measured = {"type": "action_error", "every": {"samples": 100_000}, "eval_timesteps": [8]}
        metric = "action_error/ema/mse[steps=8]"
    proposal = {
        "description": f"First settings for {name}, by dp-prior inspect.",
        "task": task,
        "data": data,
        "train": {
            "samples": 1_000_000,
            "lr": {"type": "cosine", "peak": 1e-3, "warmup_steps": 200},
            "monitor": {"metric": metric},
            "save_every": {"samples": 100_000},
        },
        "evaluate": [{"type": "loss", "every": {"samples": 100_000}}, measured][measured["type"] == "loss" :],
        "tracker": {"data_path": f"runs/{_plain(name)}"},
    }
    TrainConfig.from_json(json.dumps(proposal), source=name)
    return proposal


def _names(keys: list[str]) -> dict[str, str]:
    """The policy's name of each key: its last part, or all of it where two would be the same."""
    short = {key: _plain(re.split(r"[./]", key)[-1]) for key in keys}
    taken = [*short.values(), ACTION]
    return {key: name if taken.count(name) == 1 else _plain(f"obs_{key}") for key, name in short.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "data"


def _reduced(size: tuple[int, int]) -> list[int]:
    """Height and width at which the shorter side has at most `PICTURE` pixels."""
    scale = min(1.0, PICTURE / min(size))
    return [max(1, round(length * scale)) for length in size]
