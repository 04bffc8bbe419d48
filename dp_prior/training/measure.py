"""Measuring: runs evaluators in turn, the same way during training, at the end of a run, and in `--check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import Config, PartError, an, made
from dp_prior.config.errors import short
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned


class Measured(Protocol):
    """The result of an evaluator; `tables` and `unwritten`, as in `Findings`, may be missing."""

    metrics: dict[str, float]
    media: dict[str, Path]


@dataclass(frozen=True)
class Findings:
    """The results of several evaluators.

    Attributes:
        metrics: values by name.
        media: files by name, for loggers that show pictures and videos.
        tables: rows by the name of the table.
        unwritten: errors of files that could not be written.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    media: dict[str, Path] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unwritten: list[OSError] = field(default_factory=list)

    def whole(self) -> Findings:
        """These findings. Raises OSError: a file could not be written."""
        if self.unwritten:
            raise self.unwritten[0]
        return self


class Evaluator(Protocol):
    """Measures the models of a run. A collective: all ranks call it.

    An evaluator that can warn before training also has `warnings(ranks) -> list[str]`, a collective.
    """

    every: Cadence

    def run(self, models: dict[str, nn.Module], ranks: Ranks, progress: Progress) -> Measured: ...


def evaluators_of(records: Iterable[Config], data: Any, output_dir: Path | None, ranks: Ranks) -> list[Evaluator]:
    """The evaluators of these records, see `EvaluatorRecord.create`.

    Raises:
        PartError: one of another package has not made an evaluator.
        StoppedEarly: a rank was asked to stop during a download.
    """
    evaluators = []
    for record in records:
        create = partial(record.create, data, output_dir)
        evaluator = ranks.unless_stopped(create) if getattr(record, "downloads", False) else create()
        evaluators.append(made(record, "create", evaluator, Evaluator))
    return evaluators


def evaluator_warnings(evaluators: Sequence[Evaluator], ranks: Ranks) -> list[str]:
    """Warnings of evaluators before training; none if the run is asked to stop meanwhile. A collective."""
    lines: list[str] = []
    try:
        for evaluator in evaluators:
            if hasattr(evaluator, "warnings"):
                lines += evaluator.warnings(ranks)
    except Abandoned:
        return []
    return lines


def measure(
    evaluators: Sequence[Evaluator], models: dict[str, nn.Module], ranks: Ranks, progress: Progress, phase: str
) -> Findings:
    """Metrics, media and tables of all evaluators. A collective.

    Args:
        phase: its name in the heartbeats.

    Raises:
        Abandoned: on all ranks, if the run is asked to stop meanwhile.
        PartError: an evaluator of another package returned no measurements, or a name that is no text.
    """
    findings = Findings()
    for evaluator in evaluators:
        ranks.mark(f"{phase} {type(evaluator).__name__}", progress.global_step)
        result = made(evaluator, "run", evaluator.run(models, ranks, progress), Measured)
        _check_names(evaluator, (*result.metrics, *result.media))
        ranks.meet(may_leave=True)
        findings.metrics.update(result.metrics)
        findings.media.update(result.media)
        findings.tables.update(getattr(result, "tables", {}))
        findings.unwritten.extend(getattr(result, "unwritten", ()))
    return findings


def _check_names(evaluator: Evaluator, names: Iterable[object]) -> None:
    """Raises PartError if a name is no text: a checkpoint, which stores metrics as JSON, could not be saved."""
    for name in names:
        if not isinstance(name, str):
            where = f"{type(evaluator).__module__}.{type(evaluator).__qualname__}.run"
            problem = f"{where} measured {short(name)}, which is {an(type(name).__name__)}, under `metrics` or `media`"
            raise PartError(f"{problem}; expected a name of text, such as 'validation/ema/loss'")
