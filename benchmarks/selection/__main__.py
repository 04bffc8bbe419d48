"""`python -m benchmarks.selection`: which measure without a simulator orders policies as their scores do?

Trains a few small policies of Push-T, measures all their checkpoints on held-out demonstrations, and lets each play the
same seeds, in rounds. What is in the record is not done again, so the command may be stopped and repeated; more
`--seeds` add to it in rounds of 100. It ends with a table of rank correlations.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.kept import Kept
from benchmarks.results import within
from benchmarks.selection.measures import BASELINE
from benchmarks.selection.policies import SAMPLES, TRAININGS, measured, played, train
from benchmarks.selection.relations import relations

FIRST_SEED, ROUND = 500_000, 100


def rounds(seeds: int) -> Iterator[range]:
    """The seeds of each round."""
    for first in range(FIRST_SEED, FIRST_SEED + seeds, ROUND):
        yield range(first, min(first + ROUND, FIRST_SEED + seeds))


def _played(name: str, part: range) -> str:
    """The name of a policy's scores of a round in the record."""
    return f"{name}: seeds from {part[0]}"


def name_of(training: str, checkpoint: Path) -> str:
    """The name of a policy: its training, and the steps of the optimizer."""
    return f"{training}, {int(checkpoint.name.removeprefix('step_'))} steps"


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/selection"), help="Where the runs go.")
@click.option("--record", type=click.Path(path_type=Path), default=Path("runs/selection.jsonl"), show_default=True)
@click.option("--seeds", default=500, show_default=True, help="Episodes of each policy.")
@click.option("--jobs", default=1, show_default=True, help="Policies measured at a time, a thread each.")
def main(out: Path, record: Path, seeds: int, jobs: int) -> None:
    kept = Kept(record, samples=SAMPLES)
    policies = {name_of(name, one): one for name in TRAININGS for one in train(name, out.absolute())}
    work: list[tuple[str, Any, Any]] = [(f"{name}: measures", measured, (one,)) for name, one in policies.items()]
    for part in rounds(seeds):
        work += [(_played(name, part), played, (one, part)) for name, one in policies.items()]
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(do, *given): name for name, do, given in work if name not in kept.results}
        for done in as_completed(waiting):
            kept.note(waiting[done], done.result())
    for line in table(list(policies), kept.results, seeds):
        click.echo(line)


def table(policies: list[str], results: dict[str, Any], seeds: int) -> Iterator[str]:
    """Markdown: the rank correlation of each measure with the score, over all policies and over their better half."""
    cheap = [results[f"{name}: measures"] for name in policies]
    scores = np.array(
        [np.mean([score for part in rounds(seeds) for score in results[_played(name, part)]]) for name in policies]
    )
    better = scores >= np.median(scores)
    yield "| measure | all: Spearman | Kendall | nearer to -1 by | better half: Spearman | nearer to -1 by |"
    yield "|---" * 6 + "|"
    values = {key: np.array([one[key] for one in cheap]) for key in cheap[0]}
    whole = relations(values, scores, BASELINE)
    half = relations({key: one[better] for key, one in values.items()}, scores[better], BASELINE)
    for key, one in whole.items():
        other = half[key]
        cells = [_with(one.spearman, one.limits), f"{one.kendall:.2f}", _with(one.gain, one.gain_limits)]
        cells += [_with(other.spearman, other.limits), _with(other.gain, other.gain_limits)]
        yield f"| {key} | {' | '.join(cells)} |"


def _with(value: float, limits: tuple[float, float]) -> str:
    return f"{value:.2f} {within(f'{limits[0]:.2f}', f'{limits[1]:.2f}')}"


if __name__ == "__main__":
    main()
