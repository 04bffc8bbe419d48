"""`python -m benchmarks.metaworld [TASK ...]`: success in Meta-World of policies trained from states, of its scripted
experts, and of a baseline that does not look, on the same 50 seeds.

For each task it records demonstrations and trains `configs/policy/metaworld_state.json` on them. A set, MT10 or MT50,
or from the camera MT10_camera or MT50_camera, is one policy for all its tasks, by `configs/policy/metaworld_mt10.json`
and so on, on as many demonstrations of each; it is tested with the instruction of each episode and with another one's.
The last row of MT50 is the mean over Meta-World's four groups of difficulty, as published tables of VLAs have it. What
is there already is not done again, so the command may be stopped and repeated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks import training
from dp_prior.evaluation.interval import share_interval
from dp_prior_foreign.embed import embed_data
from dp_prior_worlds.demonstrations import write_demonstrations
from dp_prior_worlds.metaworld import MetaWorldConfig
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS, SETS

TASKS = ("reach-v3", "button-press-v3", "drawer-open-v3", "push-v3", "pick-place-v3")
CONFIG = "metaworld_state"
CAMERA = "_camera"
CONFIGS_OF_SETS = {name: f"metaworld_{name.lower()}" for name in ("MT10", "MT50", f"MT10{CAMERA}", f"MT50{CAMERA}")}
FIRST_SEED, EPISODES = 100_000, 50
DIFFICULTIES = {
    "medium": "basketball bin-picking box-close coffee-pull coffee-push hammer peg-insert-side push-wall soccer sweep "
    "sweep-into",
    "hard": "assembly hand-insert pick-out-of-hole pick-place push push-back",
    "very hard": "shelf-place disassemble stick-pull stick-push pick-place-wall",
}  # of Seo et al. 2022, Masked World Models; the other 28 tasks are easy

Act = Callable[[np.ndarray, int], np.ndarray]
"""From the states (n, 39) and the number of the step to the actions (n, 4)."""


def solved_by(task: str, act: Act, seeds: range) -> int:
    """Count the test episodes that an expert or a fixed sequence solves."""
    env = MetaWorldConfig(task=task).create()
    solved = 0.0
    for first in range(0, len(seeds), env.n_envs):
        obs = env.reset(seeds[first : first + env.n_envs])
        for step in range(env.max_steps):
            obs, _, done, info = env.step(act(obs["state"], step))
            if done.all():
                break
        solved += info["success"].sum()
    env.close()
    return int(solved)


def expert(task: str) -> Act:
    """Meta-World's scripted policy."""
    from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[task]()
    return lambda states, step: np.stack([policy.get_action(state) for state in states.astype(np.float64)])


def open_loop(data: Path) -> Act:
    """Play the mean of the demonstrated actions at each step, and after the longest episode its last action."""
    with np.load(data) as arrays:
        episodes = np.split(arrays["action"], arrays["episode_ends"][:-1])
    mean = []
    for step in range(max(map(len, episodes))):
        at_step = [actions[step] for actions in episodes if step < len(actions)]
        mean.append(np.mean(at_step, axis=0))
    return lambda states, step: np.tile(mean[min(step, len(mean) - 1)], (len(states), 1))


def share(solved: int, episodes: int = EPISODES) -> str:
    """Share of the test episodes, with Wilson's interval."""
    low, high = share_interval(solved, episodes)
    return f"{solved / episodes:.0%} ({low:.0%} to {high:.0%})"


def of_task(task: str, runs: Path, demonstrations: int, settings: dict[str, str]) -> str:
    """Train a policy for one task; returns the row of the table."""
    data, run = runs / f"{task}.npz", runs / task
    if not data.exists():
        write_demonstrations(data, task, demonstrations)
    training.train(CONFIG, {"data.episodes.path": str(data), "test.0.env.task": task} | settings, run)
    metrics = json.loads((run / "result.json").read_text(encoding="utf-8"))["test"]
    policy = round(metrics["test/success_rate"] * EPISODES)
    seeds = range(FIRST_SEED, FIRST_SEED + EPISODES)
    solved = [solved_by(task, act, seeds) for act in (expert(task), open_loop(data))]
    return " | ".join([task, *map(share, [*solved, policy]), f"{metrics['test/episode_steps']:.0f}"])


