"""`python -m benchmarks.libero`: a policy of some tasks of LIBERO from two cameras, by a part of its recipe's budget.

Records demonstrations of the scripted expert, trains `configs/policy/libero_object.json` (or `libero_spatial`) with the
changes of `CUT`, and plays the published starts: told the task rightly, told wrongly, and with grey pictures. Then the
lost starts are played once more, to see how far the policy comes. What is there already is not done again, so the
command may be stopped and repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import training
from benchmarks.metaworld import Share, by_task, share
from dp_prior import load_policy
from dp_prior.files.regular_files import read_object
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior_foreign.embed import embed_data
from dp_prior_worlds.libero import LiberoConfig
from dp_prior_worlds.libero_demonstrations import CAMERAS, SIDE, tasks_of, write_suite

SUITES = {"libero_object": "object", "libero_spatial": "spatial"}
"""Suites that the expert plays, and the ends of the names of their texts."""

TASKS = "0,1,2,3"
"""Numbers of the tasks of a plain call, in LIBERO's order."""

NOISE = 1.0
"""Share of disturbed demonstrations, which show the expert from places where the policy's errors lead."""

HELD_OUT = 0.1
"""Share of the demonstrations that only measure."""

LIFTED = 0.05
"""Height in m above its start from which a held object has been lifted."""

STAGES = ("not grasped", "grasped", "lifted", "over the goal", "solved")
"""How far an episode came."""

PICTURES = {"cameras": dict.fromkeys(CAMERAS, (SIDE, SIDE))}
"""What an environment of the policy draws."""

CUT: dict[str, Any] = {
    "task.horizon": 8,
    "task.encoders.eye_in_hand_rgb.crop": [56, 56],
    "task.backbone": {"type": "unet1d", "down_dims": [64, 128], "step_embed_dim": 64},
    "data.images.eye_in_hand_rgb.size": [64, 64],
    "data.split": {"train": 1 - HELD_OUT, "val": HELD_OUT, "test": 0.0},
    "data.global_batch_size": 128,
    "train.precision": "fp32",
    "train.lr.warmup_steps": 100,
    "train.ema": {"ema": {"type": "power", "max_decay": 0.998}},
    "train.monitor": {"metric": "action_error/ema/mae[steps=8]", "mode": "min"},
}
"""Changes to a recipe that make it small: fewer pixels, a shorter chunk, a narrower network."""

LEFT = {"libero_object": 0.125, "libero_spatial": 0.0}
"""Left end of the part of the picture that a policy of a suite sees; a bowl of `libero_spatial` stands at the edge."""


