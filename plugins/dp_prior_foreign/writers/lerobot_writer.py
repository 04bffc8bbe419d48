"""Writes LeRobot data sets, format v3.0; frames as videos, or as PNG pictures in the tables, which keep every pixel."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_store import TASK
from dp_prior.data.formats.lerobot.meta import COUNTED
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.depths import MILLIMETRES, Depths
from dp_prior.files.durable import publish, temporary_directory
from dp_prior.files.entry_points import needing
from dp_prior.files.file_names import alike, is_portable
from dp_prior.tensors.pixels.picture_files import import_pillow
from dp_prior_foreign.recording import Recording
from dp_prior_foreign.writers.camera_videos import (
    FILES_PER_CHUNK,
    LEAST_SIDE,
    MOST_FPS,
    VIDEO_BYTES,
    VIDEO_PATH,
    CameraVideos,
    check_encoder,
    place_of,
    video_info,
)
from dp_prior_foreign.writers.lerobot_statistics import Statistics, number_statistics, pixel_statistics, pooled

if TYPE_CHECKING:
    import pyarrow

FILE_BYTES = 100 << 20
"""A data file is closed after the episode with which it has this size, as LeRobot does."""

LISTED_AT_ONCE = 1000
"""Episodes in a row group of meta/episodes, which has ten columns for each feature."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


def write(record: Config, recording: Recording) -> None:
    """See `EpisodeStoreRecord.write`. Args: record: a `LeRobotStoreConfig`."""
    write_lerobot(recording, record.path)


def losses(record: Config, recording: Recording) -> list[str]:
    """See `EpisodeStoreRecord.losses`."""
    names = ", ".join(as_videos(recording))
    videos = [f"{names}: compressed as video, as LeRobot does; --pictures keeps every pixel"] if names else []
    refused = [name for name in as_videos(recording) if not is_portable(name.replace("/", "."))]
    videos += [f"{name}: Windows refuses or changes the name of its folder; --rename gives another" for name in refused]
    lost = f"{len(recording.tasks)} instructions are not written; no key {TASK!r} says which step has which"
    return videos if says_tasks(recording) else [*videos, f"tasks: {lost}"]


def write_lerobot(recording: Recording, path: Path) -> None:
    """Write a data set that `LeRobotDataset` loads; a `/` in a name becomes `.`, a number per step has shape (1,).

    Raises:
        DataError: the rate is unknown, or names are taken by columns of the format.
        ImportError: pyarrow, Pillow or PyAV is not installed.
    """
    recording = _renamed(recording)
    _check_libraries(recording)
    arrays = {name: recording.read(name) for name in recording.keys}
    arrays |= _counted(recording, arrays.pop(TASK, None))
    frames = {name: recording.frames(name) for name in recording.cameras}
    with temporary_directory(path) as place, contextlib.ExitStack() as opened:
        tables, listing = _DataFiles(place), _EpisodeList(place / "meta" / "episodes")
        videos = {name: CameraVideos(place, name, recording.fps) for name in as_videos(recording)}
        for file in (tables, listing, *videos.values()):
            opened.callback(file.close)
        begin = 0
        for episode, end in enumerate(recording.ends.tolist()):
            episode_arrays = {name: values[begin:end] for name, values in arrays.items()}
            columns = {name: _column(values) for name, values in episode_arrays.items()}
            statistics = {name: number_statistics(values) for name, values in episode_arrays.items()}
            places: dict[str, Any] = {}  # of the episode in the files of videos
            for name, blocks in frames.items():
                block = next(blocks)
                block = block if block.dtype == np.uint8 else _millimetres(block, name)
                statistics[name] = pixel_statistics(block)
                if name in videos:
                    places |= videos[name].add(block)
                else:
                    columns[name] = _pictures(block)
            task_numbers = sorted(set(episode_arrays[TASK].tolist()))
            row = {"episode_index": episode, "tasks": [_tasks(recording)[number] for number in task_numbers]}
            row |= {"length": end - begin, **tables.add(columns)}
            row |= {"dataset_from_index": begin, "dataset_to_index": end, **places}
            listing.add(row, statistics)
            begin = end
        for blocks in frames.values():
            next(blocks, None)  # checks that no frame is left
        opened.close()
        _write_meta(place / "meta", recording, arrays, listing.statistics)
        publish(place, path)


def as_videos(recording: Recording) -> list[str]:
    """The cameras whose frames become videos."""
    if recording.pictures or recording.fps > MOST_FPS:
        return []
    colours = {name: source for name, source in recording.cameras.items() if recording.contents(name) == COLOURS}
    return [name for name, source in colours.items() if min(source.size) >= LEAST_SIDE]


