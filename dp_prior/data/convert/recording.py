"""Everything that a data set holds, whatever its format: the source of a conversion."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_prior.data.episodes import EpisodeStore
from dp_prior.data.episodes.ends import checked_ends
from dp_prior.data.episodes.lerobot import LeRobotStore
from dp_prior.data.episodes.npz import NpzStore
from dp_prior.data.episodes.robomimic import RobomimicStore
from dp_prior.data.episodes.zarr import ZarrStore
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import decoding
from dp_prior.data.frames import FrameSource
from dp_prior.data.frames.source import open_source

COUNTED = ("index", "episode_index", "frame_index", "timestamp")
"""Columns of LeRobot that follow from the episodes; they are written anew."""

TASK = "task_index"
"""Key of the number of each step's task."""

META = "meta.json"
"""Member of an .npz file with what its arrays do not say: `fps`, `tasks` and `names`."""


@dataclass(frozen=True)
class Recording:
    """Episodes with all their keys, by their new names.

    Attributes:
        ends: (E,) int64 exclusive end row of each episode.
        keys: of numbers, in the store, by name.
        cameras: frames by name.
        fps: control steps per second; None if the source does not say.
        tasks: instructions, by the numbers under `TASK`.
        names: of the numbers of a vector, by the vector's name.
    """

    store: EpisodeStore
    ends: np.ndarray
    keys: Mapping[str, str]
    cameras: Mapping[str, FrameSource]
    fps: float | None
    tasks: list[str]
    names: Mapping[str, list[str]]

    @classmethod
    def of(
        cls, store: EpisodeStore, *, renames: Mapping[str, str], left_out: Collection[str], fps: float | None
    ) -> Recording:
        """Open a data set.

        Args:
            renames: new names by key.
            left_out: keys that are not converted.
            fps: replaces what the data set says.

        Raises:
            DataError: it has other keys than numbers and frames, or such keys cannot be read; all in one report.
        """
        ends, problems = checked_ends(store)
        shapes = store.keys()
        counted = COUNTED if isinstance(store, LeRobotStore) else ()
        unknown = sorted({*renames, *left_out} - {*shapes})
        problems += [f"has no key {key!r} to rename or leave out. {nearest_name(key, shapes)}" for key in unknown]
        keys, cameras = {}, {}
        for key, shape in shapes.items():
            name = renames.get(key, key)
            if key in left_out or key in counted:
                continue
            if name in keys or name in cameras:
                problems.append(f"two keys would be named {name!r}")
            try:
                if is_camera(store.dtype(key), shape):
                    cameras[name] = open_source(store, key, ends)
                    _check_order(cameras[name], name)
                elif is_number(store.dtype(key)):
                    keys[name] = key
                else:
                    raise DataError(store.locate(key, 0), [f"holds {store.dtype(key)}, which is no number"])
            except DataError as error:
                problems += [f"key {key!r}: {problem}; leave it out with --leave-out" for problem in error.problems]
        if problems:
            raise DataError(str(store.describe()["path"]), problems)
        found = stored_metadata(store)
        names = {renames.get(key, key): each for key, each in found["names"].items()}
        tasks = _lerobot_tasks(store) if isinstance(store, LeRobotStore) else found["tasks"]
        return cls(store, ends, keys, cameras, fps or found["fps"], tasks, names)

    @property
    def metadata(self) -> dict[str, Any]:
        """What arrays do not say; JSON-able."""
        return {"fps": self.fps, "tasks": self.tasks, "names": dict(self.names)}

    def read(self, name: str) -> np.ndarray:
        """(N, *shape) numbers, in the stored type.

        Raises:
            DataError: they cannot be read, or there is not one row for each step.
        """
        values, rows = self.store.read(self.keys[name]), int(self.ends[-1])
        if len(values) < rows:
            found = f"has {len(values)} rows, the episodes {rows}; leave it out with --leave-out"
            raise DataError(self.store.locate(self.keys[name], 0), [found])
        return values[:rows]

    def frames(self, name: str, count: int | None = None) -> Iterator[np.ndarray]:
        """(k, H, W, 3) uint8 frames of all steps in order.

        Args:
            count: frames in each block, fewer in the last; None for one block per episode.
        """
        source = self.cameras[name]
        blocks = (block for part in _in_order(source) for block in source.read(part, 0))
        total = int(self.ends[-1])
        lengths = np.diff(self.ends, prepend=0) if count is None else np.diff([*range(0, total, count), total])
        held = np.empty((0, *source.size, 3), np.uint8)
        for length in lengths.tolist():
            pieces, have = [held], len(held)
            while have < length:
                pieces.append(next(blocks))
                have += len(pieces[-1])
            joined = np.concatenate(pieces)
            held = joined[length:]
            yield joined[:length]
        for _ in blocks:  # its end checks that there are no more frames than steps
            pass


def is_camera(dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a key of this stored type and shape per step holds pictures."""
    return dtype in ("video", "image") or (dtype == "uint8" and len(shape) == 3 and 3 in (shape[0], shape[2]))


def is_number(dtype: str) -> bool:
    """Whether a stored type is one of numbers."""
    try:
        return np.dtype(dtype).kind in "biuf"
    except (TypeError, ValueError, SyntaxError):  # for some texts that are no type
        return False


def _in_order(source: FrameSource) -> list[Any]:
    return sorted(source.parts, key=lambda part: part.episodes[0])


def _check_order(source: FrameSource, name: str) -> None:
    """Raises DataError unless the files of a camera can be read one after another in the order of the episodes."""
    episodes = [episode for part in _in_order(source) for episode in part.episodes]
    if episodes != list(range(len(source.ends))):
        raise DataError(str(source.root), [f"files of {name!r} hold episodes in another order than the data"])


def stored_metadata(store: EpisodeStore) -> dict[str, Any]:
    """`Recording.metadata` of a source, as far as its format has it; tasks of LeRobot are `LeRobotStore.tasks`.

    What has another form was written by other programs, which may use the same names, and is left out.

    Raises:
        DataError: they are no JSON object.
    """
    found = _metadata(store)
    if not isinstance(found, dict):
        raise DataError(str(store.describe()["path"]), [f"has metadata {str(found)[:50]!r}; expected a JSON object"])
    fps, tasks, names = (found.get(name) for name in ("fps", "tasks", "names"))
    return {
        "fps": fps if isinstance(fps, (int, float)) and 0 < fps < math.inf else None,
        "tasks": tasks if _are_texts(tasks) else [],
        "names": {key: each for key, each in names.items() if _are_texts(each)} if isinstance(names, dict) else {},
    }


def _metadata(store: EpisodeStore) -> Any:
    match store:
        case LeRobotStore():
            return store.describe()
        case ZarrStore():
            return store.attributes("meta")
        case RobomimicStore():
            return store.metadata()
        case NpzStore():
            with decoding(store.path), zipfile.ZipFile(store.path) as archive:
                return json.loads(archive.read(META)) if META in archive.namelist() else {}
    return {}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _lerobot_tasks(store: LeRobotStore) -> list[str]:
    tasks = store.tasks() if store.tasks_file.is_file() else {}
    if sorted(tasks) != list(range(len(tasks))):
        raise DataError(str(store.path / "meta"), [f"tasks are numbered {sorted(tasks)[:5]}, ...; expected 0, 1, ..."])
    return [tasks[number] for number in range(len(tasks))]
