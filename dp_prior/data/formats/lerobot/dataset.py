"""LeRobot data sets, formats v2.0, v2.1 and v3.0: their record, and the columns with numbers or a text per frame.

This is a reader of the published layout; the lerobot package is not needed.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from glob import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from dp_prior.config import Outside
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.formats.lerobot.frames import lerobot_frames, videos_of
from dp_prior.data.formats.lerobot.hub import COLUMNS, METADATA, download, files_of_cameras, files_of_episodes
from dp_prior.data.formats.lerobot.meta import COUNTED, LeRobotMeta, TableFile
from dp_prior.data.formats.lerobot.tables import read_columns, to_numpy
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.frames import FrameContents, FrameFile, FrameSource
from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import expanded

if TYPE_CHECKING:
    import pyarrow


class LeRobotStoreConfig(EpisodeStoreRecord):
    """A LeRobot data set, format v2.0, v2.1 or v3.0; its meta/info.json says which."""

    can_salvage: ClassVar[bool] = True
    writes_videos: ClassVar[bool] = True

    type: Literal["lerobot"] = "lerobot"

    path: Path | None = None
    """The data set's directory, the one that holds meta/ and data/; relative to the working directory, `~` is the home
    directory. Give either this or `repo`."""

    repo: Annotated[str | None, Outside()] = None
    """The data set's name on the Hugging Face Hub, `user/name`; it is downloaded into the cache of the Hub's client."""

    folder: str | None = None
    """The folder of `repo` that holds the data set, for a repository with several; null is the top."""

    revision: str | None = None
    """Commit, tag or branch of `repo`. null is the newest commit when the run first starts; the run stores its commit
    and keeps to it."""

    def faults(self) -> Iterator[str]:
        if (self.path is None) == (self.repo is None):
            finding = "both path and repo are" if self.repo else "neither path nor repo is"
            yield f'{finding} given; write "path" for a directory, or "repo" for a data set on the Hub'
        for name in ("revision", "folder"):
            if getattr(self, name) is not None and self.repo is None:
                yield f"{name} is of a data set on the Hub, but repo is not given"
        if self.repo is not None and self.repo.count("/") > 1:
            user, name, rest = self.repo.split("/", 2)
            remedy = f'give "repo": "{user}/{name}", "folder": "{rest}"'
            yield f"repo is {self.repo!r}, which has more than two parts; {remedy}"
        if self.folder is not None and (self.folder.startswith("/") or ".." in Path(self.folder).parts):
            yield f"folder is {self.folder!r}, which leaves the repository"

    @model_serializer(mode="wrap")
    def _leave_out_where_it_was_downloaded_to(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return write(self) if self.repo is None else {**write(self), "path": None}

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return (path / "meta" / "info.json").is_file() and not (path / "frames.lance").exists()

    @property
    def is_remote(self) -> bool:
        return self.repo is not None

    def local(self, pinned: Mapping[str, str], cameras: Collection[str], choice: ChoiceConfig = ALL_EPISODES) -> Self:
        """See `EpisodeStoreRecord`; with the commit and the directory of a data set on the Hub."""
        if self.repo is None or self.path is not None:
            return self
        revision, inside = self.revision or pinned.get(self.repo), self.folder or "."
        within = PurePosixPath(escape(inside))

        def downloaded(commit: str | None, names: Iterable[str]) -> tuple[Path, str]:
            path, commit = download(self.repo, commit, [(within / name).as_posix() for name in names])
            if not LeRobotStoreConfig.is_at(path / inside):
                lacking = PurePosixPath(inside, "meta", "info.json")
                problem = f"gave no {lacking}; check data.episodes.folder, or try again where the network was away"
                raise DataError(f"https://huggingface.co/datasets/{self.repo} at {commit}", [problem])
            return path / inside, commit

        if choice == ALL_EPISODES:
            path, commit = downloaded(revision, [METADATA, COLUMNS, *files_of_cameras(cameras)])
        else:
            import_pyarrow()
            path, commit = downloaded(revision, [METADATA, COLUMNS] if choice.where else [METADATA])
            meta = LeRobotMeta(path)
            chosen, _ = choice.of(LeRobotStore(meta))  # faults of episodes are reported when these are read
            downloaded(commit, files_of_episodes(meta, chosen, cameras))
        return self.model_copy(update={"path": path, "revision": commit})

    def create(self) -> LeRobotStore:
        """Read the metadata; columns are read when asked for. For a data set on the Hub, videos are not downloaded.

        Raises:
            ImportError: pyarrow is not installed.
        """
        import_pyarrow()
        meta = LeRobotMeta(expanded(self.local({}, ()).path))
        if meta.info.get("storage_format") == "lance":
            raise DataError(str(meta.path), ['is in Lance tables; read the data set as "type": "lance"'])
        return LeRobotStore(meta)


class LeRobotStore(EpisodeStore):
    """Reads a LeRobot data set column by column. Attributes: meta: the content of the folder `meta`."""

    counted, text_key, reads_apart = COUNTED, TASK, True

    def __init__(self, meta: LeRobotMeta):
        self.path, self.meta = meta.path, meta
        self.episode_ends = np.cumsum(np.array(list(self.meta.lengths.values()), dtype=np.int64))
        self._file_ends = np.cumsum([file.n_rows(meta.lengths) for file in meta.tables])
        self._order_checked = False
        self._expected: set[str] = set()
        self._read_from: set[Path] = set()
        self._ahead: dict[tuple[Path, str], np.ndarray] = {}  # columns of files, read together with another column

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Shape per frame of every feature, including videos."""
        return {name: tuple(feature.get("shape") or ()) for name, feature in self.meta.features.items()}

    def dtype(self, key: str) -> str:
        """Type that meta/info.json declares for a feature."""
        return str(self.meta.features[key].get("dtype"))

    def expect(self, keys: Iterable[str]) -> None:
        """See `EpisodeStore`; the next read of a key opens each file for all announced keys."""
        self._expected, self._ahead = {*keys} - {*self.meta.cameras}, {}

    def numbers(self) -> np.ndarray:
        """The `episode_index` of each episode."""
        return np.array(list(self.meta.lengths), np.int64)

    def parts(self) -> dict[str, list[int]]:
        """The `splits` of meta/info.json."""
        return self.meta.splits()

    def rows(self, key: str) -> int:
        return int(self.episode_ends[-1])

    def read(self, key: str) -> np.ndarray:
        """Read the (N, *shape) frames of a feature that is a column of numbers.

        Raises:
            DataError: the feature is video or images; a file is missing or damaged; rows do not match the metadata.
        """
        if key in self.meta.cameras:
            numbers = ", ".join(sorted(self.meta.numbers))
            finding = f"key {key!r} is {self.dtype(key)}, no column of numbers, which are: {numbers}"
            raise DataError(str(self.path), [finding])
        problems: list[str] = []
        parts = []
        for file in self.meta.tables:
            try:
                parts.append(self._read_file(file, key))
            except DataError as error:
                problems += [f"{error.source}: {problem}" for problem in error.problems]
        parts = [part for part in parts if len(part)]  # a file without rows has no widths
        widths = {part.shape[1:] for part in parts}
        if len(widths) > 1:
            problems.append(f"key {key!r} has different shapes in different files: {sorted(widths)}")
        if problems:
            raise DataError(str(self.path), problems)
        self._order_checked = True
        return self._as_declared(key, np.concatenate(parts) if parts else np.zeros((0,)))

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; reads only the files that hold these episodes."""
        if len(numbers) == len(ends):
            return super().episodes(key, ends, numbers)
        names = list(self.meta.lengths)
        chosen = {names[number] for number in numbers.tolist()}
        parts = []
        for file in self.meta.tables:
            if chosen.intersection(file.episodes):
                values = self._read_file(file, key)
                lengths = [self.meta.lengths[name] for name in file.episodes]
                parts.append(values[np.repeat([name in chosen for name in file.episodes], lengths)])
        return self._as_declared(key, np.concatenate(parts))

    def count_as_read(self, numbers: np.ndarray) -> None:
        """See `EpisodeStore`; the tables that hold these episodes."""
        episodes = list(self.meta.lengths)
        chosen = {episodes[number] for number in numbers.tolist()}
        self._read_from.update(file.path for file in self.meta.tables if chosen.intersection(file.episodes))

    def cameras(self) -> dict[str, tuple[int, ...]]:
        """See `EpisodeStore`; with features of videos or pictures."""
        arrays, shapes = super().cameras(), self.keys()
        in_colour = {*self.meta.cameras} - {*self.meta.depths()}
        return {key: shape for key, shape in shapes.items() if key in in_colour or key in arrays}

    def depths(self) -> dict[str, tuple[int, ...]]:
        """The features that meta/info.json marks as depth."""
        return {key: self.keys()[key] for key in self.meta.depths()}

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """See `EpisodeStore` and `lerobot_frames`; files without a chosen episode need not be there."""
        if key not in self.meta.cameras and len(self.keys()[key]) == 3 and self.is_number(key):  # pixels as numbers
            self.count_as_read(numbers)
            return super().open_frames(key, ends, numbers, contents)
        return lerobot_frames(self.meta, key, ends, set(numbers.tolist()), contents)

    def frame_files(self, key: str, ends: np.ndarray) -> list[FrameFile]:
        """The videos that the metadata name.

        Raises:
            DataError: the metadata lack usable places of the videos.
        """
        return videos_of(self.meta, key) if self.dtype(key) == "video" else []

    def unread(self) -> dict[str, str]:
        """The named parts of meta/info.json, unless a single part holds every episode."""
        splits = self.meta.info.get("splits")
        if not isinstance(splits, dict):
            return {}
        sizes = [len(episodes) for episodes in self.parts().values()]
        if len(splits) == 1 and sizes == [len(self.meta.lengths)]:
            return {}
        return {f"splits.{name}": f"episodes {part}" for name, part in splits.items()}

    def texts(self) -> dict[int, str]:
        """The instructions of meta/tasks by number; empty if both this file and the column `task_index` are missing."""
        return self.meta.tasks() if self.text_files() or TASK in self.meta.features else {}

    def texts_of(self, key: str) -> dict[int, str]:
        """See `EpisodeStore`; `subtask_index` of LeRobot 0.5 numbers the texts of meta/subtasks."""
        return self.meta.tasks("subtask") if key == "subtask_index" else self.texts()

    def text_files(self) -> list[Path]:
        return [self.meta.tasks_file] if self.meta.tasks_file.is_file() else []

    def stored_metadata(self) -> dict[str, Any]:
        """The content of `describe`, and the robot."""
        return {**self.describe(), "robot_type": self.meta.info.get("robot_type")}

    def locate(self, key: str, row: int) -> str:
        """The parquet file that holds a row, for messages."""
        if not self.meta.tables:
            return str(self.path)
        index = int(np.searchsorted(self._file_ends, row, side="right"))
        return str(self.meta.tables[min(index, len(self.meta.tables) - 1)].path)

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The tables that were read, and the metadata, but no video. Tables of other episodes may be missing; earlier
        downloads decide which tables are in the cache of the Hub's client."""
        return sorted({*self._read_from, *self.meta.listings, self.meta.info_file})

    def describe(self) -> dict[str, Any]:
        """Format, place, frame rate, and the names of the numbers of each feature with names."""
        names = {key: _names(feature) for key, feature in self.meta.features.items()}
        return {
            "format": f"LeRobot {self.meta.version}",
            "path": str(self.path),
            "fps": self.meta.info.get("fps"),
            "names": {key: feature_names for key, feature_names in names.items() if feature_names},
        }

    def _as_declared(self, key: str, values: np.ndarray) -> np.ndarray:
        declared = self.keys()[key]
        if values.size != len(values) * math.prod(declared):
            finding = f"key {key!r} has shape {values.shape[1:]} per frame, but meta/info.json declares {declared}"
            raise DataError(str(self.path), [finding])
        return values.reshape(len(values), *declared)

    def _read_file(self, file: TableFile, key: str) -> np.ndarray:
        """Read the (rows, ...) of a column of a file, checked against the episode list."""
        values = self._ahead.pop((file.path, key), None)
        if values is not None:
            return values
        keys_ahead = self._expected - {key}
        try:
            table = self._read_table(file, key, keys_ahead)
        except DataError:
            if not keys_ahead:
                raise
            table, keys_ahead = self._read_table(file, key, ()), set()  # faults of other keys are reported later
        for other in keys_ahead.intersection(table.column_names):
            with contextlib.suppress(DataError):
                self._ahead[file.path, other] = self._values(table, file, other)
        return self._values(table, file, key)

    def _values(self, table: pyarrow.Table, file: TableFile, key: str) -> np.ndarray:
        return to_numpy(table.column(key), file.path, key, may_be_text=self.dtype(key) == "string")

    def _read_table(self, file: TableFile, key: str, keys_ahead: Iterable[str]) -> pyarrow.Table:
        """Read a column of a file, and the columns of `keys_ahead` that the file has."""
        checks = () if self._order_checked else ("episode_index", "frame_index")
        self._read_from.add(file.path)
        table = self._read_columns(file, key, {*checks, *keys_ahead})
        lengths = [self.meta.lengths[episode] for episode in file.episodes]
        if table.num_rows != sum(lengths):
            expected = f"the episode list gives its episodes {sum(lengths)}"
            raise DataError(str(file.path), [f"holds {table.num_rows} rows, but {expected}"])
        expected_columns = {
            "episode_index": np.repeat(file.episodes, lengths),
            "frame_index": np.concatenate([np.arange(length) for length in lengths]),
        }
        for check in filter(table.column_names.__contains__, checks):
            values = to_numpy(table.column(check), file.path, check).ravel()
            if len(values) != table.num_rows:
                raise DataError(str(file.path), [f"holds {check} as lists; expected a number in each row"])
            wrong = np.flatnonzero(values != expected_columns[check])
            if len(wrong):
                row = wrong[0]
                finding = f"row {row} has {check} {values[row]}; expected {expected_columns[check][row]}"
                raise DataError(str(file.path), [f"{finding}, by the episode list"])
        return table

    def _read_columns(self, file: TableFile, key: str, optional: Collection[str]) -> pyarrow.Table:
        """Read the rows of the episodes of a file: a column, and the columns of `optional` that the file has."""
        table = read_columns(file.path, [key], optional, ", which meta/info.json declares")
        rows = file.rows(self.meta.lengths)
        return table if rows is None else table.take(rows)


def import_pyarrow() -> None:
    """Raises ImportError if pyarrow is not installed."""
    with needing("lerobot", "reading LeRobot data needs pyarrow"):
        import pyarrow.parquet  # noqa: F401


def _names(feature: dict[str, Any]) -> list[str]:
    """The names of a vector's numbers, which may be nested in lists and groups; empty for LeRobot's default names."""
    names, nested = [], [feature.get("names")]
    while nested:
        entry = nested.pop(0)
        if isinstance(entry, str):
            names.append(entry)
        elif isinstance(entry, dict) and all(isinstance(place, int) for place in entry.values()):
            names += sorted(entry, key=entry.__getitem__)  # {"delta_x": 0, "delta_y": 1}
        elif isinstance(entry, dict):
            nested = [*entry.values(), *nested]
        elif isinstance(entry, list):
            nested = [*entry, *nested]
    is_filled_in = all(re.fullmatch(r"motor_\d+", name) for name in names)
    return [] if is_filled_in or feature.get("shape") != [len(names)] else names