def _check_libraries(recording: Recording) -> None:
    """Raises ImportError or DataError unless the packages and the codec for the data set are installed."""
    with needing("lerobot", "writing LeRobot data needs pyarrow"):
        import pyarrow.parquet  # noqa: F401
    filmed = as_videos(recording)
    if len(filmed) < len(recording.cameras):
        import_pillow()
    if filmed:
        check_encoder()


def _renamed(recording: Recording) -> Recording:
    """Rename keys and cameras to names that the format allows."""

    def dotted(values_by_name: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace("/", "."): value for name, value in values_by_name.items()}

    keys, cameras = dotted(recording.keys), dotted(recording.cameras)
    names = [*keys, *cameras]
    taken = [name for name in names if name in COUNTED]
    problems = [f"has a key {name!r}, which is a column of the format; rename it with --rename" for name in taken]
    if len(set(names)) < len(recording.keys) + len(recording.cameras):
        problems.append("has keys that differ only by / and .; rename them with --rename")
    elif pair := alike(cameras):
        disks = "disks of Windows, macOS and network shares, which ignore case"
        problems.append(f"has cameras {pair[0]!r} and {pair[1]!r}, one folder on {disks}; rename one with --rename")
    shapes = recording.store.keys()
    problems += [
        f"has a key {name!r} of shape {shapes[key]}, which has no numbers; leave it out with --leave-out"
        for name, key in keys.items()
        if 0 in shapes[key]
    ]
    if recording.fps is None:
        problems.append("does not say its control steps per second; give them with --fps")
    if problems:
        raise DataError(recording.store.where, problems)
    tasks = recording.tasks if says_tasks(recording) else []
    return replace(recording, keys=keys, cameras=cameras, names=dotted(recording.names), tasks=tasks)


def says_tasks(recording: Recording) -> bool:
    """Whether the instruction of each step is known: a key has its number, or there is at most one instruction."""
    return TASK in recording.keys or len(recording.tasks) <= 1


def _tasks(recording: Recording) -> list[str]:
    return recording.tasks or [""]


