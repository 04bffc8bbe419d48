"""`Saver`, the base class of receivers of a run's checkpoints."""

from __future__ import annotations

import threading
from pathlib import Path

from dp_prior.checkpoints.store import Saved


class Saver:
    """Receives checkpoints. Saving the same checkpoint twice must be harmless.

    Attributes:
        patience_s: longest time that `close` takes, in seconds.
    """

    name: str
    patience_s: float = 0.0

    def save(self, saved: Saved) -> None:
        """Take a checkpoint."""

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """The run has finished: take its best checkpoint with pictures by file name and final scores."""

    def close(self, leave: threading.Event) -> list[str]:
        """Finish, at once if `leave` is set; returns a line for each undelivered checkpoint."""
        return []
