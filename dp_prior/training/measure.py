"""Measuring: runs evaluators in turn, the same way during training, at the end of a run, and in `--check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import nn

from dp_prior.clock import Cadence, Progress
from dp_prior.job.ranks import Ranks


class Measured(Protocol):
    """Values by metric name, and files by name for loggers that show them."""

    metrics: dict[str, float]
    media: dict[str, Path]


class Evaluator(Protocol):
    """Measures the models of a run. A collective: all ranks call it."""

    every: Cadence

    def run(self, models: dict[str, nn.Module], ranks: Ranks, progress: Progress) -> Measured: ...


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
