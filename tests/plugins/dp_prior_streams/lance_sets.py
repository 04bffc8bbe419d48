"""LeRobot data sets in Lance tables, laid out as lerobot-lance-convert of lerobot-lancedb 0.3.1 lays them out."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq


def write_lance(source, target):
    """Convert a data set of format v3.0: `.` in names becomes `_`, lists become lists of one length, and videos
    blobs; other columns stay as they are."""
    import lance

    shutil.copytree(source / "meta", target / "meta")
    info = json.loads((target / "meta/info.json").read_text())
    (target / "meta/info.json").write_text(json.dumps({**info, "storage_format": "lance"}))
    files = sorted(path for path in (target / "meta").rglob("*") if path.is_file())
    rows = [{"path": str(file.relative_to(target / "meta")), "data": file.read_bytes()} for file in files]
    schema = pa.schema([("path", pa.string()), ("data", pa.large_binary())])
    _write(lance, target, "meta", pa.Table.from_pylist(rows, schema))
    tables = [pq.read_table(file) for file in sorted((source / "data").rglob("*.parquet"))]
    _write(lance, target, "frames", pa.concat_tables([_in_lance(table) for table in tables]))
    videos = sorted((source / "videos").rglob("*.mp4")) if (source / "videos").is_dir() else []
    places = {
        "video_key": pa.array([file.parts[-3] for file in videos], pa.string()),
        "chunk_index": pa.array([int(file.parts[-2].split("-")[1]) for file in videos], pa.int64()),
        "file_index": pa.array([int(file.stem.split("-")[1]) for file in videos], pa.int64()),
        "file_size": pa.array([file.stat().st_size for file in videos], pa.int64()),
    }
    blobs = lance.blob_array([file.read_bytes() for file in videos])
    schema = pa.schema([*((name, values.type) for name, values in places.items()), lance.blob_field("video_bytes")])
    _write(lance, target, "videos", pa.table([*places.values(), blobs], schema=schema))
    return target


def _write(lance, target, name, table):
    lance.write_dataset(table, str(target / f"{name}.lance"), data_storage_version="2.2")


def _in_lance(table):
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        if pa.types.is_list(values.type):
            values = pa.FixedSizeListArray.from_arrays(values.flatten(), len(values[0]))
        columns[name.replace(".", "_")] = values
    return pa.table(columns)
