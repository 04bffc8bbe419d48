"""Reads the folder `meta` of a LeRobot data set: the features, the episodes with their files, and the tasks."""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from dp_prior.config import an
from dp_prior.config.errors import short
from dp_prior.data.errors import DataError, MissingError
from dp_prior.data.files import check_count, decoding, reading
from dp_prior.data.formats.lerobot.tables import read_columns
from dp_prior.files.regular_files import SMALL, read_small

VERSIONS = ("v2.0", "v2.1", "v3.0")

COUNTED = ("index", "episode_index", "frame_index", "timestamp")
"""Columns that follow from the episodes and are written anew."""

_FRAMES = ("video", "image")
"""Types of features that are the frames of a camera."""

LONGEST_PATH = 1024
"""Most characters of a path within a data set."""

_CUT_OFF = "if the recording was cut off, `dp-prior convert --salvage` writes its intact episodes (docs/data.md)"

LARGEST_LISTING = 512 << 20
"""Most bytes of the list of episodes, a line each."""


class TableFile(NamedTuple):
    """A parquet file and the episodes, in order, whose rows it holds.

    Attributes:
        begins: first row of each episode in a file that may hold rows of other episodes; None without such rows.
    """

    path: Path
    episodes: list[int]
    begins: list[int] | None = None

    def rows(self, lengths: Mapping[int, int]) -> np.ndarray | None:
        """(n,) rows of the episodes in the file; None if the file holds no other rows."""
        if self.begins is None:
            return None
        spans = zip(self.begins, self.episodes, strict=True)
        return np.concatenate([np.arange(begin, begin + lengths[episode]) for begin, episode in spans])

    def n_rows(self, lengths: Mapping[int, int]) -> int:
        """Number of rows of the episodes."""
        return sum(lengths[episode] for episode in self.episodes)


def _refuse(error: DataError) -> None:
    raise error from None


