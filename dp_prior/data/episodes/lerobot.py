"""LeRobot data sets, formats v2.0, v2.1 and v3.0: the columns with one number or list of numbers per frame.

This is a reader of the published layout; the lerobot package is not needed. Frames are read by `frames/lerobot.py`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from dp_prior.config import Config, an
from dp_prior.data.episodes.hub import download
from dp_prior.data.errors import DataError
from dp_prior.data.files import check_count, check_memory, decoding, reading
from dp_prior.regular_files import SMALL, check_regular, read_small

if TYPE_CHECKING:
    import pyarrow

VERSIONS = ("v2.0", "v2.1", "v3.0")

LARGEST_LISTING = 512 << 20
"""Most bytes of the list of episodes, a line each."""

LARGEST_RATIO = 8000
"""Bytes of one column that a byte of a file may decode to; run lengths know no bound, but other columns vary."""


class LeRobotStoreConfig(Config):
    """A LeRobot data set, format v2.0, v2.1 or v3.0; its meta/info.json says which."""

    type: Literal["lerobot"] = "lerobot"

    path: Path | None = None
    """The data set's directory, the one that holds meta/ and data/; relative to the working directory, `~` is the home
    directory. Give either this or `repo`."""

    repo: str | None = None
    """The data set's name on the Hugging Face Hub, `user/name`; it is downloaded into the cache of the Hub's client."""

    revision: str | None = None
    """Commit, tag or branch of `repo`. null is the newest commit when the run first starts; the run stores its commit
    and keeps to it."""

    def faults(self) -> Iterator[str]:
        if (self.path is None) == (self.repo is None):
            found = "both path and repo are" if self.repo else "neither path nor repo is"
            yield f'{found} given; write "path" for a directory, or "repo" for a data set on the Hub'
        if self.revision is not None and self.repo is None:
            yield "revision is of a data set on the Hub, but repo is not given"

    @model_serializer(mode="wrap")
    def _leave_out_where_it_was_downloaded_to(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return write(self) if self.repo is None else {**write(self), "path": None}

    def resolve(self, pinned: str | None, cameras: Iterable[str]) -> LeRobotStoreConfig:
        """The record with the commit and the directory of a data set on the Hub, whose files are then there.

        Args:
            pinned: the commit that the run has used so far; None if it has used none.
            cameras: keys of the videos that are read; others are not downloaded.

        Raises:
            DataError, UnreadableError: see `download`.
        """
        if self.repo is None or self.path is not None:
            return self
        videos = [pattern for key in cameras for pattern in (f"videos/{key}/*", f"videos/*/{key}/*")]
        patterns = ["meta/*", "data/*", *videos]
        path, commit = download(self.repo, self.revision or pinned, patterns)
        return self.model_copy(update={"path": path, "revision": commit})

    def create(self) -> LeRobotStore:
        """Read the metadata; columns are read when asked for. Of a data set on the Hub, videos are not downloaded.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise ImportError('reading LeRobot data needs pyarrow: pip install "dp_prior[lerobot]"') from None
        return LeRobotStore(self.resolve(None, ()).path)


class _File(NamedTuple):
    """A parquet file and the episodes, in order, whose rows it holds."""

    path: Path
    episodes: list[int]


