"""Descriptions of runs: the description of a shipped file stays only with the settings of that file."""

from __future__ import annotations

import json
from pathlib import Path

from dp_prior.config import ORIGINS
from dp_prior.config.overrides import flat
from dp_prior.data.errors import first_few
from dp_prior.run.config import HOW_TO_GET_DATA, TrainConfig
from dp_prior.run.configurations import configurations

_PLACES = ("description", "tracker.", "checkpoints.", ORIGINS)
"""Settings that change nothing of what a description says."""


def truly_described(config: TrainConfig) -> TrainConfig:
    """The configuration of a run, without a description that is not its own.

    The description of a file of `configurations` tells hardware, duration and score of these settings. A run with other
    settings is described by the name of the file, the settings that differ, and how to get the data.
    """
    file = _described_by(config.description)
    if file is None:
        return config
    file_settings, settings = (
        flat(configuration.to_document()) for configuration in (TrainConfig.from_json_path(file), config)
    )
    keys = dict.fromkeys([*file_settings, *settings])
    other = [key for key in keys if not key.startswith(_PLACES) and file_settings.get(key) != settings.get(key)]
    if not other:
        return config
    data = HOW_TO_GET_DATA.search(config.description)
    remark = f"Started from {file.parent.name}/{file.name} of dp_prior with other {first_few(other)}."
    return config.model_copy(update={"description": f"{remark} {data[0]}" if data else remark})


def _described_by(description: str) -> Path | None:
    """The file of `configurations` that has this description."""
    files = configurations().values() if description else ()
    return next((path for path in files if json.loads(path.read_bytes()).get("description") == description), None)
