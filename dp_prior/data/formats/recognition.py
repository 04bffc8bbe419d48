"""The record of a data set at a path: of a given type, or of the type that its files look like."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dp_prior.config import Config, records_in
from dp_prior.data.errors import DataError
from dp_prior.data.formats import EpisodeStoreConfig
from dp_prior.data.formats.store_record import EpisodeStoreRecord


class Episodes(Config):
    """A recorded data set, as `data` of a configuration names it."""

    episodes: EpisodeStoreConfig


def record_of(kind: str, path: Path, settings: Iterable[str] = ()) -> EpisodeStoreRecord:
    """The record of a data set, which need not exist.

    Args:
        settings: further fields, as `name=value`.

    Raises:
        ConfigError: the type or a setting is unknown.
    """
    given = json.dumps({"episodes": {"type": kind, "path": str(path)}})
    return Episodes.from_json(given, [f"episodes.{setting}" for setting in settings], source=str(path)).episodes


def kind_of(path: Path) -> str:
    """The type of a data set by its files.

    Raises:
        DataError: there is nothing, or nothing that is known.
    """
    if found := known_kind(path):
        return found
    if not path.exists():
        raise DataError(str(path.absolute()), ["no such file or directory"])
    inside = [each for each in sorted(path.iterdir()) if known_kind(each)] if path.is_dir() else []
    if inside:
        raise DataError(str(path.absolute()), [f"is no data set, but {inside[0]} in it is one; name that"])
    known = "a folder of LeRobot or zarr, or a file .npz, .hdf5, .h5 or .zip"
    raise DataError(str(path.absolute()), [f"is of no known format; expected {known}"])


def known_kind(path: Path) -> str | None:
    """The type of a data set by its files; None if there is nothing, or nothing that is known."""
    return next(
        (record.model_fields["type"].default for record in records_in(EpisodeStoreConfig) if record.is_at(path)), None
    )
