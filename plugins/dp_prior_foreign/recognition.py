"""Recognition of data sets: the record of the data set at a path, by a given type or by the files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePath

from dp_prior.config import Config, records_in
from dp_prior.config.origins import own_packages
from dp_prior.data.errors import DataError, UnreadableError, first_few
from dp_prior.data.formats import EpisodeStoreConfig
from dp_prior.data.formats.episode_files import episode_at, files_of_episodes, first_layout, holds_several
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.hdf5 import ENDINGS, datasets, group_at, groups_at, opened_hdf5
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import expanded
from dp_prior_foreign.episode_groups import groups_of_episodes, hold_episodes_surely, pattern_of
from dp_prior_foreign.unread_layouts import (
    first_folders,
    parts_of_one_episode,
    refuse_unread_layout,
    refuse_unread_npz,
    refuse_unread_zarr,
    steps_in_groups,
)

MOST_ENTRIES = 1000
"""Most files and folders in a folder among which a data set is looked for."""


class Episodes(Config):
    """A recorded data set, as `data` of a configuration names it."""

    episodes: EpisodeStoreConfig


_PACKED = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".zip")
"""Endings of archives and compressed files, which are unpacked before they are looked at."""

_ENDINGS = (*ENDINGS, ".npz", ".npy", ".parquet", ".csv", ".mcap", ".zip")


def record_of(kind: str, path: Path, settings: Iterable[str] = ()) -> EpisodeStoreRecord:
    """Create the record of a data set, which need not exist.

    Args:
        settings: further fields, as `name=value`.

    Raises:
        ConfigError: the type or a setting is unknown.
    """
    settings_text = json.dumps({"episodes": {"type": kind, "path": str(path)}})
    return Episodes.from_json(settings_text, [f"episodes.{setting}" for setting in settings], source=str(path)).episodes


def record_at(place: str) -> EpisodeStoreRecord:
    """Create the record of the data set at a path, or of LeRobot on the Hub, `user/name` or `user/name/folder`.

    Raises:
        DataError: the path does not exist, or is in no known format.
    """
    return record_of_kind(known_kind(expanded(place)), place)


def record_of_kind(kind: str | None, place: str) -> EpisodeStoreRecord:
    """See `record_at`. Args: kind: the result of `known_kind` for the place."""
    path = expanded(place)
    if kind == "zarr" and path.is_dir():
        refuse_unread_zarr(path)
    elif kind == "npz":
        refuse_unread_npz(path)
    entry = {}
    if not path.exists():
        entry = _on_hub(place)
    elif kind is None:
        entry = likely_layout(path)
    if not entry:
        entry = {"type": kind or kind_of(path), "path": str(path)}
    return Episodes.from_json(json.dumps({"episodes": entry}), source=place).episodes


def _on_hub(place: str) -> dict[str, str]:
    """`episodes` for `user/name` or `user/name/folder` on the Hub; empty for a place that can only be a path."""
    user, *rest = place.split("/", 2)
    if place.startswith((".", "/", "~")) or not rest or (len(rest) > 1 and Path(user).exists()):
        return {}
    folder = {"folder": rest[1]} if len(rest) > 1 else {}
    return {"type": "lerobot", "repo": f"{user}/{rest[0]}", **folder}


def kind_of(path: Path) -> str:
    """Recognise the type of a data set by its files.

    Raises:
        DataError: the path does not exist, or is in no known format.
    """
    kind = known_kind(path)
    if kind is not None:
        return kind
    if not path.exists():
        raise DataError(str(path.absolute()), [f"no such file or directory{misplaced(path, 'data')}"])
    refuse_unread_layout(path)
    layout = likely_layout(path)
    if layout:
        example = json.dumps({"episodes": layout})
        raise DataError(str(path.absolute()), [f"is read if a configuration says how, probably {example}"])
    entries = sorted(path.iterdir()) if path.is_dir() else []
    inside = next((entry for entry in entries[:MOST_ENTRIES] if known_kind(entry)), None)
    inside = inside or next((entry for entry in entries[:MOST_ENTRIES] if _has_groups_of_episodes(entry)), None)
    if inside is None and path.is_dir():
        folders = first_folders(path)[1:]
        inside = next((folder for folder in folders if known_kind(folder) or likely_layout(folder)), None)
    if inside:
        if inside.is_dir() and known_kind(inside) == "zarr":
            refuse_unread_zarr(inside)
        raise DataError(str(path.absolute()), [f"is no data set, but {inside} in it is one; name that"])
    arrays = _arrays_of_one_episode(path)
    if arrays:
        joined = parts_of_one_episode(first_layout([path])) if path.suffix in ENDINGS else ""
        says = f"a configuration says so: {json.dumps({'episodes': {'type': 'episode_files', 'path': str(path)}})}"
        what = says if path.is_dir() else "name their folder"
        remedy = f"If each file is one episode, {what}; else say how it is read (docs/data.md#layouts)"
        finding = f"holds {arrays}, and no layout of several episodes"
        raise DataError(str(path.absolute()), [f"{finding}. {joined and f'{joined}. '}{remedy}"])
    formats = "a folder of LeRobot or zarr, a folder with a file .hdf5, .npz, .parquet or .csv per episode"
    formats = f"{formats}, or a file .npz, .hdf5, .h5, .zip or .mcap"
    names = first_few([entry.name for entry in entries], 3)
    finding = f"is of no known format{names and ', it holds '}{names}"
    remedy = _remedy([entry.name for entry in entries] or [path.name])
    raise DataError(str(path.absolute()), [f"{finding}; expected {formats} (docs/data.md#layouts), or {remedy}"])


def _remedy(names: list[str]) -> str:
    """Advise what to do with files of these names, which no format knows."""
    for name in names:
        ending = PurePath(name).suffix
        if ending.lower() in _PACKED:
            return f"unpack {name} and its like"
        if ending != ending.lower() and ending.lower() in _ENDINGS:
            return f"rename {name} and its like: endings are in lower case"
        if ending in (".csv", ".parquet"):
            return f"split {name} into a file for each episode, and name their folder (docs/own_data.md#other-files)"
    return "save arrays by NumPy (docs/own_data.md#other-files)"


def likely_layout(path: Path) -> dict[str, str]:
    """Propose `episodes` of a configuration for groups called NAME_0, NAME_1, ..., also below a parent, or for folders,
    or folders of folders, with a file of an episode; empty for another path."""
    if steps_in_groups(path):
        return {}
    if path.suffix in ENDINGS:
        groups = groups_of_episodes(first_layout([path]))
        if groups:
            return {"type": "hdf5_groups", "path": str(path), "groups": pattern_of(groups)}
    elif path.is_dir():
        for folders in ("*/", "*/*/"):  # of episodes, and of days with episodes
            files = files_of_episodes(path, f"{folders}*")
            arrays = first_layout(files[:1])
            have_one_name = len(files) > 1 == len({file.name for file in files})
            if have_one_name and arrays and not holds_several(arrays):
                return {"type": "episode_files", "path": str(path), "files": f"{folders}{files[0].name}"}
    return {}


def _arrays_of_one_episode(path: Path) -> str:
    """List the first arrays, with shapes, of an HDF5 or `.npz` file, or of the first such file in a folder, and why
    other arrays of it cannot be read."""
    has_arrays = path.suffix in (*ENDINGS, ".npz")
    files = files_of_episodes(path, "*") if path.is_dir() else [path] * has_arrays
    layout = episode_at(files[0]).layout if files else {}
    lost = [*episode_at(files[0]).lost.values()] if files else []
    inside = first_few([*(f"{key} {shape}" for key, (shape, _) in layout.items()), *lost], 8)
    return f"{files[0].name} with {inside}" if path.is_dir() and inside else inside


def known_kind(path: Path) -> str | None:
    """Recognise the type of a data set by its files; None if the path does not exist or is in no known format. Formats
    that another package adds come first, since its users have such files, and those of the trainer last."""

    def place(record: type[EpisodeStoreRecord]) -> int:
        package = record.__module__.partition(".")[0]
        return (package in own_packages()) + (package == "dp_prior")

    records = sorted(records_in(EpisodeStoreConfig), key=place)
    kind = next((record.model_fields["type"].default for record in records if record.is_at(path)), None)
    if kind == "episode_files" and (steps_in_groups(path) or _holds_grouped_files(path)):
        return None
    return None if kind == "robomimic" and _calls_actions_otherwise(path) else kind


def _calls_actions_otherwise(file: Path) -> bool:
    """Whether a file with the groups of robomimic has no array called actions, as RoboTurk's, which groups of any HDF5
    file read."""
    with contextlib.suppress(DataError, UnreadableError, ImportError), opened_hdf5(file, "its layout") as stored:
        groups = [group_at(stored, name) for name in groups_at(stored, "data/demo_*")]
        return bool(groups) and all("actions" not in group and datasets(group)[0] for group in groups)
    return False


def _holds_grouped_files(folder: Path) -> bool:
    """Whether the first file of a folder has several episodes in groups."""
    files = files_of_episodes(folder, "*")
    groups = groups_of_episodes(first_layout(files[:1])) if files[0].suffix in ENDINGS else {}
    return bool(groups) and hold_episodes_surely(groups, len(files) == 1)


def _has_groups_of_episodes(file: Path) -> bool:
    return file.suffix in ENDINGS and bool(groups_of_episodes(first_layout([file])))
