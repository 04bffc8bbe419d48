"""`python -m benchmarks.robots DATA`: held-out action error on recorded robots, with and without their camera.

Every episode is held out once; one policy per episode and kind of observation is trained on the others. A run that is
there already is not trained again, so the command may be stopped and repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dp_prior.data.split import SplitConfig

ERROR = "action_error/ema/mae[steps=8]"
KINDS = ("state", "state and camera", "camera")


@dataclass(frozen=True)
class Robot:
    """A LeRobot data set with one camera. Attributes: folder: below the directory of all data sets."""

    title: str
    folder: str
    camera: str
    size: tuple[int, int]
    n_episodes: int


ROBOTS = {
    "cr5": Robot("Dobot CR5, real, 3 episodes", "cr5_banana_plate/lerobot", "observation.images.top", (96, 128), 3),
    "gr1": Robot(
        "GR-1, simulated, 5 episodes", "gr00t_gr1_picknplace/lerobot", "observation.images.ego_view", (96, 96), 5
    ),
}


def held_out_by(episode: int, n_episodes: int) -> SplitConfig:
    """A split whose validation part is this one episode."""
    splits = (SplitConfig(train=1 - 1 / n_episodes, val=1 / n_episodes, seed=seed) for seed in itertools.count())
    return next(split for split in splits if split.assign(n_episodes).val == [episode])


def configuration(robot: Robot, kind: str, episode: int, data: Path, run: Path, samples: int) -> dict[str, Any]:
    """What trains one policy."""
    split = held_out_by(episode, robot.n_episodes)
    return {
        "seed": 0,
        "task": {
            "type": "policy",
            "horizon": 16,
            "n_obs_steps": 1,
            "n_action_steps": 8,
            "encoders": {"camera": {"type": "resnet", "width": 32, "blocks": [1, 1, 1], "stem": "patch"}}
            if "camera" in kind
            else {},
            "backbone": {"type": "unet1d", "down_dims": [32, 64, 128], "step_embed_dim": 64},
            "diffusion": {"objective": {"type": "v"}, "weighting": {"type": "min_snr"}, "draws": 4},
            "sampler": {"type": "ddim", "steps": 8},
        },
        "data": {
            "type": "trajectories",
            "episodes": {"type": "lerobot", "path": str(data / robot.folder)},
            "obs": {"state": {"key": "observation.state"}} if "state" in kind else {},
            "images": {"camera": {"key": robot.camera, "size": robot.size}} if "camera" in kind else {},
            "frame_cache": str(run.parent / "frames"),
            "action": {"key": "action"},
            "split": {"train": split.train, "val": split.val, "seed": split.seed},
            "batch_size": 64,
        },
        "train": {
            "samples": samples,
            "precision": "bf16",
            "lr": {"type": "cosine", "peak": 1e-3, "warmup_steps": 50},
            "ema": {"ema": {"type": "power", "max_decay": 0.99}},
            "monitor": {"metric": "validation/ema/loss", "mode": "min"},
            "save_every": {"samples": samples},
        },
        "evaluate": [
            {"type": "loss", "every": {"samples": samples}},
            {"type": "action_error", "every": {"samples": samples}, "eval_timesteps": [8]},
        ],
        "tracker": {"data_path": str(run)},
    }


def error_of(run: Path) -> float:
    """Mean absolute error of the executed actions at the end of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row[ERROR] for row in rows if ERROR in row][-1]


def train(robot: Robot, kind: str, episode: int, data: Path, run: Path, samples: int) -> None:
    """Train one policy, in a process of its own, unless it is finished."""
    if (run / "result.json").exists():
        return
    run.parent.mkdir(parents=True, exist_ok=True)
    config = run.with_suffix(".json")
    config.write_text(json.dumps(configuration(robot, kind, episode, data, run, samples)), encoding="utf-8")
    command = [sys.executable, "train_policy.py", "--config_file", str(config)]
    with open(run.with_suffix(".log"), "a", encoding="utf-8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, "ACCELERATE_USE_CPU": "true"})


@click.command(help=__doc__)
@click.argument("data", type=click.Path(path_type=Path, exists=True))
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/robots"), help="Where the runs go.")
@click.option("--samples", default=20_000, help="Budget of each policy.")
def main(data: Path, runs: Path, samples: int) -> None:
    click.echo(f"| robot | held out | {' | '.join(KINDS)} |\n|---|---|{'---|' * len(KINDS)}")
    for name, robot in ROBOTS.items():
        errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for episode in range(robot.n_episodes):
            for kind in KINDS:
                run = runs / f"{name}_{episode}_{kind.replace(' ', '_')}"
                train(robot, kind, episode, data, run, samples)
                errors[kind].append(error_of(run))
            click.echo(f"| {robot.title} | {episode} | {' | '.join(f'{errors[kind][-1]:.4g}' for kind in KINDS)} |")
        click.echo(f"| | mean | {' | '.join(f'{statistics.mean(errors[kind]):.4g}' for kind in KINDS)} |")


if __name__ == "__main__":
    main()
