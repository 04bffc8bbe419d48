"""Measuring: runs evaluators in turn, the same way during training, at the end of a run, and in `--check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from dp_prior.clock import Cadence, Progress
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned


class Measured(Protocol):
    """Values by metric name, and files by name for loggers that show them."""

    metrics: dict[str, float]
    media: dict[str, Path]


class Evaluator(Protocol):
    """Measures the models of a run. A collective: all ranks call it."""

    every: Cadence

    def run(self, models: dict[str, nn.Module], ranks: Ranks, progress: Progress) -> Measured: ...


@runtime_checkable
class Foretelling(Protocol):
    """An evaluator that tells something before training."""

    def warnings(self, ranks: Ranks) -> list[str]:
        """Lines for the user. A collective."""


def foretold(evaluators: Sequence[Evaluator], ranks: Ranks) -> list[str]:
    """What evaluators tell before training; nothing if the run is asked to stop meanwhile. A collective."""
    try:
        return [line for one in evaluators if isinstance(one, Foretelling) for line in one.warnings(ranks)]
    except Abandoned:
        return []


def measure(
    evaluators: Sequence[Evaluator], models: dict[str, nn.Module], ranks: Ranks, progress: Progress, phase: str
) -> tuple[dict[str, float], dict[str, Path]]:
    """Metrics and media of all evaluators. A collective.

    Args:
        phase: its name in the heartbeats.

    Raises:
        Abandoned: on all ranks, if the run is asked to stop meanwhile.
    """
    metrics: dict[str, float] = {}
    media: dict[str, Path] = {}
    for evaluator in evaluators:
        ranks.mark(f"{phase} {type(evaluator).__name__}", progress.global_step)
        result = evaluator.run(models, ranks, progress)
        ranks.meet(may_leave=True)
        metrics |= result.metrics
        media |= result.media
    return metrics, media