def _counted(recording: Recording, task: np.ndarray | None) -> dict[str, np.ndarray]:
    """Create the columns that the format requires beside the data."""
    n, lengths = int(recording.ends[-1]), np.diff(recording.ends, prepend=0)
    frame = np.arange(n) - np.repeat(recording.ends - lengths, lengths)
    task = np.zeros(n, np.int64) if task is None else task
    if task.size != n or not np.isin(task, np.arange(len(_tasks(recording)))).all():
        finding = f"has {TASK} that are not numbers of its {len(recording.tasks)} tasks; leave it out with --leave-out"
        raise DataError(recording.store.where, [finding])
    task = task.reshape(n).astype(np.int64)
    return {
        "timestamp": (frame / recording.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(n),
        TASK: task,
    }


class _DataFiles:
    """Writes data/: the tables of the episodes in sequence; begins a new file when the last is full."""

    def __init__(self, place: Path):
        self._place, self._number = place, -1
        self._path = place
        self._file: pyarrow.parquet.ParquetWriter | None = None

    def add(self, columns: Mapping[str, pyarrow.Array]) -> dict[str, int]:
        """Append an episode; returns its entries in the list of episodes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(columns)
        if self._file is None or self._path.stat().st_size >= FILE_BYTES:
            self.close()
            self._number += 1
            self._path = self._place / DATA_PATH.format(**place_of(self._number))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._path, table.schema, write_page_checksum=True)
        self._file.write_table(table)
        return {f"data/{name}": value for name, value in place_of(self._number).items()}

    def close(self) -> None:
        """Write the end of the last file."""
        if self._file is not None:
            self._file.close()


class _EpisodeList:
    """Writes meta/episodes, some rows at a time. Attributes: statistics: pooled over the added episodes, by feature."""

    def __init__(self, folder: Path):
        self._path = folder / "chunk-000" / "file-000.parquet"
        self._path.parent.mkdir(parents=True)
        self._rows: list[dict[str, Any]] = []
        self._file: pyarrow.parquet.ParquetWriter | None = None
        self.statistics: dict[str, Statistics] = {}

    def add(self, row: dict[str, Any], statistics: Mapping[str, Statistics]) -> None:
        """Append an episode with its statistics by feature."""
        columns: dict[str, Any] = {}
        for key, of_feature in statistics.items():
            columns |= {f"stats/{key}/{name}": value.tolist() for name, value in of_feature.items()}
            total = self.statistics.get(key)
            self.statistics[key] = of_feature if total is None else pooled(total, of_feature)
        self._rows.append({**row, **columns, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) == LISTED_AT_ONCE:
            self._write()

    def close(self) -> None:
        """Write the last rows, and the end of the file."""
        if self._rows:
            self._write()
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(self._rows, schema=None if self._file is None else self._file.schema)
        self._file = self._file or pq.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)
        self._rows = []


def _column(values: np.ndarray) -> pyarrow.Array:
    """Convert (n, *shape) numbers to the lists that LeRobot declares for their shape."""
    import pyarrow as pa

    column = pa.array(values.reshape(-1).astype(values.dtype.newbyteorder("="), copy=False))
    if values.shape[1:] in ((), (1,)):
        return column
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(column, values.shape[1])
    for size in reversed(values.shape[1:]):
        column = pa.ListArray.from_arrays(np.arange(0, len(column) + 1, size, dtype=np.int32), column)
    return column


def _millimetres(metres: np.ndarray, name: str) -> np.ndarray:
    """Convert (k, H, W, 1) float32 metres to uint16 that a reader turns into the same metres.

    Raises:
        DataError: whole millimetres up to 65.535 m cannot hold the distances.
    """
    millimetres = np.round(metres / MILLIMETRES).clip(0, np.iinfo(np.uint16).max).astype(np.uint16)
    if not np.array_equal(Depths(MILLIMETRES).metres(millimetres), metres):
        problem = (
            f"{name}: distances are no whole millimetres up to 65.535 m; LeRobot's 16 bit pictures would change them"
        )
        raise DataError(name, [problem], "convert to npz, zarr or robomimic, which hold floats, or give --leave-out")
    return millimetres


def _pictures(frames: np.ndarray) -> pyarrow.Array:
    import pyarrow as pa

    encoded = []
    for frame in frames:
        stream = io.BytesIO()
        picture = import_pillow().fromarray(frame if frame.shape[-1] == 3 else frame[..., 0])
        picture.save(stream, "PNG", compress_level=1)
        encoded.append({"bytes": stream.getvalue(), "path": None})
    return pa.array(encoded, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def _write_meta(
    folder: Path, recording: Recording, arrays: Mapping[str, np.ndarray], totals: Mapping[str, Statistics]
) -> None:
    """Write info.json, stats.json and tasks.parquet."""
    import pyarrow.parquet as pq

    n, tasks = int(recording.ends[-1]), _tasks(recording)
    features = {
        name: {"dtype": values.dtype.name, "shape": list(values.shape[1:] or (1,)), "names": recording.names.get(name)}
        for name, values in arrays.items()
    }
    filmed = as_videos(recording)
    for name, source in recording.cameras.items():
        shape = [*source.size, recording.contents(name).channels]
        features[name] = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
        if recording.contents(name) != COLOURS:
            features[name]["info"] = {"is_depth_map": True, "depth_unit": "mm"}
        if name in filmed:
            features[name] |= {"dtype": "video", "info": video_info(source.size, recording.fps)}
    info = {
        "codebase_version": "v3.0",
        "robot_type": recording.robot_type,
        "total_episodes": len(recording.ends),
        "total_frames": n,
        "total_tasks": len(tasks),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": VIDEO_BYTES >> 20,
        "fps": int(recording.fps) if recording.fps == int(recording.fps) else recording.fps,
        "splits": {"train": f"0:{len(recording.ends)}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if filmed else None,
        "features": features,
    }
    statistics = {}
    for key, of_feature in totals.items():
        statistics[key] = {name: value.tolist() for name, value in of_feature.items()}
    (folder / "info.json").write_text(json.dumps(info, indent=4))
    (folder / "stats.json").write_text(json.dumps(statistics, indent=4))
    pq.write_table(_task_table(tasks), folder / "tasks.parquet")


def _task_table(tasks: list[str]) -> pyarrow.Table:
    """Create the table of tasks as pandas stores a table with an index of tasks, which LeRobot reads."""
    import pyarrow as pa

    def column(name: str | None, field: str, kind: str, numpy_kind: str) -> dict[str, Any]:
        return {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}

    described = {
        "index_columns": ["task"],
        "column_indexes": [column(None, None, "unicode", "object") | {"metadata": {"encoding": "UTF-8"}}],
        "columns": [column(TASK, TASK, "int64", "int64"), column("task", "task", "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({TASK: pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})
