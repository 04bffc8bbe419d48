"""Where numbers, pictures and checkpoints of a run go: the members of each family, and the record that joins them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TextIO

from pydantic import Field, model_validator

from dp_prior.config import Config
from dp_prior.tracking.console import ConsoleConfig
from dp_prior.tracking.fsspec import FsspecSaverConfig
from dp_prior.tracking.huggingface import HuggingFaceSaverConfig
from dp_prior.tracking.jsonl import JsonlConfig, JsonlLogger
from dp_prior.tracking.local import LocalLoaderConfig, LocalSaverConfig
from dp_prior.tracking.remote import RemoteLoaderConfig
from dp_prior.tracking.tracker import Tracker
from dp_prior.tracking.uploads import UploadConfig, try_out
from dp_prior.tracking.wandb_artifacts import WandbSaverConfig

LoggerConfig = Annotated[ConsoleConfig | JsonlConfig, Field(discriminator="type")]
SaverConfig = Annotated[
    LocalSaverConfig | HuggingFaceSaverConfig | FsspecSaverConfig | WandbSaverConfig, Field(discriminator="type")
]
LoaderConfig = Annotated[LocalLoaderConfig | RemoteLoaderConfig, Field(discriminator="type")]


class TrackerConfig(Config):
    """The run directory, who is told how training goes, who receives its checkpoints, and where it goes on from."""

    data_path: str = "runs/run"
    """Directory of the run; relative to the working directory, `~` is the home directory."""

    log: tuple[LoggerConfig, ...] = (ConsoleConfig(),)
    """Loggers, told in this order. The JSONL log in the run directory is always there and always first."""

    save: tuple[SaverConfig, ...] = ()
    """Savers that receive each checkpoint once it is durable in the run directory."""

    load: LoaderConfig = LocalLoaderConfig()
    """Where a run that resumes finds its checkpoint."""

    max_failures: int = Field(default=3, ge=1)
    """A logger that failed so many times in a row is not called any more; the run goes on and names it at the end."""

    @model_validator(mode="after")
    def _one_of_each(self) -> TrackerConfig:
        names = [logger.type for logger in self.log]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"logger {name!r} is listed {names.count(name)} times; keep one")
        places = [saver.place for saver in self.save if isinstance(saver, UploadConfig)]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"two savers send to {place}; one can send both the latest and the best")
        return self

    def check(self) -> list[str]:
        """Try once whether each remote place takes what will be sent; returns a line for each."""
        return [f"{one.place}: {try_out(one)}" for one in self.save if isinstance(one, UploadConfig)]

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
        consoles = [record.create(stream, total_samples) for record in self.log if not isinstance(record, JsonlConfig)]
        return Tracker(
            path,
            loggers=[JsonlLogger(path), *consoles],
            savers=[record.create(path, monitor) for record in self.save],
            loader=loader,
            max_failures=self.max_failures,
        )
