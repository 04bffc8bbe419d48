"""The interface to recorded episodes: the base class that every format extends.

`keys`, `dtype` and `read` have no default. The other methods have one that holds for plain arrays; a format overrides a
method to answer differently or faster.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.config.errors import short
from dp_prior.data.errors import DataError, nearest_name

if TYPE_CHECKING:
    from dp_prior.data.frames import FrameContents, FrameFile, FrameSource

TASK = "task_index"
"""Key of the number of each step's instruction, named as in LeRobot; `dp-prior convert` writes the same key."""


SMALLEST_DEPTH = 16
"""Height and width from which one channel of numbers may be taken for depth."""

SMALLEST_CLOUD = 64
"""Points from which vectors of 3 or 6 numbers may be taken for a cloud, if the name of their key does not say so."""

_NO_DEPTH = re.compile("mask|segm|label|tactile", re.IGNORECASE)

_CLOUD = re.compile("cloud|pcd|lidar", re.IGNORECASE)

SMALLEST_FLOAT_CAMERA = 8
"""Height and width from which an array of floats may be taken for pictures."""


class EpisodeStore(ABC):
    """Concatenated episodes by key. Methods raise DataError for damaged content and UnreadableError for refusals.

    Attributes:
        path: the file or directory.
        format: name of the format, for `describe`.
        episode_ends: (E,) exclusive end row of each episode, as stored; `checked_ends` checks them.
        counted: keys whose values follow from the episodes; a conversion leaves them out.
        text_key: key of the number of each step's instruction among `texts`; None if a configuration must name it.
        reads_apart: whether `episodes` reads some episodes without the others.
    """

    path: Path
    format: str
    episode_ends: np.ndarray
    counted: Sequence[str] = ()
    text_key: str | None = None
    reads_apart: bool = False

    @abstractmethod
    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape, without the row axis, of every key."""

    @abstractmethod
    def dtype(self, key: str) -> str:
        """Stored type of a key by its name in numpy, such as uint8; another text for a type that numpy lacks."""

    @abstractmethod
    def read(self, key: str) -> np.ndarray:
        """Read all rows of a key: (N, *feature_shape), in the stored dtype."""

    def expect(self, keys: Iterable[str]) -> None:  # noqa: B027 (a format need not)
        """Announce the keys that are read next, which a format may read together; replaces earlier announcements. The
        default reads each key by itself."""

    def numbers(self) -> np.ndarray:
        """(E,) int64 number of each episode in the data set's own counting; the default counts from 0."""
        return np.arange(len(self.episode_ends))

    def parts(self) -> dict[str, list[int]]:
        """Named lists of episodes in the data set, such as a training part, as places in the order of the rows; empty
        by default."""
        return {}

    def rows(self, key: str) -> int:
        """Number of rows of a key, one per step or one per episode; the default reads the key."""
        return int(self.read(key).shape[0])

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Read and concatenate the rows of some episodes: (n, *feature_shape), in the stored dtype.

        Args:
            ends: (E,) exclusive end row of each episode, checked.
            numbers: (k,) sorted numbers of the episodes.

        Raises:
            DataError: the key cannot be read, or lacks rows.
        """
        values = self.read(key)
        self._check_rows(key, len(values), ends)
        return np.concatenate([values[begin:end] for begin, end in spans(ends, numbers)])

    def _check_rows(self, key: str, rows: int, ends: np.ndarray) -> None:
        """Raises DataError unless a key has a row for each step."""
        if rows < ends[-1]:
            finding = f"has {rows} rows; expected one for each of {ends[-1]} steps"
            raise DataError(self.locate(key, 0), [f"{finding}; lower the last end, or add the rows that are missing"])

    def count_as_read(self, numbers: np.ndarray) -> None:  # noqa: B027 (a format need not)
        """Add the files of some episodes to `files`, as if they had been read; by default `files` has them already."""

    def cameras(self) -> dict[str, tuple[int, ...]]:
        """Shape of a picture, for every key with a picture per step: three channels of uint8, or of floats that are
        whole numbers from 0 to 255 in the first rows."""
        arrays = {key: shape for key, shape in self.keys().items() if len(shape) == 3 and 3 in (shape[0], shape[2])}
        return {key: shape for key, shape in arrays.items() if self.dtype(key) == "uint8" or self._is_float_camera(key)}

    def depths(self) -> dict[str, tuple[int, ...]]:
        """Shape of a frame, for every key with depth at each step: one channel of 16 bits or, if `depth` is in the name
        of the key, of other wide numbers."""
        return {key: shape for key, shape in self.keys().items() if _is_depth(key, shape, self.dtype(key))}

    def clouds(self) -> dict[str, tuple[int, ...]]:
        """Shape of every key with a point cloud at each step: positions, or positions and colours."""
        shapes = {key: shape for key, shape in self.keys().items() if len(shape) == 2 and shape[1] in (3, 6)}
        likely = {key: shape for key, shape in shapes.items() if shape[0] >= SMALLEST_CLOUD or _CLOUD.search(key)}
        return {key: shape for key, shape in likely.items() if self.is_number(key)}

    def _is_float_camera(self, key: str) -> bool:
        """Whether floats with three axes are pictures; smaller arrays may be rotations or points."""
        large = sum(length >= SMALLEST_FLOAT_CAMERA for length in self.keys()[key]) == 2
        if not large or not self.dtype(key).startswith("float"):
            return False
        ends, problems = self.checked_ends()
        try:
            return not problems and bool(self.frames(key, ends))
        except DataError:
            return False

    def is_number(self, key: str) -> bool:
        """Whether a key holds numbers."""
        try:
            return np.dtype(self.dtype(key)).kind in "biuf"
        except (TypeError, ValueError, SyntaxError):  # for some texts that are no type
            return False

    def frames(
        self, key: str, ends: np.ndarray, contents: FrameContents | None = None, numbers: np.ndarray | None = None
    ) -> FrameSource:
        """Open the frames of a camera; pictures beside a data set are `FolderFrames`.

        Args:
            ends: (E,) exclusive end row of each episode, checked.
            contents: of every frame; None for colours.
            numbers: (k,) sorted numbers of the episodes whose frames are read; None for all.

        Raises:
            DataError: frames are missing, or do not hold `contents`, one per row.
        """
        if not len(ends):
            raise DataError(self.where, ["has no episodes"])
        if key not in self.keys():
            raise DataError(self.where, [f"has {self.no_key(key)}"])
        from dp_prior.data.frames.chosen_frames import ChosenFrames
        from dp_prior.data.frames.colours import COLOURS

        every = np.arange(len(ends))
        source = self.open_frames(key, ends, every if numbers is None else numbers, contents or COLOURS)
        return source if numbers is None or len(numbers) == len(ends) else ChosenFrames(source, numbers)

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """Open the frames of all episodes; `frames` has checked key and episodes. Episodes outside `numbers` may lack
        the key and their files, and then have no part. The default reads `episodes`, one at a time."""
        from dp_prior.data.frames import FramePart
        from dp_prior.data.frames.arrays import ArrayFrames, PictureArray

        shape, where = (int(ends[-1]), *self.keys()[key]), self.locate(key, 0)
        if not self.is_number(key):
            raise DataError(where, [f"holds {self.dtype(key)}, which are no pictures; expected (N, H, W, 3) uint8"])
        dtype, lengths = np.dtype(self.dtype(key)), np.diff(ends, prepend=0)

        def blocks(first: int, stop: int, step: int) -> Iterator[np.ndarray]:
            number = int(np.searchsorted(ends, min(first, stop - 1), side="right"))
            rows, begin = self.episodes(key, ends, np.array([number])), int(ends[number] - lengths[number])
            for row in range(first - begin, min(stop - begin, len(rows)), step):
                yield rows[row : min(row + step, stop - begin)]

        parts = [FramePart(self.locate(key, int(end) - 1), (number,)) for number, end in enumerate(ends)]
        array = PictureArray(where, shape, dtype, blocks)
        place = (ends, self.path, self.files([key]), self.describe()["format"])
        return ArrayFrames(array, *place, {"key": key}, parts, contents)

    def frame_files(self, key: str, ends: np.ndarray) -> list[FrameFile]:
        """The files that hold frames of a camera alone, including missing files; empty for a format without such
        files."""
        return []

    def remarks(self) -> list[str]:
        """Remarks for the user before training; none by default."""
        return []

    def unread(self) -> dict[str, str]:
        """Reasons, by name, why contents are no keys, and why keys that many episodes lack are not proposed; none by
        default."""
        return {}

    def no_key(self, key: str) -> str:
        """Explain that a key does not exist, for messages; begins with "no key"."""
        why = self.unread().get(key)
        return f"no key {key!r} that can be read: {why}" if why else f"no key {key!r}. {nearest_name(key, self.keys())}"

    def texts(self) -> dict[int, str]:
        """Instructions by the numbers under `text_key`; the default takes the `tasks` of `metadata`.

        Raises:
            DataError: instructions cannot be read.
        """
        return dict(enumerate(self.metadata()["tasks"]))

    def texts_of(self, key: str) -> dict[int, str]:
        """The texts that the numbers under a key stand for; the default is `texts`."""
        return self.texts()

    def text_files(self) -> list[Path]:
        """The files of `texts` that `files` does not name."""
        return []

    def stored_metadata(self) -> Any:
        """Facts beside the arrays, as stored: `fps`, `tasks` and `names`; empty by default."""
        return {}

    def environment(self) -> dict[str, Any] | None:
        """The simulation in which the episodes were recorded, as `env` of an evaluator; None if it is unknown."""
        return None

    def metadata(self) -> dict[str, Any]:
        """Facts beside the arrays; JSON-able.

        Values of another form are left out: other programs may use the same names.

        Returns:
            `fps`, control steps per second or None; `tasks`, a list of instructions; `names`, the names of a vector's
            numbers by key; and `robot_type`, the robot's name in LeRobot or None.

        Raises:
            DataError: the stored metadata are no JSON object.
        """
        stored = self._metadata_object()
        fps, tasks, names, robot = (stored.get(name) for name in ("fps", "tasks", "names", "robot_type"))
        if not isinstance(names, dict):
            names = {}
        return {
            "fps": fps if _is_rate(fps) else None,
            "tasks": tasks if _are_texts(tasks) else [],
            "names": {key: key_names for key, key_names in names.items() if _are_texts(key_names)},
            "robot_type": robot if isinstance(robot, str) and robot else None,
        }

    def rate_fault(self) -> str | None:
        """Why the rate in the metadata counts as not stated; None for a valid or absent rate.

        Raises:
            DataError: the stored metadata are no JSON object.
        """
        fps = self._metadata_object().get("fps")
        if fps is None or _is_rate(fps):
            return None
        finding = f"{self.where}: fps is {short(fps)} in the metadata (of LeRobot, meta/info.json)"
        return f"{finding}; expected a number above 0. It counts as not stated; correct it there"

    def _metadata_object(self) -> dict[str, Any]:
        stored = self.stored_metadata()
        if not isinstance(stored, dict):
            raise DataError(self.where, [f"has metadata {str(stored)[:50]!r}; expected a JSON object"])
        return stored

    @property
    def where(self) -> str:
        """The place of the data set, for messages."""
        return str(self.describe()["path"])

    def locate(self, key: str, row: int) -> str:
        """The file (and array) that holds a row, for messages."""
        return f"{self.path}[{key}]"

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The files that hold these keys and the episode ends, with the format's own files; by default every file of
        the data set."""
        return sorted(filter(Path.is_file, self.path.rglob("*"))) if self.path.is_dir() else [self.path]

    def describe(self) -> dict[str, Any]:
        """Format, path and other identification of the data set; JSON-able. Names of caches depend on it."""
        return {"format": self.format, "path": str(self.path)}

    def checked_ends(self) -> tuple[np.ndarray, list[str]]:
        """Check the episode ends: (E,) int64, and their faults."""
        ends = np.asarray(self.episode_ends)
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            finding = f"{ends.dtype} of shape {ends.shape}"
            return np.zeros(0, np.int64), [f"episode ends are {finding}; expected integers of shape (episodes,)"]
        if len(ends) == 0:
            return np.zeros(0, np.int64), ["the data set is empty: it has 0 episodes"]
        ends = ends.astype(np.int64)
        problems = []
        before = np.concatenate([[0], ends[:-1]])
        for e in np.flatnonzero(ends <= before)[:5]:
            finding = "has no steps: it" if ends[e] == before[e] else "is of no length:"
            finding = f"episode {self.numbers()[e]} {finding} ends at row {ends[e]} but begins at row {before[e]}"
            problems.append(f"{finding}; stored episode ends must increase, as np.cumsum(lengths) does")
        return ends, problems


