"""`python -m benchmarks.fine_tuning`: a camera policy fine-tuned to another action size, beside training from scratch.

Trains a small camera policy of Push-T, then policies of Push-T with a tool (`benchmarks/pusht_tool.py`), whose actions
have a third number, on a few demonstrations that the first policy has not seen: from its weights, where they fit, with
a lower learning rate, and from scratch, with the same seeds and samples, which take the same minutes. What is there
already is not done again, so the command may be stopped and repeated.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import training
from benchmarks.kept import Kept
from benchmarks.pusht_tool import write_tool_demonstrations
from dp_prior.envs.expert_demonstrations import read_demonstrations, write_episodes
from dp_prior.evaluation.interval import mean_interval

CONFIG = "pusht_image"
ADDED_PARTS = "--import", "benchmarks.added_parts"
PRETRAINING, FEW = 400, slice(800, 840)
"""Demonstrations of the first policy, the first ones, and of the others."""

FINE_TUNING_PEAK = 2e-3
"""Learning rate of fine-tuning; training from scratch keeps the 5e-3 of the main job."""

SMALL = {
    "task.encoders.camera.width": 16,
    "task.encoders.camera.crop": [42, 42],
    "task.backbone.down_dims": [32, 64],
    "task.diffusion.draws": 2,
    "data.images.camera.size": [48, 48],
    "train.precision": "fp32",
    "train.monitor": {"metric": "validation/ema/loss", "mode": "min"},
    "test": [],
}
"""Changes to every run: smaller pictures and networks than in the main job."""

TOOL = {
    "task.relative_to": None,
    "task.arms": [{"type": "offset", "action": [0, 2], "key": "agent_pos"}],
    "train.lr.warmup_steps": 25,
}
"""Changes to a policy with a tool, of which only the position is relative."""


def pretrain(runs: Path, demonstrations: Path, samples: int) -> Path:
    """The run of the first policy."""
    run, data = runs / "pretrained", runs / "pusht.npz"
    if not data.exists():
        states, actions, ends = read_demonstrations(demonstrations)
        rows = np.split(np.arange(len(states)), ends[:-1])[:PRETRAINING]
        write_episodes(data, [(states[one], actions[one]) for one in rows])
    training.train(CONFIG, SMALL | budget(samples) | {"data.episodes.path": str(data)}, run)
    return run


def budget(samples: int) -> dict[str, Any]:
    """Changes to a run of so many samples, which is measured at its end alone."""
    every = {"samples": samples}
    return {"train.samples": samples, "train.save_every": every, "evaluate": [{"type": "loss", "every": every}]}


def settings(data: Path, samples: int, seed: int, pretrained: Path | None, episodes: int) -> dict[str, Any]:
    """Changes to the main job for a policy with a tool; None trains it from scratch."""
    start = {"path": str(pretrained), "may_differ": ["normalizer.x", "backbone"]}
    rollout = {
        "type": "rollout",
        "name": "test",
        "env": {"type": "pusht_tool", "camera": [48, 48]},
        "first_seed": 100_000,
        "n_episodes": episodes,
        "videos": 0,
    }
    others = {"data.episodes.path": str(data), "seed": seed, "test": [rollout]}
    fine_tuning = {} if pretrained is None else {"train.init_from": start, "train.lr.peak": FINE_TUNING_PEAK}
    return SMALL | TOOL | budget(samples) | others | fine_tuning


def measured(run: Path) -> dict[str, float]:
    """The score of a run, its interval over the episodes, and the share of solved ones."""
    found = json.loads((run / "result.json").read_text(encoding="utf-8"))["test"]
    names = ("score", "score_ci_low", "score_ci_high", "success_rate")
    return {name: found[f"test/{name}"] for name in names}


def rows(results: dict[str, dict[str, float]], seeds: int) -> list[dict[str, Any]]:
    """A row for each start: the score of each seed, and their mean with its interval over the seeds."""
    found = []
    for start in ("pretrained", "scratch"):
        runs = [results[f"{start} {seed}"] for seed in range(seeds)]
        scores = [run["score"] for run in runs]
        low, high = mean_interval(np.array(scores), limits=(0.0, 1.0))
        found.append(
            {
                "start": start,
                **{f"seed {seed}": score for seed, score in enumerate(scores)},
                "mean": {"score": statistics.mean(scores), "interval": [low, high]},
                "solved, %": {"percent": round(100 * statistics.mean(run["success_rate"] for run in runs))},
            }
        )
    return found


@click.command(help=__doc__)
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=Path("demonstrations/pusht.npz"))
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/fine_tuning"), help="Where the runs go.")
@click.option("--pretraining", default=160_000, show_default=True, help="Samples of the first policy.")
@click.option("--samples", default=32_000, show_default=True, help="Of each policy with a tool.")
@click.option("--seeds", default=3, show_default=True, help="Trainings of each kind.")
@click.option("--episodes", default=50, show_default=True, help="Test episodes of each training.")
def main(data: Path, runs: Path, pretraining: int, samples: int, seeds: int, episodes: int) -> None:
    runs = runs.resolve()
    kept = Kept(runs / "scores.jsonl", pretraining=pretraining, samples=samples, episodes=episodes)
    few = runs / "tool.npz"
    if not few.exists():
        write_tool_demonstrations(data, few, FEW)
    pretrained = pretrain(runs, data, pretraining)
    for seed in range(seeds):
        for start, weights in (("pretrained", pretrained), ("scratch", None)):
            if (name := f"{start} {seed}") not in kept.results:
                run = runs / name.replace(" ", "_")
                training.train(CONFIG, settings(few, samples, seed, weights, episodes), run, *ADDED_PARTS)
                kept.note(name, measured(run))
    click.echo(json.dumps(rows(kept.results, seeds), indent=1))


if __name__ == "__main__":
    main()