class LeRobotStore:
    """Reads a LeRobot data set column by column.

    Attributes:
        version: of the format.
        info, features: meta/info.json, and its columns by name.
        lengths: frames of each episode, by the data set's own number, in the order of the rows.
        tables: the parquet files of the rows, in order.
        listings: the files of the list of episodes.
    """

    def __init__(self, path: Path):
        self.path = path = path.expanduser()
        info = path / "meta" / "info.json"
        self._info_path, self.info = info, _read_json(info)
        self.version = str(self.info.get("codebase_version"))
        if self.version not in VERSIONS:
            found = f"has codebase_version {self.version!r}; this reader knows {', '.join(VERSIONS)}"
            raise DataError(str(info), [f"{found}. Convert it with LeRobot's own scripts"])
        self.features: dict[str, dict[str, Any]] = self.info.get("features")
        if not isinstance(self.features, dict) or not all(map(_is_feature, self.features.values())):
            raise DataError(str(info), ["has no usable 'features', the list of columns"])
        check_count(info, len(self.features), "features")
        lengths, self.tables = self._read_v3() if self.version == "v3.0" else self._read_v2()
        self.lengths = lengths
        self.episode_ends = np.cumsum(np.array(list(lengths.values()), dtype=np.int64))
        declared = self.info.get("total_episodes")
        if declared is not None and declared != len(lengths):
            found = f"declares {declared} episodes, but the episode list has {len(lengths)}"
            raise DataError(str(info), [f"{found}; the copy may be incomplete"])
        self._file_ends = np.cumsum([sum(lengths[e] for e in file.episodes) for file in self.tables])
        self._order_checked = False

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Shape per frame of every feature, video included."""
        return {name: tuple(feature.get("shape") or ()) for name, feature in self.features.items()}

    def dtype(self, key: str) -> str:
        """Type that meta/info.json declares for a feature."""
        return str(self.features[key].get("dtype"))

    def read(self, key: str) -> np.ndarray:
        """(N, *shape) all frames of a feature that is a column of numbers.

        Raises:
            DataError: the feature is video or images; a file is missing or damaged; rows do not match the metadata.
        """
        kind = self.dtype(key)
        if kind in ("video", "image"):
            numbers = [name for name in self.features if self.dtype(name) not in ("video", "image", "string")]
            found = f"key {key!r} is {kind}, no column of numbers, which are: {', '.join(sorted(numbers))}"
            raise DataError(str(self.path), [found])
        problems: list[str] = []
        parts = []
        for file in self.tables:
            try:
                parts.append(self._read_file(file, key))
            except DataError as error:
                problems += [f"{error.source}: {problem}" for problem in error.problems]
        widths = {part.shape[1:] for part in parts}
        if len(widths) > 1:
            problems.append(f"key {key!r} has different shapes in different files: {sorted(widths)}")
        if problems:
            raise DataError(str(self.path), problems)
        self._order_checked = True
        values = np.concatenate(parts) if parts else np.zeros((0,))
        declared = self.keys()[key]
        if values.size != len(values) * math.prod(declared):
            found = f"key {key!r} has shape {values.shape[1:]} per frame, but meta/info.json declares {declared}"
            raise DataError(str(self.path), [found])
        return values.reshape(len(values), *declared)

    def read_episodes(self, key: str, numbers: Collection[int]) -> np.ndarray:
        """(n, *shape) frames of some episodes, in order; only the files that hold them are read.

        Args:
            numbers: of the episodes, from 0 in the order of the rows, sorted.

        Raises:
            DataError: see `read`.
        """
        names = list(self.lengths)
        wanted = {names[number] for number in numbers}
        parts = []
        for file in self.tables:
            if wanted.intersection(file.episodes):
                values = self._read_file(file, key)
                lengths = [self.lengths[name] for name in file.episodes]
                parts.append(values[np.repeat([name in wanted for name in file.episodes], lengths)])
        return np.concatenate(parts)

    def tasks(self) -> dict[int, str]:
        """The texts of meta/tasks by number, which `task_index` names.

        Raises:
            DataError: there are none, or they cannot be read.
        """
        path = self.tasks_file
        if path.suffix == ".parquet":
            table = read_columns(path, ["task_index"], ("task", "__index_level_0__"))  # the index, as pandas writes it
            texts = [name for name in table.column_names if name != "task_index"]
            found = [table.column(name).to_pylist() for name in ("task_index", *texts[:1])]
            rows = list(zip(*found, strict=True)) if texts else []
        else:
            with decoding(path, "is not a list of tasks"):
                lines = [json.loads(line) for line in _lines(path) if line.strip()]
                rows = [(line["task_index"], line["task"]) for line in lines]
        if not rows or not all(type(number) is int and isinstance(text, str) for number, text in rows):
            raise DataError(str(path), ["is not a list of tasks: expected a number and a text in each row"])
        return dict(rows)

    @property
    def tasks_file(self) -> Path:
        """Where `tasks` are stored."""
        return self.path / "meta" / ("tasks.parquet" if self.version == "v3.0" else "tasks.jsonl")

    def locate(self, key: str, row: int) -> str:
        """The parquet file that holds a row, for messages."""
        index = int(np.searchsorted(self._file_ends, row, side="right"))
        return str(self.tables[min(index, len(self.tables) - 1)].path) if self.tables else str(self.path)

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The columns' files and the metadata, but no video: every column lies in every file."""
        return sorted({*(file.path for file in self.tables), *self.listings, self._info_path})

    def describe(self) -> dict[str, Any]:
        """Format, place, frame rate, and the names of the numbers of each feature that has some."""
        names = {key: found for key, feature in self.features.items() if (found := _names(feature))}
        return {
            "format": f"LeRobot {self.version}",
            "path": str(self.path),
            "fps": self.info.get("fps"),
            "names": names,
        }

    def _read_v2(self) -> tuple[dict[int, int], list[_File]]:
        """Length of each episode, and the files: one per episode."""
        listing = self.path / "meta" / "episodes.jsonl"
        self.listings = [listing]
        lengths: dict[int, int] = {}
        for number, line in enumerate(_lines(listing), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                    lengths[as_count(row["episode_index"])] = as_count(row["length"])
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise DataError(f"{listing}, line {number}", [f"is not an episode: {error}"]) from None
        lengths = dict(sorted(lengths.items()))
        template = self.template("data_path")
        chunk_size = self.info.get("chunks_size", 1000)
        if type(chunk_size) is not int or chunk_size < 1:
            raise DataError(str(self._info_path), [f"chunks_size is {chunk_size!r}; expected 1 or more"])
        by_name = {file.name: file for file in sorted((self.path / "data").glob("*/*.parquet"))}
        files = []
        for episode in lengths:
            named = self.path / fill(template, episode_index=episode, episode_chunk=episode // chunk_size)
            # Published sets exist whose template names the wrong folder; the file's own name is then unique.
            files.append(_File(named if named.is_file() else by_name.get(named.name, named), [episode]))
        return lengths, files

    def _read_v3(self) -> tuple[dict[int, int], list[_File]]:
        """Length of each episode in the order of the files, and these: several episodes per file."""
        columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        folder = self.path / "meta" / "episodes"
        listings = self.listings = sorted(folder.glob("*/*.parquet"))
        if not listings:
            raise DataError(str(folder), ["no such episode list (chunk-000/file-000.parquet); the copy is incomplete"])
        rows: list[dict[str, int]] = []
        for listing in listings:
            table = read_columns(listing, columns).to_pylist()
            try:
                rows += [{name: as_count(value) for name, value in row.items()} for row in table]
            except (ValueError, TypeError) as error:
                raise DataError(str(listing), [f"is not a list of episodes: {error}"]) from None
        rows.sort(key=lambda row: row["episode_index"])
        by_file: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in rows:
            by_file[row["data/chunk_index"], row["data/file_index"]].append(row["episode_index"])
        template = self.template("data_path")
        files = [
            _File(self.path / fill(template, chunk_index=chunk, file_index=file), episodes)
            for (chunk, file), episodes in by_file.items()
        ]
        lengths = {row["episode_index"]: row["length"] for row in rows}
        return {episode: lengths[episode] for file in files for episode in file.episodes}, files

    def template(self, field: str) -> str:
        """The path, with numbers to fill in, that meta/info.json has in a field.

        Raises:
            DataError: it leads out of the data set.
        """
        template = str(self.info.get(field))
        if template.startswith("/") or ".." in Path(template).parts:
            raise DataError(str(self._info_path), [f"{field} {template!r} leaves the data set"])
        return template

    def _read_file(self, file: _File, key: str) -> np.ndarray:
        """(rows, ...) of one column of one file, its rows checked against the episode list."""
        checks = () if self._order_checked else ("episode_index", "frame_index")
        table = read_columns(file.path, [key], checks, ", which meta/info.json declares")
        lengths = [self.lengths[episode] for episode in file.episodes]
        if table.num_rows != sum(lengths):
            expected = f"the episode list gives its episodes {sum(lengths)}"
            raise DataError(str(file.path), [f"holds {table.num_rows} rows, but {expected}"])
        expected_columns = {
            "episode_index": np.repeat(file.episodes, lengths),
            "frame_index": np.concatenate([np.arange(length) for length in lengths]),
        }
        for check in filter(table.column_names.__contains__, checks):
            values = _to_numpy(table.column(check), file.path, check)
            wrong = np.flatnonzero(values != expected_columns[check])
            if len(wrong):
                row = wrong[0]
                found = f"row {row} has {check} {values[row]}; expected {expected_columns[check][row]}"
                raise DataError(str(file.path), [f"{found}, by the episode list"])
        return _to_numpy(table.column(key), file.path, key, may_be_text=self.dtype(key) == "string")


def _is_feature(feature: Any) -> bool:
    if not isinstance(feature, dict):
        return False
    shape = feature.get("shape") or []
    return isinstance(shape, list) and all(type(length) is int and 0 <= length < 1 << 31 for length in shape)


def _names(feature: dict[str, Any]) -> list[str]:
    """The names of a vector's numbers, which may be nested in lists and groups; none where LeRobot filled them in."""
    found, left = [], [feature.get("names")]
    while left:
        each = left.pop(0)
        if isinstance(each, str):
            found.append(each)
        elif isinstance(each, dict) and all(isinstance(place, int) for place in each.values()):
            found += sorted(each, key=each.__getitem__)  # {"delta_x": 0, "delta_y": 1}
        elif isinstance(each, (dict, list)):
            left = [*(each.values() if isinstance(each, dict) else each), *left]
    is_filled_in = all(re.fullmatch(r"motor_\d+", name) for name in found)
    return [] if is_filled_in or feature.get("shape") != [len(found)] else found


def as_count(value: Any) -> int:
    """A number of frames or of an episode.

    Raises:
        ValueError: it cannot be one.
    """
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no count")
    return value


def _to_numpy(column: pyarrow.ChunkedArray, path: Path, key: str, *, may_be_text: bool = False) -> np.ndarray:
    """(rows, *lengths of the nested lists) of a column of numbers or of equally long lists of them; or of texts."""
    import pyarrow as pa

    values, shape = column.combine_chunks(), [len(column)]
    while True:
        if values.null_count:
            row = values.is_null().to_numpy(zero_copy_only=False).argmax() * shape[0] // max(len(values), 1)
            raise DataError(str(path), [f"key {key!r}, row {row}: is null; every frame needs a value"])
        kind = values.type
        if pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = np.diff(values.offsets.to_numpy())
            if len(lengths) and (lengths != lengths[0]).any():
                row = (lengths != lengths[0]).argmax()
                found = f"has {lengths[row]} elements, row 0 has {lengths[0]}"
                raise DataError(str(path), [f"key {key!r}, row {row}: {found}; every frame needs the same number"])
            shape.append(int(lengths[0]) if len(lengths) else 0)
        else:
            break
        values = values.flatten()
    if may_be_text and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return np.array(values.to_pylist(), dtype=str).reshape(shape)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(str(path), [f"key {key!r} holds {kind}, which is not a number type"])
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def read_columns(path: Path, wanted: list[str], others: Iterable[str] = (), why: str = "") -> pyarrow.Table:
    """The wanted columns of a parquet file, and those of the others that it has; opened once, for files are many."""
    import pyarrow.parquet as pq

    with decoding(path, "is not a readable parquet file"):
        if not path.exists():
            raise DataError(str(path), ["no such file, but the episode list names it; the copy is incomplete"])
        with reading(path):
            found = os.stat(path)
            check_regular(path, found.st_mode)
        file = pq.ParquetFile(path, page_checksum_verification=True)
        known = file.schema_arrow.names
        check_memory(str(path), 8 * file.metadata.num_rows, stored=found.st_size, ratio=LARGEST_RATIO)
    with file, decoding(path, "is damaged"):
        missing = [name for name in wanted if name not in known]
        if missing:
            raise DataError(str(path), [f"has no column {', '.join(map(repr, missing))}{why}"])
        return file.read([*wanted, *(name for name in others if name in known and name not in wanted)])


def _read_text(path: Path, most: int = SMALL) -> str:
    try:
        with reading(path):
            content = read_small(path, most)
    except DataError as error:
        raise DataError(str(path.absolute()), [f"{error.problems[0]}; is this a LeRobot data set?"]) from None
    with decoding(path, "is not text"):
        return content.decode("utf-8")


def _lines(path: Path) -> list[str]:
    """Of a file of JSON lines; `splitlines` would split texts too, which may hold other ends of a line."""
    return _read_text(path, LARGEST_LISTING).split("\n")


def _read_json(path: Path) -> dict[str, Any]:
    with decoding(path, "is not JSON"):
        found = json.loads(_read_text(path))
    if not isinstance(found, dict):
        raise DataError(str(path), [f"holds {an(type(found).__name__)}; expected an object"])
    return found


def fill(template: str, **numbers: int) -> str:
    """Fill `{name}` and `{name:03d}` in a path template; anything else in braces stays as it is."""

    def replace(match: re.Match[str]) -> str:
        number = numbers.get(match["name"])
        return match[0] if number is None else str(number).zfill(int(match["width"] or 0))

    return re.sub(r"\{(?P<name>\w+)(?::0(?P<width>\d)d)?\}", replace, template)
