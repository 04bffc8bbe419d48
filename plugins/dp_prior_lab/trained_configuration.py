"""The configuration of the run that a checkpoint is of."""

from __future__ import annotations

import json
from pathlib import Path

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.run.config import TrainConfig


def stored_config(directory: Path) -> TrainConfig | None:
    """The configuration of a checkpoint; None if it holds none of a run."""
    if not (directory / CONFIG).is_file():
        return None
    document = read_checkpoint(directory, [CONFIG]).documents[CONFIG]
    if "train" not in document:
        return None
    return TrainConfig.from_json(json.dumps(document), source=str(directory / CONFIG))