def of_set(name: str, runs: Path, demonstrations: int, settings: dict[str, str]) -> Iterator[str]:
    """Train one policy for the tasks of a set; yields the rows of its table, the row of all tasks last."""
    set_name = name.removesuffix(CAMERA)
    tasks = SETS[set_name]
    data, texts, run = runs / f"{set_name}.npz", runs / f"{set_name}_texts", runs / name
    if not data.exists():
        write_demonstrations(data, set_name, demonstrations)
    changes = {"data.episodes.path": str(data), "data.language.instruction.folder.path": str(texts)} | settings
    path = training.ROOT / f"configs/policy/{CONFIGS_OF_SETS[name]}.json"
    embed_data("hashed", texts, path, training.assignments(changes), "instruction", lambda line: None)
    training.train(CONFIGS_OF_SETS[name], changes, run)
    right, wrong = (by_task(run, test) for test in ("test", "shuffled"))
    shares: list[dict[str, Share]] = [{}, {}, {}]
    for number, task in enumerate(tasks):
        told = [report[INSTRUCTIONS[task]] for report in (right, wrong)]
        seeds = range(FIRST_SEED, FIRST_SEED + len(tasks) * told[0].episodes)
        task_seeds = seeds[(number - FIRST_SEED) % len(tasks) :: len(tasks)]
        row = [Share(solved_by(task, expert(task), task_seeds), len(task_seeds)), *told]
        for column, measured in zip(shares, row, strict=True):
            column[task] = measured
        yield " | ".join([task, *(share(*measured) for measured in row)])
    yield " | ".join(["all", *(share(*np.sum(list(column.values()), axis=0)) for column in shares)])
    if set_name == "MT50":
        yield " | ".join(["mean of easy, medium, hard, very hard", *(mean_of_groups(column) for column in shares)])


class Share(NamedTuple):
    """Solved episodes of a test."""

    solved: int
    episodes: int


def mean_of_groups(shares: Mapping[str, Share]) -> str:
    """The mean over the groups of difficulty, in which five very hard tasks weigh as much as 28 easy ones, and the
    share of each group."""
    groups = {f"{name}-v3": group for group, names in DIFFICULTIES.items() for name in names.split()}
    totals = {group: np.zeros(2) for group in ("easy", *DIFFICULTIES)}
    for task, measured in shares.items():
        totals[groups.get(task, "easy")] += measured
    of_groups = [solved / episodes for solved, episodes in totals.values()]
    return f"{np.mean(of_groups):.1%} ({', '.join(f'{part:.0%}' for part in of_groups)})"


def by_task(run: Path, test: str) -> dict[str, Share]:
    """Count the solved episodes of the last report of a test, by instruction."""
    report = sorted((run / "media").glob(f"{test}_*.json"))[-1]
    table = json.loads(report.read_text(encoding="utf-8"))["tables"][f"{test}/by_instruction"]
    return {row["instruction"]: Share(round(row["success_rate"] * row["episodes"]), row["episodes"]) for row in table}


@click.command(help=__doc__)
@click.argument("tasks", nargs=-1)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/metaworld"), help="Where everything goes.")
@click.option("--demonstrations", default=100, help="Demonstrations of each task.")
@click.option("--set", "settings", multiple=True, metavar="KEY.KEY=VALUE", help="Change the configuration; repeatable.")
def main(tasks: tuple[str, ...], runs: Path, demonstrations: int, settings: tuple[str, ...]) -> None:
    warnings.filterwarnings("ignore", "Constant.s. may be too high")  # of every expert
    runs = runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    changed = dict(assignment.split("=", 1) for assignment in settings)
    sets = [name for name in tasks if name in CONFIGS_OF_SETS]
    if sets:
        click.echo("| task | expert | policy, told rightly | told wrongly |\n|---|---|---|---|")
        for name in sets:
            for row in of_set(name, runs, demonstrations, changed):
                click.echo(f"| {row} |")
    singles = [task for task in tasks or TASKS if task not in CONFIGS_OF_SETS]
    if singles:
        click.echo("| task | expert | open loop | policy | steps of the policy |\n|---|---|---|---|---|")
        for task in singles:
            click.echo(f"| {of_task(task, runs, demonstrations, changed)} |")


if __name__ == "__main__":
    main()
