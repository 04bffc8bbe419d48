"""The configurations that come with the package, by name: `pusht_state` is `configs/policy/pusht_state.json`.

A wheel has them inside the package (setup.py); a clone has them beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

from dp_prior.config import ORIGINS
from dp_prior.data.errors import first_few
from dp_prior.run_directory.changes import flat
from dp_prior.run_directory.config import HOW_TO_GET_DATA, TrainConfig

CONFIG_FOLDER = "configs"

_PLACES = ("description", "tracker.", "checkpoints.", ORIGINS)
"""Settings that change nothing of what a description says."""


def configurations() -> dict[str, Path]:
    """The files by name."""
    package = Path(__file__).parents[1]
    places = [place for place in (package / CONFIG_FOLDER, package.parent / CONFIG_FOLDER) if place.is_dir()]
    return {path.stem: path for place in places[:1] for path in sorted(place.glob("*/*.json"))}


def find_configuration(reference: str | Path) -> Path:
    """The file of a configuration: an existing path, or a name of `configurations`; else the path as it is."""
    path = Path(reference)
    return path if path.exists() else configurations().get(str(reference), path)


def truly_described(config: TrainConfig) -> TrainConfig:
    """The configuration of a run, without a description that is not its own.

    The description of a file of `configurations` tells hardware, duration and score of these settings. A run with other
    settings is described by the name of the file, the settings that differ, and how to get the data.
    """
    file = _described_by(config.description)
    if file is None:
        return config
    theirs, ours = (flat(json.loads(one.to_json())) for one in (TrainConfig.from_json_path(file), config))
    keys = dict.fromkeys([*theirs, *ours])
    other = [key for key in keys if not key.startswith(_PLACES) and theirs.get(key) != ours.get(key)]
    if not other:
        return config
    data = HOW_TO_GET_DATA.search(config.description)
    remark = f"Started from {file.parent.name}/{file.name} of dp_prior with other {first_few(other)}."
    return config.model_copy(update={"description": f"{remark} {data[0]}" if data else remark})


def _described_by(description: str) -> Path | None:
    """The file of `configurations` that has this description."""
    files = configurations().values() if description else ()
    return next((path for path in files if json.loads(path.read_bytes()).get("description") == description), None)
