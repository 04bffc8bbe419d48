"""The policies among which is selected: checkpoints of short trainings of the main job and of changes of it."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks import training
from benchmarks.selection.measures import measures
from benchmarks.study.design import ADAMW, FACTORS, TWO, UNET, Settings
from benchmarks.study.measure import AVERAGES, thousandths
from dp_prior import load_policy
from dp_prior.checkpoints.documents import CONFIG
from dp_prior.envs.pusht import PushTConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.run.files.config import TrainConfig

CONFIGURATION = "pusht_state"
SAMPLES, CHECKPOINTS = 100_000, 4
"""Of a training; its checkpoints are evenly spread."""

NARROW: Settings = {"task.backbone": UNET | {"down_dims": [16, 32, 64]}}
"""Half as wide as the main job; of all trainings that name no other."""

TRAININGS: dict[str, Settings] = {  # of one objective and horizon, so that their losses compare
    "main job": {},
    "half the data": FACTORS["data"]["half"],
    "AdamW": ADAMW,
    "two observations": TWO,
    "state": FACTORS["observation"]["state"],
    "wide": {"task.backbone": UNET},
}


def train(name: str, runs: Path) -> list[Path]:
    """Train to the end, or continue; gives the checkpoints but the first, which has hardly learned to act."""
    directory = runs / name.replace(" ", "_")
    changes = {
        "train.samples": SAMPLES,
        "train.ema": AVERAGES,
        "train.save_every": {"samples": SAMPLES // CHECKPOINTS},
        "train.monitor": {"metric": "validation/ema/loss", "mode": "min"},
        "checkpoints.keep_latest": CHECKPOINTS,
        "evaluate": [{"type": "loss", "every": {"samples": SAMPLES}}],
        "test": [],
        **NARROW,
        **TRAININGS[name],
    }
    training.train(CONFIGURATION, changes, directory)
    return sorted((directory / "checkpoints").glob("step_*"))[1:]


def measured(checkpoint: Path) -> dict[str, float]:
    """The cheap measures of a checkpoint."""
    record = TrainConfig.from_json_path(checkpoint / CONFIG)
    data = record.data.create(record.task.horizon, record.task.n_obs_steps, record.task.n_action_steps)
    models = {average: load_policy(checkpoint, weights=average).eval() for average in AVERAGES}
    return {name: round(value, 6) for name, value in measures(models, data).items()}


def played(checkpoint: Path, seeds: range) -> list[int]:
    """The scores of a checkpoint in thousandths."""
    record = RolloutConfig(env=PushTConfig(n_envs=len(seeds)), first_seed=seeds[0], videos=0)
    with torch.no_grad(), record.create().playing(load_policy(checkpoint).eval()) as play:
        return [thousandths(row["score"]) for row in play(range(len(seeds)))]
