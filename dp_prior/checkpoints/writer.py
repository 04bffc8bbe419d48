"""Saving beside training: the loop stops only while the state is copied into memory that the writer owns.

One save runs at a time. A save asked for while another runs waits for it, since each is promised to become durable;
the memory of one snapshot is therefore all that is ever needed, and it is reused. A save that fails is told at once;
only several in a row, or the last one of a run, are an error: a disk that was full for an hour costs no run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.checkpoints.snapshot import Snapshot, SnapshotMemory
from dp_prior.checkpoints.store import CheckpointStore, Saved
from dp_prior.clock import Progress

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Hands snapshots to a store from a thread of its own."""

    def __init__(
        self, store: CheckpointStore, on_durable: Callable[[Saved], None] | None = None, max_failed_saves: int = 1
    ):
        """
        Args:
            on_durable: called in the writing thread once a checkpoint is durable and retention has been applied. The
                directory stays while it runs, since the next save waits for it.
            max_failed_saves: so many saves that fail in a row are an error; fewer are warnings.
        """
        self._store = store
        self._on_durable = on_durable
        self._memory = SnapshotMemory()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._max_failed_saves = max_failed_saves
        self._failed: list[CheckpointError] = []  # saves in a row

    def reserve(self, snapshot: Snapshot) -> None:
        """Take memory for snapshots of this size, in the background; otherwise the first save pays for it.

        Mapping fresh pages takes several times as long as the copy. Call it once all tensors of a save exist.
        """
        self.wait()
        self._start(self._memory.reserve, snapshot)

    def submit(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool = False) -> None:
        """Copy a snapshot and start saving it; waits first for a save that still runs.

        Raises:
            CheckpointError: too many saves in a row have failed; this one is then not started.
        """
        self.wait()
        held = self._memory.hold(snapshot)
        self._start(self._save, held, progress, dict(metrics), is_best)

    def check(self) -> None:
        """Raise what an earlier save has failed with, if any; costs nothing and is meant for every step."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Return once nothing is being written; raises like `check`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def close(self) -> None:
        """Finish the running save; raises like `check`, and if the last save has failed. The memory is given back."""
        try:
            self.wait()
            if self._failed:
                raise self._failed.pop()
        finally:
            self._memory = SnapshotMemory()
            self._failed.clear()

    def _start(self, task: Callable[..., None], *arguments: Any) -> None:
        """Run a task in the thread, keeping what it raises. No daemon: an interpreter that ends finishes it first."""

        def run() -> None:
            try:
                task(*arguments)
            except BaseException as error:  # raised again in the caller's thread
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint-writer", daemon=False)
        self._thread.start()

    def _save(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool) -> None:
        self._memory.settle()
        try:
            saved = self._store.write(snapshot, progress, metrics, is_best)
        except CheckpointError as error:
            self._failed.append(error)
            count, limit = len(self._failed), self._max_failed_saves
            if count >= limit:
                self._failed.clear()
                raise
            log.warning("%s Training goes on; failed save %d in a row, the run ends at %d.", error, count, limit)
            return
        self._failed.clear()
        if self._on_durable is not None:
            self._on_durable(saved)
