"""The data set and rate of a LeRobot policy's training, from `train_config.json` beside the policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from dp_prior.config import Config, ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.files.hub_files import HubRepository
from dp_prior.places.errors import NoPlaceError
from dp_prior_foreign.importers.foreign_files import PublishedFiles

TRAINING = "train_config.json"

log = logging.getLogger(__name__)


class LeRobotDataset(Config):
    """The data set."""

    repo_id: str | None = None
    root: str | None = None
    revision: str | None = None


class LeRobotEnvironment(Config):
    """The simulator that evaluated the policy."""

    fps: Annotated[float, Field(gt=0)] | None = None


class LeRobotTrainingConfig(Config):
    """`train_config.json`, without the keys that nothing here reads."""

    dataset: LeRobotDataset | None = None
    env: LeRobotEnvironment | None = None

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        for record, part in ((cls, data), (LeRobotDataset, data.get("dataset")), (LeRobotEnvironment, data.get("env"))):
            for name in part.keys() - record.model_fields.keys() if isinstance(part, dict) else ():
                del part[name]


class KnownTraining(NamedTuple):
    """Facts about a training; None where unknown."""

    episodes: dict[str, Any] | None = None
    """The data set, in the form of `data.episodes`."""

    fps: float | None = None
    """Control steps per second."""

    names: Mapping[str, Sequence[str]] = {}
    """The data set's names of the numbers of a vector, by its key; only of a data set on this machine."""


def training_of(files: PublishedFiles) -> KnownTraining:
    """The training of a policy; an empty one without the file, or with a file of another form.

    The directory that the file names is read only for a policy on this machine.
    """
    try:
        config = files.document(TRAINING, LeRobotTrainingConfig)
    except NoPlaceError:
        raise
    except (FileNotFoundError, ConfigError):
        return KnownTraining()
    dataset, fps = config.dataset or LeRobotDataset(), None if config.env is None else config.env.fps
    if dataset.root is not None and files.revision is None and LeRobotStoreConfig.is_at(Path(dataset.root)):
        record = LeRobotStoreConfig(path=Path(dataset.root).resolve())
        try:
            metadata = record.create().metadata()
        except (DataError, ImportError, OSError) as error:
            log.warning("rate and names of the training are left out, since its data set cannot be read: %s", error)
            metadata = {"fps": None, "names": {}}
        return KnownTraining({"type": "lerobot", "path": str(record.path)}, metadata["fps"] or fps, metadata["names"])
    repository = None if dataset.repo_id is None else HubRepository.parse(dataset.repo_id)
    if repository is None:
        return KnownTraining(None, fps)
    revision = {} if dataset.revision is None else {"revision": dataset.revision}
    return KnownTraining({"type": "lerobot", "repo": repository.name, **revision}, fps)
