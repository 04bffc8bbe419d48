"""Names of data sets, and a directory for the run of each, which no run on other data has."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

from dp_prior.files.file_names import folded, is_portable
from dp_prior.files.regular_files import read_object

COMMON = re.compile(
    r"lerobot|robomimic|zarr|hdf5|data(set)?s?|demos?|demonstrations?|episodes?|recordings?|raw|train(ing)?|output"
    r"|replay_?buffer|low_?dim|images?|processed|final|v?\d+(\.\d+)*",
    re.IGNORECASE,
)
"""Names that say nothing about a data set, as folders of libraries and recorders have them."""


LONGEST = 80
"""Most characters of a data set's name in the name of a run directory."""


def data_name(path: Path) -> str:
    """Name a data set by its file or folder, after its parent folders while the name says nothing; see `COMMON`."""
    parts = path.resolve().parts[1:]
    length = 1
    while length < min(len(parts), 3) and COMMON.fullmatch(Path(parts[-length]).stem):
        length += 1
    return "/".join(parts[-length:]) if parts else str(path)


def run_directory(name: str, data: dict[str, Any]) -> str:
    """Choose the directory of a run on a data set: `runs/NAME`, with a number if a run on other data has this name.

    Args:
        data: of the configuration.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:LONGEST] or "data"
    present = [path.name for path in Path("runs").iterdir()] if Path("runs").is_dir() else []
    taken = {*map(folded, present)}
    for number in count(1):
        folder = plain if number == 1 else f"{plain}_{number}"
        stored = read_object(Path("runs") / folder / "config.json").get("data")
        if stored is not None:
            is_free = _sources(stored) == _sources(data)
        else:
            is_free = folder in present or (is_portable(folder) and folded(folder) not in taken)
        if is_free:
            break
    return f"runs/{folder}"


def _sources(data: Any) -> list[tuple[str, str]]:
    """List the paths and repositories in `data`, each after its key."""
    if isinstance(data, list):
        data = dict(enumerate(data))
    sources: list[tuple[str, str]] = []
    for key, value in sorted(data.items(), key=str) if isinstance(data, dict) else ():
        if key in ("path", "repo") and isinstance(value, str):
            sources.append((key, value))
        else:
            sources += _sources(value)
    return sources
