"""Writes LeRobot data sets, format v3.0; frames as PNG pictures in the tables, which keep every pixel."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_store import TASK
from dp_prior.data.formats.lerobot.meta import COUNTED
from dp_prior.data.formats.recording import Recording
from dp_prior.files.durable import publish, temporary_directory
from dp_prior.pixels.picture_files import import_pillow

if TYPE_CHECKING:
    import pyarrow

FILE_BYTES = 100 << 20
"""A data file is closed after the episode with which it has this size, as LeRobot does."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK = 1000


def write_lerobot(recording: Recording, path: Path) -> None:
    """Write a data set that `LeRobotDataset` loads; a `/` in a name becomes `.`, a number per step has shape (1,).

    Raises:
        DataError: the rate is unknown, or names are taken by columns of the format.
        ImportError: pyarrow or Pillow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError('writing LeRobot data needs pyarrow: pip install "dp_prior[lerobot]"') from None
    if recording.cameras:
        import_pillow()
    recording = _renamed(recording)
    arrays = {name: recording.read(name) for name in recording.keys}
    arrays |= _counted(recording, arrays.pop(TASK, None))
    pixels = {name: _PixelStatistics() for name in recording.cameras}
    frames = {name: recording.frames(name) for name in recording.cameras}
    episodes: list[dict[str, Any]] = []
    with temporary_directory(path) as place:
        file, number = None, -1
        for episode, (begin, end) in enumerate(zip([0, *recording.ends[:-1]], recording.ends, strict=True)):
            columns = {name: _column(values[begin:end]) for name, values in arrays.items()}
            for name, blocks in frames.items():
                block = next(blocks)
                pixels[name].add(block)
                columns[name] = _pictures(block)
            table = pa.table(columns)
            if file is None:
                number += 1
                chunk, index = divmod(number, FILES_PER_CHUNK)
                target = place / DATA_PATH.format(chunk_index=chunk, file_index=index)
                target.parent.mkdir(parents=True, exist_ok=True)
                file = pq.ParquetWriter(target, table.schema, write_page_checksum=True)
            file.write_table(table)
            used = sorted(set(arrays[TASK][begin:end].tolist()))
            episodes.append(_episode(episode, int(begin), int(end), chunk, index, [_tasks(recording)[i] for i in used]))
            if episode == len(recording.ends) - 1 or target.stat().st_size >= FILE_BYTES:
                file.close()
                file = None
        for blocks in frames.values():
            next(blocks, None)  # checks that no frame is left
        _write_meta(place / "meta", recording, arrays, pixels, episodes)
        publish(place, path)


def _renamed(recording: Recording) -> Recording:
    """With names that the format allows."""

    def dotted(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace("/", "."): value for name, value in named.items()}

    keys, cameras = dotted(recording.keys), dotted(recording.cameras)
    where, names = str(recording.store.describe()["path"]), [*keys, *cameras]
    taken = [name for name in names if name in COUNTED]
    problems = [f"has a key {name!r}, which is a column of the format; rename it with --rename" for name in taken]
    if len(set(names)) < len(recording.keys) + len(recording.cameras):
        problems.append("has keys that differ only by / and .; rename them with --rename")
    shapes = recording.store.keys()
    problems += [
        f"has a key {name!r} of shape {shapes[key]}, which has no numbers; leave it out with --leave-out"
        for name, key in keys.items()
        if 0 in shapes[key]
    ]
    if recording.fps is None:
        problems.append("does not say its control steps per second; give them with --fps")
    if problems:
        raise DataError(where, problems)
    return replace(recording, keys=keys, cameras=cameras, names=dotted(recording.names))


def _tasks(recording: Recording) -> list[str]:
    return recording.tasks or [""]


def _counted(recording: Recording, task: np.ndarray | None) -> dict[str, np.ndarray]:
    """The columns that the format wants beside the data."""
    n, lengths = int(recording.ends[-1]), np.diff(recording.ends, prepend=0)
    frame = np.arange(n) - np.repeat(recording.ends - lengths, lengths)
    task = np.zeros(n, np.int64) if task is None else task
    if task.size != n or not np.isin(task, np.arange(len(_tasks(recording)))).all():
        found = f"has {TASK} that are not numbers of its {len(recording.tasks)} tasks; leave it out with --leave-out"
        raise DataError(str(recording.store.describe()["path"]), [found])
    task = task.reshape(n).astype(np.int64)
    return {
        "timestamp": (frame / recording.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(n),
        TASK: task,
    }


def _episode(episode: int, begin: int, end: int, chunk: int, file: int, tasks: list[str]) -> dict[str, Any]:
    return {
        "episode_index": episode,
        "tasks": tasks,
        "length": end - begin,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": begin,
        "dataset_to_index": end,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }


def _column(values: np.ndarray) -> pyarrow.Array:
    """Numbers as the lists that LeRobot declares for their shape."""
    import pyarrow as pa

    column = pa.array(values.reshape(-1).astype(values.dtype.newbyteorder("="), copy=False))
    if values.shape[1:] in ((), (1,)):
        return column
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(column, values.shape[1])
    for size in reversed(values.shape[1:]):
        column = pa.ListArray.from_arrays(np.arange(0, len(column) + 1, size, dtype=np.int32), column)
    return column


def _pictures(frames: np.ndarray) -> pyarrow.Array:
    import pyarrow as pa

    encoded = []
    for frame in frames:
        stream = io.BytesIO()
        import_pillow().fromarray(frame).save(stream, "PNG", compress_level=1)
        encoded.append({"bytes": stream.getvalue(), "path": None})
    return pa.array(encoded, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


class _PixelStatistics:
    """Statistics of a camera's frames, by channel, of values from 0 to 1."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, np.zeros(3), np.zeros(3)
        self._min, self._max = np.full(3, 255), np.zeros(3)

    def add(self, frames: np.ndarray) -> None:
        """Count (k, H, W, 3) uint8 frames."""
        values = np.arange(256)
        for frame in frames:
            counts = np.stack([np.bincount(frame[..., channel].ravel(), minlength=256) for channel in range(3)])
            self._count += frame[..., 0].size
            self._sum += counts @ values
            self._squares += counts @ values**2
        self._min = np.minimum(self._min, frames.min((0, 1, 2)))
        self._max = np.maximum(self._max, frames.max((0, 1, 2)))

    def document(self, frames: int) -> dict[str, Any]:
        """In the shape that LeRobot has for pictures."""
        mean = self._sum / self._count
        std = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0))
        found = {"min": self._min, "max": self._max, "mean": mean, "std": std}
        return {name: (value / 255).reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [frames]}