def misread_ends(ends: np.ndarray, rows: int) -> str:
    """Ask whether ends that leave rows over are lengths, or last rows; an empty string where neither fits.

    Args:
        ends: (E,) stored end row of each episode.
        rows: rows of the data set.
    """
    if len(ends) > 1 and ends.sum() == rows:
        return "; if the stored ends are lengths of episodes, store np.cumsum(lengths)"
    return "; if each stored end is the last row of its episode, add 1 to all" * bool(rows - ends[-1] == 1)


def spans(ends: np.ndarray, numbers: np.ndarray) -> list[tuple[int, int]]:
    """The first row of each of some episodes, and the row after its last.

    Args:
        ends: (E,) exclusive end row of each episode.
        numbers: (k,) numbers of the episodes.
    """
    begins = ends - np.diff(ends, prepend=0)
    return list(zip(begins[numbers].tolist(), ends[numbers].tolist(), strict=True))


def step_of(row: int, ends: np.ndarray) -> tuple[int, int]:
    """Episode and frame of a row. Args: ends: (E,) exclusive end row of each episode."""
    episode = int(np.searchsorted(ends, row, side="right"))
    return episode, int(row - (ends[episode - 1] if episode > 0 else 0))


def _is_depth(key: str, shape: tuple[int, ...], dtype: str) -> bool:
    plane = shape[1:] if shape[:1] == (1,) else shape
    if plane == shape and shape[-1:] == (1,):
        plane = shape[:-1]
    if len(plane) != 2 or min(plane) < SMALLEST_DEPTH or _NO_DEPTH.search(key):
        return False
    wide = ("float16", "float32", "float64", "int32", "uint32", "int64")
    return dtype in ("uint16", "int16") or (dtype in wide and "depth" in key.lower())


def _is_rate(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
