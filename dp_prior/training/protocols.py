"""Protocols of the parts that the trainer receives, reduced to what it calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from dp_prior.batch import Batch
from dp_prior.checkpoints.format import Snapshot
from dp_prior.clock import Cadence, Progress
from dp_prior.job.ranks import Ranks


class Batches(Protocol):
    """The source of batches: a pure function of the samples seen."""

    global_batch_size: int

    def __len__(self) -> int: ...

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]: ...

    def ids(self, samples_seen: int) -> Tensor:
        """(global_batch_size,) int64, the samples of the next step on all ranks."""


class Measured(Protocol):
    """Values by metric name, and files by name for loggers that show them."""

    metrics: dict[str, float]
    media: dict[str, Path]


class Evaluator(Protocol):
    """Measures the models of a run. A collective: all ranks call it."""

    every: Cadence

    def run(self, models: dict[str, nn.Module], accelerator: Ranks, progress: Progress) -> Measured: ...


class MetricsSink(Protocol):
    """Receives metrics, media and error messages."""

    def log(self, metrics: dict[str, float], progress: Progress) -> None: ...

    def log_images(self, images: dict[str, Path], progress: Progress) -> None: ...

    def log_error(self, error: str, progress: Progress) -> None: ...


class SnapshotSink(Protocol):
    """Receives snapshots. `submit` returns before they are durable; a failed save is raised by the next call."""

    def submit(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool) -> None: ...

    def check(self) -> None: ...

    def reserve(self, snapshot: Snapshot) -> None: ...