def _statistics(values: np.ndarray) -> dict[str, Any]:
    values = values.reshape(len(values), *(values.shape[1:] or (1,))).astype(np.float64)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    return {name: value.tolist() for name, value in found.items()} | {"count": [len(values)]}


def _write_meta(
    folder: Path,
    recording: Recording,
    arrays: Mapping[str, np.ndarray],
    pixels: Mapping[str, _PixelStatistics],
    episodes: list[dict[str, Any]],
) -> None:
    """info.json, stats.json, tasks.parquet and the list of episodes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    n, tasks = int(recording.ends[-1]), _tasks(recording)
    features = {
        name: {"dtype": values.dtype.name, "shape": list(values.shape[1:] or (1,)), "names": recording.names.get(name)}
        for name, values in arrays.items()
    } | {
        name: {"dtype": "image", "shape": [*source.size, 3], "names": ["height", "width", "channels"]}
        for name, source in recording.cameras.items()
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(episodes),
        "total_frames": n,
        "total_tasks": len(tasks),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "fps": int(recording.fps) if recording.fps == int(recording.fps) else recording.fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }
    statistics = {name: _statistics(values) for name, values in arrays.items()}
    statistics |= {name: found.document(n) for name, found in pixels.items()}
    listing = folder / "episodes" / "chunk-000" / "file-000.parquet"
    listing.parent.mkdir(parents=True)
    (folder / "info.json").write_text(json.dumps(info, indent=4))
    (folder / "stats.json").write_text(json.dumps(statistics, indent=4))
    pq.write_table(pa.Table.from_pylist(episodes), listing)
    pq.write_table(_task_table(tasks), folder / "tasks.parquet")


def _task_table(tasks: list[str]) -> pyarrow.Table:
    """Tasks as pandas stores a table whose index they are, which LeRobot reads."""
    import pyarrow as pa

    def column(name: str | None, field: str, kind: str, numpy_kind: str) -> dict[str, Any]:
        return {"name": name, "field_name": field, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}

    index = "__index_level_0__"
    described = {
        "index_columns": [index],
        "column_indexes": [column(None, None, "unicode", "object") | {"metadata": {"encoding": "UTF-8"}}],
        "columns": [column(TASK, TASK, "int64", "int64"), column(None, index, "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({TASK: pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})
