"""Savers that upload: `save` links the checkpoint into an outbox and returns; a courier sends it later."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from dp_prior.checkpoints.format import MODEL_FILES
from dp_prior.config import Config
from dp_prior.places.courier import Courier
from dp_prior.places.destination import Destination
from dp_prior.places.outbox import OUTBOX, Outbox
from dp_prior.places.saver import Durable, Saver
from dp_prior.places.worker import InProcess, Sender, Worker

CHECK_S = 60.0  # longest time for `check`


class UploadConfig(Config):
    """Base record of the savers that upload checkpoints."""

    save_best: bool = True
    """Send each new best checkpoint."""

    save_latest: bool = False
    """Send each checkpoint that the run saves, so that it can resume on another machine."""

    save_type: Literal["checkpoint", "model"] = "checkpoint"
    """`checkpoint` uploads everything needed to resume, `model` only the files for inference."""

    deadline_s: float = Field(default=900.0, gt=0)
    """Seconds after which an attempt is killed and retried; files that arrived are not sent again."""

    drain_s: float = Field(default=60.0, ge=0)
    """Seconds that the end of the run waits for uploads; the rest stays in the outbox."""

    max_commits_per_hour: int = Field(default=60, ge=2)
    """Limit on commits to the remote place in an hour; one delivery takes two. A newer checkpoint replaces a waiting
    one."""

    offline: bool = False
    """Only queue: no socket is opened until `dp-prior push` is called."""

    def faults(self) -> Iterator[str]:
        if not self.save_best and not self.save_latest:
            yield "a saver needs save_best or save_latest; the run keeps its own checkpoints"

    @property
    def in_process(self) -> bool:
        """Whether the place exists in this process only, so that no worker could reach it."""
        return False

    @property
    def place(self) -> str:
        """The remote place, for messages and for the name of its outbox."""
        raise NotImplementedError

    def destination(self) -> Destination:
        """The client of the place; made in the worker process."""
        raise NotImplementedError

    def create(self, directory: Path, monitor: str | None) -> UploadSaver:
        """A saver for the run in `directory`; it also uploads what an earlier process left in the outbox."""
        saver = UploadSaver(self, directory)
        if not self.offline:
            saver.courier.start()
        return saver

    def courier(self, directory: Path) -> Courier:
        """The courier of this place's outbox in the run in `directory`."""
        outbox = Outbox(directory / OUTBOX / re.sub(r"[^A-Za-z0-9.-]+", "_", self.place))
        return Courier(
            self.place,
            outbox,
            self.sender(),
            deadline_s=self.deadline_s,
            drain_s=self.drain_s,
            max_commits_per_hour=self.max_commits_per_hour,
        )

    def sender(self) -> Sender:
        """The courier."""
        return InProcess(self.destination) if self.in_process else Worker(json.loads(self.model_dump_json()))

    def check(self) -> str:
        """Try once whether the place is writable; returns a line that says so."""
        if self.offline:
            return "offline; `dp-prior push RUN` sends what waits"
        return self.sender().attempt(None, (), min(self.deadline_s, CHECK_S)).message


class UploadSaver(Saver):
    """Puts checkpoints into the outbox of a place; see `UploadConfig`."""

    def __init__(self, record: UploadConfig, directory: Path):
        self.name = record.place
        self.patience_s = record.drain_s
        self.record = record
        self.courier = record.courier(directory)
        self.outbox = self.courier.outbox

    def save(self, durable: Durable) -> None:
        """Queue it. Opens no socket."""
        if self.record.save_latest and durable.is_latest:
            self._put("latest", durable.directory)
        if self.record.save_best and durable.is_best:
            self._put("best", durable.directory)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """Queue the best checkpoint again, with pictures and final scores for its model card."""
        if self.record.save_best:
            self._put("best", directory, media, scores)

    def _put(
        self, kind: str, directory: Path, media: dict[str, Path] | None = None, scores: dict[str, float] | None = None
    ) -> None:
        files = MODEL_FILES if self.record.save_type == "model" else None
        self.outbox.put(kind, directory, files=files, media=media, scores=scores)
        self.courier.wake()

    def close(self, leave: threading.Event) -> list[str]:
        """Upload the outbox, for a limited time. Returns a line for each checkpoint that was not uploaded."""
        return self.courier.close(leave)
