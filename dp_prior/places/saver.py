"""What receives checkpoints, and what says where a run goes on from."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dp_prior.clock import Progress


@dataclass(frozen=True)
class Durable:
    """A checkpoint directory that will not change any more, as savers receive it.

    Attributes:
        metrics: measured at this very step.
        is_latest: False for one that must not be resumed from.
        is_best: whether the monitored metric had its best value here.
    """

    directory: Path
    progress: Progress
    metrics: dict[str, float]
    is_latest: bool
    is_best: bool


class Saver(Protocol):
    """Somebody who receives checkpoints. Saving the same one twice does no harm.

    Attributes:
        patience_s: `close` may take so long, unless it is told to leave.
    """

    name: str
    patience_s: float

    def save(self, durable: Durable) -> None: ...

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None: ...

    def close(self, leave: threading.Event) -> list[str] | None: ...


class Loader(Protocol):
    """Where a run goes on from."""

    def can_recall(self) -> bool: ...

    def recall(self) -> str | None: ...
