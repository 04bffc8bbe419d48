"""`python -m benchmarks.metaworld [TASK ...]`: success in Meta-World of policies trained from states, of its scripted
experts, and of a baseline that does not look, on the same 50 seeds.

For each task it records demonstrations and trains `configs/policy/metaworld_state.json` on them. What is there already
is not done again, so the command may be stopped and repeated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from benchmarks import training
from dp_prior.envs.metaworld import MetaWorldConfig
from dp_prior.envs.metaworld_demonstrations import write_demonstrations
from dp_prior.evaluation.interval import share_interval

TASKS = ("reach-v3", "button-press-v3", "drawer-open-v3", "push-v3", "pick-place-v3")
CONFIG = "metaworld_state"
FIRST_SEED, EPISODES = 100_000, 50

Act = Callable[[np.ndarray, int], np.ndarray]
"""From the states (n, 39) and the number of the step to the actions (n, 4)."""


def solved_by(task: str, act: Act) -> int:
    """Number of the test episodes that something other than a policy solves."""
    env = MetaWorldConfig(task=task).create()
    solved = 0.0
    for first in range(FIRST_SEED, FIRST_SEED + EPISODES, env.n_envs):
        seeds = range(first, min(first + env.n_envs, FIRST_SEED + EPISODES))
        obs = env.reset(seeds)
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
    """The mean of the demonstrated actions at each step, whatever the state; the last of them after the longest."""
    with np.load(data) as arrays:
        episodes = np.split(arrays["action"], arrays["episode_ends"][:-1])
    mean = [
        np.mean([actions[step] for actions in episodes if step < len(actions)], axis=0)
        for step in range(max(map(len, episodes)))
    ]
    return lambda states, step: np.tile(mean[min(step, len(mean) - 1)], (len(states), 1))


def share(solved: int) -> str:
    """Share of the test episodes, with Wilson's interval."""
    low, high = share_interval(solved, EPISODES)
    return f"{solved / EPISODES:.0%} ({low:.0%} to {high:.0%})"


@click.command(help=__doc__)
@click.argument("tasks", nargs=-1)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/metaworld"), help="Where everything goes.")
@click.option("--demonstrations", default=100, help="Demonstrations of each task.")
@click.option("--set", "settings", multiple=True, metavar="KEY.KEY=VALUE", help="Change the configuration; repeatable.")
def main(tasks: tuple[str, ...], runs: Path, demonstrations: int, settings: tuple[str, ...]) -> None:
    warnings.filterwarnings("ignore", "Constant.s. may be too high")  # of every expert
    runs = runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    click.echo("| task | expert | open loop | policy | steps of the policy |\n|---|---|---|---|---|")
    for task in tasks or TASKS:
        data, run = runs / f"{task}.npz", runs / task
        if not data.exists():
            write_demonstrations(data, task, demonstrations)
        changes = {"data.episodes.path": str(data), "test.0.env.task": task}
        training.train(CONFIG, changes | dict(one.split("=", 1) for one in settings), run)
        found = json.loads((run / "result.json").read_text(encoding="utf-8"))["test"]
        policy = round(found["test/success_rate"] * EPISODES)
        others = [share(solved_by(task, act)) for act in (expert(task), open_loop(data))]
        click.echo(f"| {task} | {' | '.join(others)} | {share(policy)} | {found['test/episode_steps']:.0f} |")


if __name__ == "__main__":
    main()
