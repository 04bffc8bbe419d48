"""Where numbers, pictures and checkpoints of a run go: the members of each family, and the record that joins them."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from pydantic import Field, model_validator

from dp_prior.config import Config, family
from dp_prior.places import ResumeConfig, SaverConfig
from dp_prior.places.resume import LocalResumeConfig
from dp_prior.places.upload import UploadConfig
from dp_prior.tracking.accelerate import AccelerateConfig
from dp_prior.tracking.console import ConsoleConfig
from dp_prior.tracking.csv import CsvConfig
from dp_prior.tracking.identity import ID
from dp_prior.tracking.jsonl import JsonlConfig, JsonlLogger
from dp_prior.tracking.tensorboard import TensorBoardConfig
from dp_prior.tracking.tracker import Tracker
from dp_prior.tracking.wandb import WandbConfig

LoggerConfig = family(
    "loggers", ConsoleConfig, JsonlConfig, CsvConfig, TensorBoardConfig, WandbConfig, AccelerateConfig
)


class TrackerConfig(Config):
    """The run directory, who is told how training goes, who receives its checkpoints, and where it goes on from."""

    data_path: str = Field(default="runs/run", min_length=1)
    """Directory of the run; relative to the working directory, `~` is the home directory."""

    log: tuple[LoggerConfig, ...] = (ConsoleConfig(),)
    """Who is told how training goes. The JSONL log in the run directory is always there and always first; it and the
    console are told at once, each of the others has a queue and a thread of its own."""

    save: tuple[SaverConfig, ...] = ()
    """Savers that receive each checkpoint once it is durable in the run directory."""

    load: ResumeConfig = LocalResumeConfig()
    """Where a run that resumes finds its checkpoint."""

    run_id: str | None = Field(default=None, pattern=f"^{ID}$")
    """Identity of the run with services that keep many. null keeps that of the run directory or, on a fresh one, of the
    checkpoint it goes on from; a new run gets a new one. Give another one to branch off."""

    run_name: str | None = Field(default=None, min_length=1)
    """Name of the run for people; null keeps the one it has, at first that of its directory."""

    max_failures: int = Field(default=3, ge=1)
    """A logger that failed so many times in a row is muted for a while; the run goes on and names it at the end."""

    retry_s: float = Field(default=10.0, gt=0)
    """A muted logger is tried again after so many seconds, then after twice as many, up to ten minutes."""

    queue_size: int = Field(default=1000, ge=1)
    """So many calls may wait for a slow logger; further ones are dropped and counted."""

    patience_s: float = Field(default=10.0, ge=0)
    """The end of the run waits so many seconds for all loggers together, then leaves them behind."""

    @model_validator(mode="after")
    def _one_of_each(self) -> TrackerConfig:
        names = [getattr(logger, "tracker", logger.type) for logger in self.log]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"logger {name!r} is listed {names.count(name)} times; keep one")
        places = [saver.place for saver in self.save if isinstance(saver, UploadConfig)]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"two savers send to {place}; one can send both the latest and the best")
        return self

    @property
    def farewell_s(self) -> float:
        """Seconds that the end of the run may wait for savers and loggers."""
        is_behind_a_queue = any(not isinstance(record, JsonlConfig | ConsoleConfig) for record in self.log)
        savers = [record.drain_s for record in self.save if isinstance(record, UploadConfig)]
        return max(savers, default=0.0) + self.patience_s * is_behind_a_queue

    def check(self) -> list[str]:
        """Try once whether each remote place takes what will be sent; returns a line for each."""
        return [f"{one.place}: {one.check()}" for one in self.save if isinstance(one, UploadConfig)]

    def create(
        self,
        *,
        is_main: bool,
        total_samples: int,
        monitor: str | None = None,
        directory: Path | None = None,
        stream: TextIO | None = None,
    ) -> Tracker:
        """Open the loggers and savers of this process.

        Args:
            is_main: False on all ranks but one; their tracker has nobody to tell and touches no file.
            total_samples: budget of the run, for the progress display.
            monitor: name of the metric that selects the best, for templates that mention `{metric}`.
            directory: takes the place of `data_path`.
            stream: where the console logger writes; standard output if None.
        """
        path = Path(self.data_path).expanduser() if directory is None else directory
        loader = self.load.create(path)
        if not is_main:
            return Tracker(path, loggers=[], savers=[], loader=loader, max_failures=self.max_failures)
        others = [record for record in self.log if not isinstance(record, JsonlConfig | ConsoleConfig)]
        consoles = [record.create(stream, total_samples) for record in self.log if isinstance(record, ConsoleConfig)]
        return Tracker(
            path,
            loggers=[JsonlLogger(path), *consoles],
            background=[record.create() for record in others],
            savers=[record.create(path, monitor) for record in self.save],
            loader=loader,
            max_failures=self.max_failures,
            retry_s=self.retry_s,
            queue_size=self.queue_size,
            patience_s=self.patience_s,
        )
