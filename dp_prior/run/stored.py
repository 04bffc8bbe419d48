"""The contents of a checkpoint for commands: its model, task, data, and the configuration of its training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import Config, ConfigError, errors_of
from dp_prior.config.outside import check_named
from dp_prior.data import DataConfig
from dp_prior.data.split_data import SplitData
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import PATIENCE
from dp_prior.places.reference import is_downloaded, resolve
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import explain
from dp_prior.tasks import TaskConfig
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tensors.batch import Spec

COPY = "copy the checkpoint here by `dp-prior export --whole`, and read its configuration"
REPEAT = f"Repeat the setting by --set, or {COPY}"

TIMEOUT_S = 120.0
"""Limit of a collective, and of a rank without progress."""


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


def stored_config(directory: Path) -> TrainConfig | None:
    """The configuration of a checkpoint; None if it holds none of a run."""
    if not (directory / CONFIG).is_file():
        return None
    document = read_checkpoint(directory, [CONFIG]).documents[CONFIG]
    if "train" not in document:
        return None
    return TrainConfig.from_json(json.dumps(document), source=str(directory / CONFIG))


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


def check_origin(reference: str, parts: Mapping[str, Any], overrides: Iterable[str] = (), remedy: str = REPEAT) -> None:
    """Refuse files and machines in a configuration from another machine unless the user names them as well.

    Args:
        reference: of the checkpoint.
        parts: of its configuration that a command uses, by their paths in the file.
        overrides: of the user, KEY=VALUE, already in `parts`.
        remedy: one or two sentences.

    Raises:
        ConfigError: lists these files and machines.
    """
    if is_downloaded(reference):
        check_named(reference, parts, overrides, remedy)


def load_model(reference: str, ranks: Ranks, *, weights: str | None, guidance_scale: float | None) -> tuple[Path, Any]:
    """The model of any task, on the device of this rank. A collective.

    Args:
        reference: of a checkpoint, a run or an export; see `dp_prior.places.reference`.
        weights, guidance_scale: see `Pretrained.from_pretrained`.

    Returns:
        The directory of the checkpoint, and the model.

    Raises:
        ConfigError: it cannot be loaded, or not guided.
    """
    directory = ranks.decide(lambda: resolve(reference, whole=weights is not None), PATIENCE * TIMEOUT_S)
    how = {"weights": weights, "guidance_scale": guidance_scale, "device": ranks.device}
    with errors_of(str(directory)):  # for example, there are no such weights
        return directory, Pretrained.from_pretrained(directory, **how)


def check_classes(trained: Spec, measured: Spec) -> None:
    """Compare the classes of a model with the classes of the data that measure the model.

    A label is a number, the place of its name. A model with numbers for names, as of improved-diffusion, takes any
    names if they are as many.

    Args:
        trained: the shapes of the model.
        measured: those of the data.

    Raises:
        ConfigError: the data have other classes, so that their labels would stand for other names.
    """
    for key, names in trained.classes.items():
        measured_names = measured.classes.get(key, ())
        is_numbered = names == tuple(map(str, range(len(names)))) and len(measured_names) == len(names)
        if measured_names == names or is_numbered:
            continue
        odd = [name for name in (*names, *measured_names) if (name in names) != (name in measured_names)]
        listed = f"{', '.join(map(repr, odd[:5]))}{' and more' if len(odd) > 5 else ''}" if odd else "their order"
        counts = f"{len(measured_names):,} classes, but the model was trained on {len(names):,}"
        problem = f"{key!r} has {counts}, apart in {listed}"
        raise ConfigError("data", [f"{problem}. Labels are numbers in their order; name data with the same classes"])


def watched(ranks: Ranks, stacks: Path) -> contextlib.AbstractContextManager[None]:
    """Inside, several ranks exchange heartbeats and end together.

    Args:
        stacks: folder for the stacks of ranks that fail or hang.
    """
    return ranks.watched(TIMEOUT_S, stacks, lambda error: explain(error, ranks.process_index), lambda verdict: None)