def settings(
    runs: Path, suite: str, tasks: tuple[int, ...], samples: int, starts: int, python: str | None
) -> dict[str, Any]:
    """Changes to the recipe of a suite: `CUT`, the places of the data, and tests on the published `starts` of `tasks`.

    Args:
        samples: of the training.
        starts: published starts of each task. The controls have half as many.
        python: see `LiberoConfig`.
    """
    end = {"samples": samples}  # so that the last weights are tested
    env = {"type": "libero", "suite": suite, "tasks": tasks, "python": python}
    seeing = env | PICTURES | {"n_envs": len(tasks)}
    rollout = {"type": "rollout", "name": "test", "env": seeing, "first_seed": 0, "n_episodes": starts * len(tasks)}
    control = {**rollout, "n_episodes": max(1, starts // 2) * len(tasks), "videos": 0}
    replay = {"type": "replay", "env": env, "start": {"states": "states", "task": "task"}, "n_episodes": 3 * len(tasks)}
    columns = round(96 * (1 - LEFT[suite]))
    return CUT | {
        "task.encoders.agentview_rgb.crop": [52, columns - 8],
        "data.images.agentview_rgb": {
            "key": "obs/agentview_rgb",
            "region": [0.25, LEFT[suite], 0.875, 1.0],
            "size": [60, columns],
        },
        "data.episodes.path": str(runs / suite),
        "data.language.instruction.folder.path": str(runs / "texts"),
        "train.samples": samples,
        "train.save_every": {"samples": samples // 10},
        "evaluate": [{"type": "action_error", "every": end, "eval_timesteps": [8]}],
        "test": [
            replay,
            {**rollout, "videos": 1},
            {**control, "name": "shuffled", "shuffle": ["instruction"]},
            {**control, "name": "blind", "blind": list(CAMERAS)},
        ],
    }


def record(runs: Path, suite: str, tasks: tuple[int, ...], demonstrations: int, python: str | None) -> None:
    """Record what is missing of the demonstrations, and embed the instructions."""
    if not (runs / suite).exists():
        write_suite(runs / suite, suite, demonstrations, noise=NOISE, python=python, tasks=tasks)
    changes = {"data.episodes.path": str(runs / suite)}
    recipe = training.ROOT / f"configs/policy/{suite}.json"
    embed_data("hashed", runs / "texts", recipe, training.assignments(changes), "instruction", click.echo)


def rows(run: Path, names: Mapping[str, str]) -> Iterator[str]:
    """The rows of the table of a run, the row of all tasks last: the share solved in each test of the policy.

    Args:
        names: instruction by the name of the task.
    """
    tests = [by_task(run, test) for test in ("test", "shuffled", "blind")]
    for name, instruction in names.items():
        yield row(name.replace("_", " "), (test[instruction] for test in tests))
    yield row("all", (Share(*np.sum(list(test.values()), axis=0)) for test in tests))


def row(name: str, shares: Iterator[Share]) -> str:
    """A row of the table."""
    return f"| {' | '.join([name, *(share(*measured) for measured in shares)])} |"


def lost_seeds(run: Path) -> list[int]:
    """The seeds of the test that a policy did not solve."""
    report = sorted((run / "media").glob("test_*.json"))[-1]
    table = read_object(report)["tables"]["test/by_seed"]
    return [line["seed"] for line in table if not line["success"]]


def stages(run: Path, env_settings: Mapping[str, Any], seeds: list[int]) -> Counter[str]:
    """Play seeds by the policy of a run, and count how far each came, by `STAGES`.

    Args:
        env_settings: fields of `LiberoConfig`, without `n_envs`.
    """
    env = LiberoConfig(**env_settings, n_envs=1).create()
    agent, counts = VectorAgent(load_policy(run)), Counter()
    for seed in seeds:
        env.is_watched = True
        obs = env.reset([seed])
        agent.reset([seed])  # noise as in the test, whose first episode has the seed 0
        first, farthest, is_done = env.envs[0].ask("scene"), 0, False
        while not is_done:
            action = agent.act(obs)
            env.is_watched = agent.watches
            obs, _, done, info = env.step(action)
            farthest = max(farthest, stage(env.envs[0].ask("scene"), first, bool(info["success"][0])))
            is_done = bool(done[0])
        counts[STAGES[farthest]] += 1
    env.close()
    return counts


def stage(scene: Mapping[str, Any], first: Mapping[str, Any], is_solved: bool) -> int:
    """The place among `STAGES` of a moment. Args: first: the scene at the start, see `World.scene`."""
    if is_solved:
        return 4
    if not scene["is_held"]:
        return 0
    if scene["low"][2] < first["low"][2] + LIFTED:
        return 1
    aside = np.linalg.norm((scene["object"] - scene["goal"])[:2])
    return 3 if aside < LIFTED else 2


def budget(run: Path) -> str:
    """The minutes of a training with its tests, and the held-out error of the actions at its end."""
    begun, ended = (datetime.fromisoformat(read_object(run / "exit.json")[name]) for name in ("started", "ended"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    errors = [line[CUT["train.monitor"]["metric"]] for line in lines if CUT["train.monitor"]["metric"] in line]
    replay = read_object(run / "result.json")["test"]["replay/success_rate"]
    return (
        f"replay of the demonstrations: {replay:.0%}; held-out error of the executed actions: {errors[-1]:.3f}; "
        f"minutes with tests: {(ended - begun).total_seconds() / 60:.0f}"
    )


@click.command(help=__doc__)
@click.argument("suite", type=click.Choice(list(SUITES)), default="libero_object")
@click.option("--tasks", default=TASKS, show_default=True, help="Numbers of the tasks, with commas.")
@click.option("--demonstrations", default=50, show_default=True, help="Of each task.")
@click.option("--samples", default=400_000, show_default=True, help="Of the training.")
@click.option("--starts", default=10, show_default=True, help="Published starts of each task.")
@click.option("--python", help="The Python that has LIBERO, unless it has its usual place.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/libero"), help="Where all files go.")
def main(
    suite: str, tasks: str, demonstrations: int, samples: int, starts: int, python: str | None, runs: Path
) -> None:
    runs, numbers = runs.resolve(), tuple(map(int, tasks.split(",")))
    runs.mkdir(parents=True, exist_ok=True)
    record(runs, suite, numbers, demonstrations, python)
    changes, run = settings(runs, suite, numbers, samples, starts, python), runs / f"{suite}_policy"
    training.train(suite, changes, run)
    click.echo("| task | told rightly | told wrongly | grey pictures |\n|---|---|---|---|")
    for line in rows(run, dict(tasks_of(suite, python, numbers))):
        click.echo(line)
    click.echo(budget(run))
    played = stages(run, {"suite": suite, "tasks": numbers, "python": python, **PICTURES}, lost_seeds(run))
    click.echo(f"lost starts played once more: {', '.join(f'{played[name]} {name}' for name in STAGES)}")


if __name__ == "__main__":
    main()
