"""`python -m benchmarks.bodies`: one network for three robots, and what it gives to a task that it has never seen.

Records the demonstrations of `configs/policy/three_bodies.json` by scripted experts and trains that network, and a
policy of each robot alone on its share of the samples in as many steps, with the same architecture. Then it trains
policies of the Sawyer for another task of Meta-World on a few demonstrations, with the same seeds, samples and
architecture: from the weights of the network, with a lower learning rate and with that of the network, and from noise.
What is there already is not done again, so the command may be stopped and repeated, and more seeds go on where fewer
ended.
"""

from __future__ import annotations

import itertools
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import training
from benchmarks.results_file import ResultsFile
from dp_prior.evaluation.interval import SHARE, mean_interval, of_difference
from dp_prior.files.regular_files import read_object
from dp_prior_foreign.embed import embed_data
from dp_prior_worlds.demonstrations import write_demonstrations
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS

CONFIG = "three_bodies"
FILES = {"sawyer": "metaworld", "aloha": "transfer_cube", "panda": "lift"}
"""Names of the files of demonstrations by robot."""

BODY = "sawyer"
TASKS = ("reach-v3", "push-v3", "door-open-v3", "drawer-open-v3", "button-press-topdown-v3")
"""What the network learns of the Sawyer."""

NEW_TASK = "pick-place-v3"
DEMONSTRATIONS = {"metaworld": 50, "transfer_cube": 60, "lift": 60}
"""By file, of each task that the network learns."""

FEW = 10, 25, 50
"""Demonstrations of the new task."""

STARTS = {"joint": (True, 2e-3), "joint_fast": (True, 5e-3), "noise": (False, 5e-3)}
"""Whether the weights of the network are taken, and the learning rate, which is that of the network where none are."""

BATCH = 128
MAX_STEPS = 200
"""Control steps of a test episode; the expert needs about 60."""


def record(runs: Path) -> None:
    """Record what is missing of the demonstrations of all robots and of the new task, and embed the instructions."""
    episodes = {**DEMONSTRATIONS, "new_task": max(FEW)}
    for name, task, noise in (
        ("metaworld", TASKS, 0.0),
        ("transfer_cube", "transfer_cube", 1.0),
        ("lift", "Lift", 1.0),
        ("new_task", NEW_TASK, 0.0),
    ):
        if not (path := runs / f"{name}.npz").exists():
            write_demonstrations(path, task, episodes[name], noise=noise)
    embed_data("hashed", runs / "texts", recipe_path(), training.assignments(places(runs)), "instruction", click.echo)
    (runs / "few.json").write_text(json.dumps(few_config(runs), indent=2))
    embed_data("hashed", runs / "new_texts", runs / "few.json", [], "instruction", click.echo)


def recipe_path() -> Path:
    """The configuration of the network."""
    return training.ROOT / f"configs/policy/{CONFIG}.json"


def places(runs: Path) -> dict[str, str]:
    """Changes to the configuration of the network: where its data are."""
    changes = {f"data.sets.{body}.episodes.path": str(runs / f"{name}.npz") for body, name in FILES.items()}
    return changes | {"data.sets.sawyer.language.instruction.folder.path": str(runs / "texts")}


def robot_config(body: str, episodes: Path, batch: int) -> dict[str, Any]:
    """The configuration of a policy of one robot with the architecture of the network, without evaluations."""
    config = read_object(recipe_path())
    robot = config["data"]["sets"][body]
    del config["$schema"], config["description"], robot["weight"]
    del config["train"]["monitor"], config["train"]["save_every"]
    recording = {"type": "trajectories", "episodes": {"type": "npz", "path": str(episodes)}, "global_batch_size": batch}
    observed = {*robot["obs"], *robot.get("language", {})}
    encoders = {name: encoder for name, encoder in config["task"]["encoders"].items() if name in observed}
    task = {"type": "body_policy", "body": body, "encoders": encoders}
    return config | {"task": config["task"] | task, "data": robot | recording, "evaluate": [], "test": []}


def few_config(runs: Path) -> dict[str, Any]:
    """The configuration of a policy of the Sawyer for the new task, with the architecture of the network."""
    config = robot_config(BODY, runs / "new_task.npz", BATCH)
    instruction = {"texts": [INSTRUCTIONS[NEW_TASK]], "folder": {"path": str(runs / "new_texts"), "format": "parquet"}}
    config["data"] |= {"language": {"instruction": instruction}, "split": {"train": 1.0, "val": 0.0}}
    env = {"type": "metaworld", "task": [NEW_TASK], "max_steps": MAX_STEPS}
    rollout = {"type": "rollout", "name": "test", "env": env, "first_seed": 100_000, "videos": 0}
    return config | {"test": [rollout]}


