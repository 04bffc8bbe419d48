"""Converts a data set from any format that is read to one that others read, one target format per module.

Numbers keep every bit and their type, frames every pixel. Numbers are held in memory, as in training; of frames, one
block or one episode at a time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

from dp_prior.config import Config
from dp_prior.data.convert.lerobot import write_lerobot
from dp_prior.data.convert.npz import write_npz
from dp_prior.data.convert.recording import Recording
from dp_prior.data.convert.robomimic import write_robomimic
from dp_prior.data.convert.zarr import write_zarr
from dp_prior.data.episodes import EpisodeStoreConfig
from dp_prior.data.errors import DataError

Target = Literal["zarr", "npz", "lerobot", "robomimic"]


class Source(Config):
    """A recorded data set."""

    episodes: EpisodeStoreConfig


def convert(
    source: Path,
    path: Path,
    target: Target,
    *,
    kind: str | None = None,
    settings: Iterable[str] = (),
    renames: Mapping[str, str] | None = None,
    left_out: Collection[str] = (),
    fps: float | None = None,
) -> str:
    """Convert a data set.

    Args:
        kind: type of the source; None for what its files look like.
        settings: fields of its record, as `name=value`.
        renames: new names by key.
        left_out: keys that are not converted.
        fps: control steps per second, instead of what the source says.

    Returns:
        A line about what was written.

    Raises:
        FileExistsError: there is something at `path`.
        DataError: the source is damaged, or the target cannot hold it.
    """
    record = json.dumps({"episodes": {"type": kind or kind_of(source), "path": str(source)}})
    given = Source.from_json(record, [f"episodes.{setting}" for setting in settings], source=str(source))
    recording = Recording.of(given.episodes.create(), renames=renames or {}, left_out=left_out, fps=fps)
    write(recording, path, target)
    names = [*recording.keys, *recording.cameras]
    return f"wrote {len(recording.ends)} episodes, {recording.ends[-1]:,} steps of {', '.join(names)} to {path}"


def kind_of(source: Path) -> str:
    """The type of a data set by its files.

    Raises:
        DataError: there is nothing, or nothing that is known.
    """
    if found := known_kind(source):
        return found
    if not source.exists():
        raise DataError(str(source.absolute()), ["no such file or directory"])
    inside = [path for path in sorted(source.iterdir()) if known_kind(path)] if source.is_dir() else []
    if inside:
        raise DataError(str(source.absolute()), [f"is no data set, but {inside[0]} in it is one; name that"])
    known = "a folder of LeRobot or zarr, or a file .npz, .hdf5, .h5 or .zip"
    raise DataError(str(source.absolute()), [f"is of no known format; expected {known}"])


def known_kind(source: Path) -> str | None:
    """The type of a data set by its files; None if there is nothing, or nothing that is known."""
    by_ending = {".npz": "npz", ".hdf5": "robomimic", ".h5": "robomimic", ".zip": "zarr"}
    if source.is_file():
        return by_ending.get(source.suffix)
    if (source / "meta" / "info.json").is_file():
        return "lerobot"
    return "zarr" if any((source / name).is_file() for name in (".zgroup", "zarr.json")) else None


def write(recording: Recording, path: Path, target: Target) -> None:
    """Write a data set; it appears under its name when it is complete and on disk.

    Raises:
        FileExistsError: there is something at `path`.
        DataError: the source is damaged, or the target cannot hold it.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists; nothing is overwritten, choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    writers = {"zarr": write_zarr, "npz": write_npz, "lerobot": write_lerobot, "robomimic": write_robomimic}
    writers[target](recording, path)
