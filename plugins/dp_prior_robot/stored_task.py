"""The task of a checkpoint, and the data that it was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import Config, ConfigError
from dp_prior.data import DataConfig
from dp_prior.data.split_data import SplitData
from dp_prior.tasks import TaskConfig


class StoredTask(Config):
    """A trained task, and the data it was trained on."""

    task: TaskConfig
    """The trained task, with changes of `sampler`."""

    data: DataConfig | None = None
    """null for a model that was saved by itself."""

    def open(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> SplitData:
        """Open the data.

        Args:
            report: receives the progress of a frame cache that has to be built.
            check: leaves that work, see `Ranks.check_before_training`.

        Raises:
            ConfigError: the checkpoint names no data.
            DataError: they cannot be read.
        """
        if self.data is None:
            raise ConfigError(CONFIG, ["names no data: the model was saved by itself; name a checkpoint of its run"])
        opened = self.task.open(self.data.downloaded({}))
        opened.build_caches(report, check)
        return opened


def read_stored(directory: Path, overrides: Iterable[str] = (), *, with_data: bool = True) -> StoredTask:
    """Read the configuration of a checkpoint.

    Args:
        overrides: changes of `task.sampler` and of `data`, as of --set.
        with_data: False leaves the data out, which then may be of a type that is not installed.

    Raises:
        ConfigError: this version cannot read the configuration, or an override changes a trained setting.
    """
    source, overrides = str(directory / CONFIG), tuple(overrides)
    document = read_checkpoint(directory, [CONFIG]).documents[CONFIG]
    sections = {key: document[key] for key in ("task", "data") if key in document and (with_data or key == "task")}
    stored = StoredTask.from_json(json.dumps(sections), overrides, source=source)
    trained = StoredTask.from_json(json.dumps(sections), source=source).task if overrides else stored.task
    if stored.task.model_copy(update={"sampler": trained.sampler}) != trained:
        raise ConfigError("--set", ["of the task only task.sampler can be changed; the rest is trained"])
    return stored
