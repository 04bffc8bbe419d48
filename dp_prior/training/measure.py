"""Measuring: runs evaluators in turn, the same way during training, at the end of a run, and in `--check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from dp_prior.clock import Progress
from dp_prior.job.ranks import Ranks
from dp_prior.training.protocols import Evaluator


def measure(
    evaluators: Sequence[Evaluator], models: dict[str, nn.Module], ranks: Ranks, progress: Progress, phase: str
) -> tuple[dict[str, float], dict[str, Path]]:
    """Metrics and media of all evaluators. A collective.

    Args:
        phase: what the heartbeats call it.

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
