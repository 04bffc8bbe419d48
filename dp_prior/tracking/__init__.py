"""The family of loggers, and `TrackerConfig`, which combines loggers with savers and a place to resume from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pydantic import Field

from dp_prior.config import Config, family, made
from dp_prior.files.regular_files import expanded
from dp_prior.places import ResumeConfig, SaverConfig
from dp_prior.places.resume import LocalResumeConfig
from dp_prior.places.saver import Saver
from dp_prior.tracking.console import ConsoleConfig
from dp_prior.tracking.identity import ID
from dp_prior.tracking.jsonl import JsonlConfig
from dp_prior.tracking.logger import Logger, LoggerRecord
from dp_prior.tracking.tracker import Tracker

LoggerConfig = family(
    "loggers",
    {
        "console": "dp_prior.tracking.console:ConsoleConfig",
        "jsonl": "dp_prior.tracking.jsonl:JsonlConfig",
        "csv": "dp_prior.tracking.csv:CsvConfig",
        "tensorboard": "dp_prior.tracking.tensorboard:TensorBoardConfig",
        "wandb": "dp_prior.tracking.wandb:WandbConfig",
        "accelerate": "dp_prior.tracking.accelerate:AccelerateConfig",
    },
    base=LoggerRecord,
)


class TrackerConfig(Config):
    """The run directory, loggers, savers of checkpoints, and the place to resume from."""

    data_path: str = Field(default="runs/run", min_length=1, pattern=r"^[^\x00]*$")
    """Directory of the run; relative to the working directory, `~` is the home directory."""

    log: tuple[LoggerConfig, ...] = (ConsoleConfig(),)
    """Loggers. The JSONL log in the run directory is always active and always first. JSONL and console are called
    synchronously, every other logger through a queue and thread of its own."""

    save: tuple[SaverConfig, ...] = ()
    """Savers, which receive each checkpoint once it is durable in the run directory."""

    load: ResumeConfig = LocalResumeConfig()
    """The place to resume from."""

    report: bool = True
    """Write `report.html`, the page of the run, at the end; savers with a model card upload it (docs/pages.md)."""

    run_id: str | None = Field(default=None, pattern=f"^{ID}$")
    """Id of the run in experiment trackers. null keeps the id in the run directory or, in a fresh directory, the id of
    the checkpoint to resume from; a new run gets a new id. Set another id to branch off."""

    run_name: str | None = Field(default=None, min_length=1)
    """Display name of the run; null keeps the current name, at first the name of the directory."""

    max_failures: int = Field(default=3, ge=1)
    """Consecutive failures after which a logger is muted for a while; the run continues and reports them at the end."""

    retry_s: float = Field(default=10.0, gt=0)
    """Seconds until a muted logger is retried; doubles with each failure, up to ten minutes."""

    queue_size: int = Field(default=1000, ge=1)
    """Maximum length of the queue of a slow logger; further calls are dropped and counted."""

    patience_s: float = Field(default=10.0, ge=0)
    """Seconds that the end of the run waits for all loggers together; then the run exits without them."""

    def faults(self) -> Iterator[str]:
        if "://" in self.data_path:
            example = f"{{'type': 'fsspec', 'url': {self.data_path!r}}}"
            remedy = f"send checkpoints there by a saver of `save`, such as {example}"
            yield f"data_path is {self.data_path!r}, a URL; expected a directory on this machine; {remedy}"
        names = [record.service for record in self.log]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield f"logger {name!r} is listed {names.count(name)} times; keep one"
        yield from self._saver_faults()

    def _saver_faults(self) -> Iterator[str]:
        """Report savers that share a place or an outbox."""
        uploads = [saver for saver in self.save if saver.outbox is not None]
        for outbox in dict.fromkeys(saver.outbox for saver in uploads):
            first, *rest = (saver.place for saver in uploads if saver.outbox == outbox)
            if first in rest:
                yield f"two savers send to {first}; one can send both the latest and the best"
            elif rest:
                yield f"savers send to {first} and {rest[0]}, which share the folder outbox/{outbox}; rename a place"
        copies = list(itertools.chain.from_iterable(saver.copies_to for saver in self.save))
        for place in dict.fromkeys(copies):
            if copies.count(place) > 1:
                yield f"two savers copy to {str(place)!r}, each over the copy of the other; give each its own place"

    @property
    def directory(self) -> Path:
        """The run directory."""
        return expanded(self.data_path)

    @property
    def farewell_s(self) -> float:
        """Longest time in seconds that the end of the run waits for savers and loggers."""
        return max((record.farewell_s for record in self.save), default=0.0) + self.patience_s * bool(self._queued)

    @property
    def _queued(self) -> list[LoggerConfig]:
        """The records of the loggers with their own queue and thread."""
        return [record for record in self.log if not record.is_synchronous]

    def check(self) -> list[str]:
        """Check once that each saver's place is writable and each logger has a key; returns a line for each place."""
        lines = itertools.chain.from_iterable(record.check_places(self.directory) for record in self.save)
        return [*lines, *itertools.chain.from_iterable(record.check_account() for record in self.log)]

    def create(
        self,
        *,
        total_samples: int | None = None,
        monitor: str | None = None,
        directory: Path | None = None,
        stream: TextIO | None = None,
        console: bool = True,
    ) -> Tracker:
        """Open the loggers and savers of a run. Only for rank 0; other ranks use a `Tracker` without loggers.

        Args:
            total_samples: budget of the run, for the progress display; None if unknown.
            monitor: name of the metric that selects the best, for templates that mention `{metric}`.
            directory: replaces `data_path`.
            stream: output of the console logger; None for standard output.
            console: False for no console logger, also if `log` lists a console.
        """
        path = directory or self.directory
        loggers: list[Logger] = [JsonlConfig().create(path)]
        for record in self.log:
            if isinstance(record, ConsoleConfig):
                loggers += [record.create(stream, total_samples)] * console
            elif record.is_synchronous and not isinstance(record, JsonlConfig):
                loggers.append(made(record, "create", record.create(), Logger))
        return Tracker(
            path,
            self,
            loggers=loggers,
            background=[made(record, "create", record.create(), Logger) for record in self._queued],
            savers=[made(record, "create", record.create(path, monitor), Saver) for record in self.save],
        )
