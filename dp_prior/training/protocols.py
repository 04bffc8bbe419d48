"""What the trainer needs of the parts that it is given, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from dp_prior.batch import Batch
from dp_prior.checkpoints.format import Snapshot
from dp_prior.clock import Cadence, Progress


class Loader(Protocol):
    """Where batches come from: a pure function of the samples seen."""

    global_batch_size: int

    def __len__(self) -> int: ...

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]: ...

    def ids(self, samples_seen: int) -> Tensor:
        """(global_batch_size,) int64 of the samples of all ranks."""


class Measured(Protocol):
    """Numbers by metric name, and files by name for loggers that show them."""

    metrics: dict[str, float]
    media: dict[str, Path]


class Evaluator(Protocol):
    """Measures the models of a run; a collective when there are several ranks."""

    every: Cadence

    def run(self, models: dict[str, nn.Module], accelerator: Any, progress: Progress) -> Measured: ...


class Tracker(Protocol):
    """Where numbers and pictures go."""

    def log(self, metrics: dict[str, float], progress: Progress) -> None: ...

    def log_images(self, images: dict[str, Path], progress: Progress) -> None: ...

    def log_error(self, error: str, progress: Progress) -> None: ...


class Saver(Protocol):
    """Where snapshots go. Returns before they are durable; what then fails is raised by the next call."""

    def submit(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool) -> None: ...

    def check(self) -> None: ...

    def reserve(self, snapshot: Snapshot) -> None: ...