class LeRobotMeta:
    """The metadata of a data set.

    Attributes:
        path: the data set.
        version: version of the format.
        info, features: meta/info.json, and its columns by name.
        lengths: frames of each episode, by the data set's own number, in the order of the rows.
        tables: the parquet files of the rows, in order.
        listings: the files of the list of episodes.
        is_part: whether the files hold rows and frames of other episodes as well.
    """

    is_part = False

    def __init__(self, path: Path, tell: Callable[[DataError], None] = _refuse):
        """Args: tell: receives each fault of the list of episodes, and reading continues; the default raises the
        fault."""
        if not path.exists():
            raise MissingError(str(path.absolute()), ["no such folder; check data.episodes.path"])
        self.path = path
        self.info_file = info = path / "meta" / "info.json"
        self.info = _read_json(info)
        self.version = str(self.info.get("codebase_version"))
        if self.version not in VERSIONS:
            finding = f"has codebase_version {self.version!r}; this reader knows {', '.join(VERSIONS)}"
            raise DataError(str(info), [f"{finding}. Convert it with LeRobot's own scripts"])
        self.features: dict[str, dict[str, Any]] = self.info.get("features")
        if not isinstance(self.features, dict) or not all(map(_is_feature, self.features.values())):
            raise DataError(str(info), ["has no usable 'features', the list of columns"])
        check_count(info, len(self.features), "features")
        if self.version == "v3.0":
            self._read_v3(tell)
        else:
            self._read_v2(tell)
        declared = self.info.get("total_episodes")
        if declared is not None and declared != len(self.lengths):
            finding = f"declares {declared} episodes, but the episode list has {len(self.lengths)}"
            tell(DataError(str(info), [f"{finding}; the copy may be incomplete"], _CUT_OFF))

    def part(self, tables: list[TableFile]) -> Self:
        """The metadata of the episodes in these files alone; see `is_part`."""
        part = copy.copy(self)
        part.tables, part.is_part = [file for file in tables if file.episodes], True
        part.lengths = _in_order_of_rows(self.lengths, part.tables)
        return part

    def tasks(self, kind: str = "task") -> dict[int, str]:
        """Read the texts of meta/tasks by the number in `task_index`, or those of another kind such as "subtask".

        Raises:
            DataError: the file is missing, empty or damaged.
        """
        path, number = self.tasks_file.with_stem(f"{kind}s"), f"{kind}_index"
        if path.suffix == ".parquet":
            table = read_columns(path, [number], (kind, "__index_level_0__"))  # the index, as pandas writes it
            texts = [name for name in table.column_names if name != number]
            columns = [table.column(name).to_pylist() for name in (number, *texts[:1])]
            rows = list(zip(*columns, strict=True)) if texts else []
        else:
            with decoding(path, "is not a list of tasks"):
                lines = [json.loads(line) for line in _lines(path) if line.strip()]
                rows = [(line[number], line[kind]) for line in lines]
        if not rows or not all(type(place) is int and isinstance(text, str) for place, text in rows):
            raise DataError(str(path), ["is not a list of tasks: expected a number and a text in each row"])
        tasks = dict(rows)
        for place, text in rows:
            if tasks[place] != text:
                problem = f"{kind}_index {place} is {text!r} and {tasks[place]!r}; expected one text"
                raise DataError(str(path), [problem])
        return tasks

    @property
    def cameras(self) -> list[str]:
        """Features of videos and of pictures, including depth."""
        return [key for key, feature in self.features.items() if feature.get("dtype") in _FRAMES]

    @property
    def numbers(self) -> list[str]:
        """Features that are columns of numbers."""
        no_numbers = (*_FRAMES, "string")
        return [key for key, feature in self.features.items() if feature.get("dtype") not in no_numbers]

    def video_info(self, key: str) -> dict[str, Any]:
        """The entry of meta/info.json about the frames of a feature: codec, rate, depth."""
        info = self.features[key].get("info") or self.features[key].get("video_info")
        return info if isinstance(info, dict) else {}

    def depths(self) -> list[str]:
        """Features of video or pictures that are marked as depth."""
        infos = {key: self.video_info(key) for key in self.cameras}
        return [key for key, info in infos.items() if info.get("is_depth_map") or info.get("video.is_depth_map")]

    def splits(self) -> dict[str, list[int]]:
        """Places, in the order of the rows, of the episodes of each entry of `splits` such as "train": "0:90"; entries
        of another form are left out."""
        declared, places_of = self.info.get("splits"), {}
        for name, text in declared.items() if isinstance(declared, dict) else ():
            span = re.fullmatch(r"(\d{1,12}):(\d{1,12})", str(text))
            if span:
                episodes = range(int(span[1]), int(span[2]))
                places_of[name] = [place for place, number in enumerate(self.lengths) if number in episodes]
        return places_of

    @property
    def tasks_file(self) -> Path:
        """The file of `tasks`."""
        return self.path / "meta" / ("tasks.parquet" if self.version == "v3.0" else "tasks.jsonl")

    def _read_v2(self, tell: Callable[[DataError], None]) -> None:
        """Read the list of episodes of format v2: a table for each episode."""
        listing = self.path / "meta" / "episodes.jsonl"
        self.listings = [listing]
        lengths: dict[int, int] = {}
        for number, line in enumerate(_lines(listing), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                    lengths[as_count(row["episode_index"])] = as_count(row["length"])
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    tell(DataError(f"{listing}, line {number}", [f"is not an episode: {error}"]))
        self.lengths = dict(sorted(lengths.items()))
        files = self.files_of_episodes("data_path", sorted((self.path / "data").glob("*/*.parquet")))
        self.tables = [TableFile(file, [episode]) for episode, file in zip(self.lengths, files, strict=True)]

    def files_of_episodes(self, field: str, files: Iterable[Path], **values: str) -> Iterator[Path]:
        """Find the file of each episode, in formats before v3.0, by the template in a field of meta/info.json.
        Published sets exist whose template names the wrong folder; the file's own name is then unique.

        Args:
            files: existing files.
            values: further values to fill into the template.

        Raises:
            DataError: see `template` and `file`, or `chunks_size` is invalid.
        """
        template, chunk_size = self.template(field), self.info.get("chunks_size", 1000)
        if type(chunk_size) is not int or chunk_size < 1:
            raise DataError(str(self.info_file), [f"chunks_size is {chunk_size!r}; expected 1 or more"])
        by_name = {file.name: file for file in files}
        for episode in self.lengths:
            expected = self.file(template, episode_index=episode, episode_chunk=episode // chunk_size, **values)
            yield expected if expected.is_file() else by_name.get(expected.name, expected)

    def _read_v3(self, tell: Callable[[DataError], None]) -> None:
        """Read the list of episodes of format v3, in the order of the tables: several episodes for each table."""
        columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        folder = self.path / "meta" / "episodes"
        listings = sorted(folder.glob("*/*.parquet"))
        if not listings:
            finding = "no such episode list (chunk-000/file-000.parquet); the copy is incomplete"
            problem = f"{finding}, or the first recording was cut off before LeRobot wrote the list"
            tell(DataError(str(folder), [problem]))
        self.listings: list[Path] = []
        rows: list[dict[str, int]] = []
        for listing in listings:
            try:
                rows += _episodes_of(listing, columns)
                self.listings.append(listing)
            except DataError as error:
                tell(error)
        rows.sort(key=lambda row: row["episode_index"])
        by_file: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in rows:
            by_file[row["data/chunk_index"], row["data/file_index"]].append(row["episode_index"])
        template = self.template("data_path")
        self.tables = [
            TableFile(self.file(template, chunk_index=chunk, file_index=file), episodes)
            for (chunk, file), episodes in by_file.items()
        ]
        lengths = {row["episode_index"]: row["length"] for row in rows}
        self.lengths = _in_order_of_rows(lengths, self.tables)

    def template(self, field: str) -> str:
        """The template of paths in a field of meta/info.json.

        Raises:
            DataError: the field holds no template, or the template leads out of the data set.
        """
        template = self.info.get(field)
        if not isinstance(template, str):
            raise DataError(str(self.info_file), [f"{field} is {short(template)}; expected a template of paths"])
        template = template.replace("\\", "/")  # as written by Windows
        if template.startswith("/") or ".." in Path(template).parts:
            raise DataError(str(self.info_file), [f"{field} {template!r} leaves the data set"])
        return template

    def file(self, template: str, **values: int | str) -> Path:
        """Fill `{name}` and `{name:03d}` in a path template; other braces stay unchanged.

        Raises:
            DataError: the filled path leads out of the data set, or is longer than any path.
        """

        def replace(match: re.Match[str]) -> str:
            value = values.get(match["name"])
            return match[0] if value is None else str(value).zfill(int(match["width"] or 0))

        filled = re.sub(r"\{(?P<name>\w+)(?::0(?P<width>\d)d)?\}", replace, template)
        if filled.startswith("/") or ".." in Path(filled).parts or "\0" in filled or len(filled) > LONGEST_PATH:
            finding = f"names the file {short(filled)}, which is no path within the data set"
            advice = "look at its templates of paths and the names of its features"
            raise DataError(str(self.info_file), [f"{finding}; {advice}"])
        return self.path / filled


def _in_order_of_rows(lengths: Mapping[int, int], tables: Iterable[TableFile]) -> dict[int, int]:
    """Sort the lengths of the episodes in the tables by their rows."""
    ordered: dict[int, int] = {}
    for file in tables:
        ordered |= {episode: lengths[episode] for episode in file.episodes}
    return ordered


def _episodes_of(listing: Path, columns: list[str]) -> list[dict[str, int]]:
    """Read the episodes of a file of the list."""
    table = read_columns(listing, columns).to_pylist()
    try:
        for row in table:
            row.update({name: as_count(value) for name, value in row.items()})
        return table
    except (ValueError, TypeError) as error:
        raise DataError(str(listing), [f"is not a list of episodes: {error}"]) from None


def _is_feature(feature: Any) -> bool:
    if not isinstance(feature, dict):
        return False
    shape = feature.get("shape") or []
    return isinstance(shape, list) and all(type(length) is int and 0 <= length < 1 << 31 for length in shape)


def as_count(value: Any) -> int:
    """Check a number of frames or of an episode.

    Raises:
        ValueError: `value` is no whole number from 0 to 2^31 - 1.
    """
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no count")
    return value


def _read_text(path: Path, largest: int = SMALL) -> str:
    try:
        with reading(path):
            content = read_small(path, largest)
    except DataError as error:
        raise DataError(str(path.absolute()), [f"{error.problems[0]}; is this a LeRobot data set?"]) from None
    with decoding(path, "is not text"):
        return content.decode("utf-8-sig")  # editors of Windows write a mark at the beginning


def _lines(path: Path) -> list[str]:
    """Read the lines of a file of JSON lines; `splitlines` would also split texts at other ends of a line."""
    return _read_text(path, LARGEST_LISTING).split("\n")


def _read_json(path: Path) -> dict[str, Any]:
    with decoding(path, "is not JSON"):
        content = json.loads(_read_text(path))
    if not isinstance(content, dict):
        raise DataError(str(path), [f"holds {an(type(content).__name__)}; expected an object"])
    return content
