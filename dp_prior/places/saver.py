"""`Saver`, the base class of what receives the checkpoints of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from dp_prior.clock import Progress


@dataclass(frozen=True)
class Durable:
    """An immutable checkpoint directory, as savers receive it.

    Attributes:
        metrics: measured at this step.
        is_latest: False for one that must not be resumed from.
        is_best: whether the monitored metric had its best value here.
    """

    directory: Path
    progress: Progress
    metrics: dict[str, float]
    is_latest: bool
    is_best: bool


class Saver:
    """Receives checkpoints. Saving the same one twice must be harmless.

    Attributes:
        patience_s: longest time that `close` takes.
    """

    name: str
    patience_s: float = 0.0

    def save(self, durable: Durable) -> None:
        """Take a checkpoint."""

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: take its best checkpoint with pictures by file name and final scores."""

    def close(self, leave: threading.Event) -> list[str]:
        """Finish, at once if `leave` is set; returns a line for each checkpoint that was not delivered."""
        return []