def alone_config(runs: Path, body: str, pretraining: int) -> dict[str, Any]:
    """The configuration of a policy that learns one robot in as many steps as the network learns all of them, on that
    robot's share of each batch, and is selected and tested in the same episodes. Args: pretraining: samples of the
    network."""
    recipe = read_object(recipe_path())
    weights = {name: robot["weight"] for name, robot in recipe["data"]["sets"].items()}
    share = weights[body] / sum(weights.values())
    config = robot_config(body, runs / f"{FILES[body]}.npz", round(share * recipe["data"]["global_batch_size"]))
    if "language" in config["data"]:
        config["data"]["language"]["instruction"]["folder"]["path"] = str(runs / "texts")
    steps = math.ceil(pretraining / recipe["data"]["global_batch_size"])
    selection, test = (recipe[name][-1]["worlds"][body] for name in ("evaluate", "test"))
    config["train"] |= {"samples": steps * config["data"]["global_batch_size"]}
    config["train"] |= {"monitor": {"metric": "rollout/success_rate", "mode": "max"}}
    every = {"samples": config["train"]["samples"] // 2}
    return config | {
        "evaluate": [{"type": "rollout", "every": every, **selection}],
        "test": [{"type": "rollout", "name": "test", **test}],
    }


def settings(base: Path, start: str, few: int, seed: int, samples: int, episodes: int) -> dict[str, Any]:
    """Changes to `few_config`. Args: base: run of the network; few: demonstrations."""
    takes_weights, peak = STARTS[start]
    changes = {
        "seed": seed,
        "data.choice": {"only": [f"0-{few - 1}"]},
        "train.samples": samples,
        "train.lr": {"type": "cosine", "peak": peak, "warmup_steps": 20},
        "test.0.n_episodes": episodes,
    }
    return changes | ({"train.init_from": str(base)} if takes_weights else {})


def solved(run: Path, evaluator: str = "test") -> dict[str, float]:
    """The share of solved test episodes of a run, with its interval over the episodes."""
    metrics = read_object(run / "result.json")["test"]
    return {name: metrics[f"{evaluator}/{name}"] for name in ("success_rate", "success_ci_low", "success_ci_high")}


def minutes(run: Path) -> float:
    """How long a run took."""
    begun, ended = (datetime.fromisoformat(read_object(run / "exit.json")[name]) for name in ("started", "ended"))
    return (ended - begun).total_seconds() / 60


def together(runs: Path) -> list[dict[str, Any]]:
    """Write a row for each robot: the share that the network solves, and the share that the robot's own policy does."""
    return [
        {
            "robot": body,
            "jointly": of_episodes(solved(runs / "base", f"test_{body}")),
            "alone": of_episodes(solved(runs / body)),
        }
        for body in FILES
    ]


def summary(results: dict[str, dict[str, float]], seeds: int) -> list[dict[str, Any]]:
    """Write a row for each start and number of demonstrations: the share solved, as the mean over the seeds with its
    interval, the difference from noise likewise, and the share of each seed with its interval over the episodes."""
    rows = []
    for few, start in itertools.product(FEW, STARTS):
        runs, shares = {}, {}
        for name in (start, "noise"):
            runs[name] = [results[f"{name} {few} {seed}"] for seed in range(seeds)]
            shares[name] = np.array([run["success_rate"] for run in runs[name]])
        row = {"demonstrations": few, "start": start, "solved": share(shares[start], SHARE)}
        row["each seed"] = [of_episodes(run) for run in runs[start]]
        if start != "noise":
            row["more than from noise"] = share(shares[start] - shares["noise"], of_difference(SHARE))
        rows.append(row)
    return rows


def share(values: np.ndarray, limits: tuple[float, float]) -> dict[str, Any]:
    """The mean in percent, with its interval over the seeds if there are several."""
    mean = {"percent": round(100 * float(values.mean()))}
    if len(values) == 1:
        return mean
    return mean | {"interval": [round(100 * end) for end in mean_interval(values, limits=limits)]}


def of_episodes(run: dict[str, float]) -> dict[str, Any]:
    """The share of the episodes of one run in percent, with its interval over these."""
    ends = [run[f"success_ci_{side}"] for side in ("low", "high")]
    return {"percent": round(100 * run["success_rate"]), "interval": [round(100 * end) for end in ends]}


@click.command(help=__doc__)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/bodies"), help="Where all files go.")
@click.option("--pretraining", default=200_000, show_default=True, help="Samples of the network.")
@click.option("--samples", default=20_000, show_default=True, help="Of each policy for the new task.")
@click.option("--seeds", default=5, show_default=True, help="Trainings of each kind.")
@click.option("--episodes", default=50, show_default=True, help="Test episodes of each training.")
def main(runs: Path, pretraining: int, samples: int, seeds: int, episodes: int) -> None:
    runs = runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    store = ResultsFile(runs / "scores.jsonl", pretraining=pretraining, samples=samples, episodes=episodes)
    record(runs)
    base = runs / "base"
    training.train(CONFIG, places(runs) | {"train.samples": pretraining}, base)
    for body in FILES:
        alone = runs / f"{body}.json"
        alone.write_text(json.dumps(alone_config(runs, body, pretraining), indent=2))
        training.train(alone, {}, runs / body)
    for seed, few, start in itertools.product(range(seeds), FEW, STARTS):
        name, run = f"{start} {few} {seed}", runs / f"{start}_{few}_{seed}"
        if name not in store.results:
            training.train(runs / "few.json", settings(base, start, few, seed, samples, episodes), run)
            store.note(name, solved(run) | {"minutes": minutes(run)})
    rows = {"robots": together(runs), "new task": summary(store.results, seeds)}
    click.echo(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
