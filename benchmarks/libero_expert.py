"""How often the scripted expert of LIBERO's suites solves each task, from starts that LIBERO draws.

python -m benchmarks.libero_expert libero_object --episodes 10
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from dp_prior.evaluation.interval import share_interval
from dp_prior_worlds.libero_demonstrations import demonstrate, tasks_of


def solved_of(suite: str, episodes: int, seed: int, noise: float, python: str | None) -> Iterator[tuple[str, int, int]]:
    """The name of each task, the solved among its `episodes` seeds from `seed` on, and their mean number of steps."""
    tasks = tasks_of(suite, python)
    for number, (task, _) in enumerate(tasks):
        first = seed + (number - seed) % len(tasks)
        seeds = range(first, first + episodes * len(tasks), len(tasks))
        played = [demonstrate(start, suite, noise, python, side=0) for start in seeds]
        yield task, sum(bool(arrays[-1]) for arrays in played), sum(len(arrays[0]) for arrays in played) // episodes


def main() -> None:
    """Print a row of a table for each task, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=["libero_object", "libero_spatial"])
    parser.add_argument("--episodes", type=int, default=10, help="starts of each task")
    parser.add_argument("--seed", type=int, default=500000, help="of the first start")
    parser.add_argument("--noise", type=float, default=0.0, help="share of disturbed episodes")
    parser.add_argument("--python", help="the Python that has LIBERO")
    options = parser.parse_args()
    solved, tried = 0, 0
    for task, count, steps in solved_of(options.suite, options.episodes, options.seed, options.noise, options.python):
        solved, tried = solved + count, tried + options.episodes
        print(row(task, count, options.episodes, steps), flush=True)
    print(row("all", solved, tried), flush=True)


def row(name: str, solved: int, episodes: int, steps: int | None = None) -> str:
    """A row of a table: the share of solved episodes in percent with its interval, and steps of an episode."""
    low, high = share_interval(solved, episodes)
    share = f"{100 * solved / episodes:.0f} ({100 * low:.0f} to {100 * high:.0f})"
    return f"| {name.replace('_', ' ')} | {solved} of {episodes} | {share} | {'' if steps is None else steps} |"


if __name__ == "__main__":
    main()
