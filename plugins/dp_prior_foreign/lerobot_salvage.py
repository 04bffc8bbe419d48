"""The intact episodes of a data set that was cut off while being recorded, and the faults of the other episodes.

An episode is intact if it is in the episode list, a readable table holds exactly its frames as rows, in sequence and
with their pictures, and the video of each camera gives as many frames. The data set itself is not changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStore, LeRobotStoreConfig, import_pyarrow
from dp_prior.data.formats.lerobot.frames import rows_without_picture, videos_of
from dp_prior.data.formats.lerobot.meta import COUNTED, LeRobotMeta, TableFile
from dp_prior.data.formats.lerobot.tables import read_columns, to_numpy
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.depths import Depths
from dp_prior.data.frames.video_frames import called, whole_frames
from dp_prior.files.regular_files import expanded

_MOST_UNLISTED = 100_000
"""Most episodes missing from the list that are named; a damaged meta/info.json may count billions."""

_UNLISTED = "not in the episode list"


def salvage(record: LeRobotStoreConfig, left_out: Collection[str]) -> tuple[LeRobotStore, list[str]]:
    """See `EpisodeStoreRecord.salvage`."""
    import_pyarrow()
    meta, lines = intact_episodes(expanded(record.local({}, ()).path), left_out)
    return LeRobotStore(meta), lines


def intact_episodes(path: Path, left_out: Collection[str]) -> tuple[LeRobotMeta, list[str]]:
    """Find the intact episodes: returns their metadata, and lines about the other episodes and files.

    Args:
        path: the data set.
        left_out: features that need not be intact.

    Raises:
        DataError: no episode is intact, or meta/info.json cannot be read.
    """
    faults: list[DataError] = []
    meta = LeRobotMeta(path, faults.append)
    cameras = [key for key in meta.cameras if key not in left_out]
    videos = [key for key in cameras if meta.features[key]["dtype"] == "video"]
    pictures = [key for key in cameras if key not in videos]
    numbers = [key for key in meta.numbers if key not in (*left_out, *COUNTED)]
    lost = _unlisted(meta)
    tables = [_checked(meta, file, numbers, pictures, lost) for file in meta.tables]
    has_rows = any(file.episodes for file in tables)
    for key in videos if has_rows else ():
        lost |= _without_frames(meta.part(tables), key)
        tables = [_without(file, lost) for file in tables]
    listing = [fault for fault in faults if fault.source != str(meta.info_file)]
    lines = [f"{fault.source.removeprefix(f'{path}/')}: {fault.problems[0]}" for fault in listing]
    lines += _lines(lost)
    if not any(file.episodes for file in tables):
        hint = f"; to do without the videos, give --leave-out {videos[0]}" if has_rows else ""
        raise DataError(str(path), lines, f"no episode is intact, so nothing is converted (docs/data.md#convert){hint}")
    return meta.part(tables), lines or [f"all {len(meta.lengths)} episodes are intact"]


def _unlisted(meta: LeRobotMeta) -> dict[int, str]:
    """Find the episodes that meta/info.json counts but the episode list lacks."""
    declared = meta.info.get("total_episodes")
    if type(declared) is not int or declared > len(meta.lengths) + _MOST_UNLISTED:
        return {}
    return dict.fromkeys(set(range(declared)).difference(meta.lengths), _UNLISTED)


def _checked(
    meta: LeRobotMeta, file: TableFile, numbers: list[str], pictures: list[str], lost: dict[int, str]
) -> TableFile:
    """Keep the episodes of a file that have all rows; adds the other episodes to `lost`.

    Args:
        numbers: columns that must be readable.
        pictures: columns that must have a picture in every row.
    """
    where = file.path.relative_to(meta.path)
    try:
        table = read_columns(file.path, ["episode_index", "frame_index", *numbers])
        owners, frames = (to_numpy(table.column(key), file.path, key).ravel() for key in table.column_names[:2])
        empty = list(itertools.chain(*(rows_without_picture(file.path, key) for key in pictures)))
    except DataError as error:
        lost |= dict.fromkeys(file.episodes, f"{where} {error.problems[0]}")
        return file._replace(episodes=[], begins=[])
    whole = np.setdiff1d(np.arange(len(owners)), empty)
    whole = whole[np.argsort(owners[whole], kind="stable")]
    bounds = [np.searchsorted(owners[whole], file.episodes, side) for side in ("left", "right")]
    begins: dict[int, int] = {}
    for episode, first, stop in zip(file.episodes, *bounds, strict=True):
        rows = whole[first:stop]
        problem = _hole(frames[rows], rows, meta.lengths[episode])
        if problem:
            lost[episode] = f"{where} {problem}"
        else:
            begins[episode] = int(rows[0])
    lost |= dict.fromkeys(set(owners.tolist()).difference(meta.lengths), _UNLISTED)
    episodes = sorted(begins, key=begins.__getitem__)
    return file._replace(episodes=episodes, begins=[begins[episode] for episode in episodes])


def _hole(frames: np.ndarray, rows: np.ndarray, length: int) -> str:
    """Describe missing, surplus or scattered rows of an episode; an empty string for intact rows.

    Args:
        frames: (n,) number that each row has in the episode.
        rows: (n,) place of each row in the file, increasing.
        length: length of the episode, by the episode list.
    """
    expected = np.arange(length)
    missing = np.setdiff1d(expected, frames)
    if not len(frames):
        return "has no rows of it"
    if len(missing):
        return f"lacks {len(missing)} of its {length} frames, the first is frame {missing[0]}"
    if len(frames) > length:
        return f"has {len(frames)} rows of it, but the episode list gives it {length}"
    is_in_sequence = np.array_equal(frames, expected) and rows[-1] - rows[0] == length - 1
    return "" if is_in_sequence else "does not have its rows in sequence"


def _without_frames(meta: LeRobotMeta, key: str) -> dict[int, str]:
    """Find the episodes that lack frames in the videos of a camera; decodes every video."""
    names, lengths = list(meta.lengths), list(meta.lengths.values())
    contents = Depths() if key in meta.depths() else COLOURS
    lost = {}
    for file in videos_of(meta, key):
        count, problem = whole_frames(file.path, contents)
        where = file.path.relative_to(meta.path)
        for place, begin in zip(file.episodes, file.begins or (0,), strict=True):
            have = max(0, count - begin)
            if have < lengths[place]:
                decoded = f"{have} of its {lengths[place]} frames" if have else "none of its frames"
                lost[names[place]] = f"{where} gives {decoded}: {problem or 'it ends'}"
            elif file.begins is None and have > lengths[place]:
                lost[names[place]] = f"{where} gives {have} frames, but it has {lengths[place]} rows"
    return lost


def _without(file: TableFile, lost: Collection[int]) -> TableFile:
    begins = dict(zip(file.episodes, file.begins, strict=True))
    episodes = [episode for episode in file.episodes if episode not in lost]
    return file._replace(episodes=episodes, begins=[begins[episode] for episode in episodes])


def _lines(lost: dict[int, str]) -> Iterator[str]:
    """Write a line for each run of episodes that are lost for the same reason."""
    places = {number: place for place, number in enumerate(sorted(lost))}
    for (_, reason), run in groupby(places, lambda number: (number - places[number], lost[number])):
        yield f"{called(run)}: left out; {reason}"
