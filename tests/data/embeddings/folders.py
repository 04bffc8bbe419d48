"""Folders of embeddings as clip-retrieval writes them, small: row i is told by its first number."""

from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dp_prior.data.embeddings.folder import FolderConfig

COUNTS = [5, 1, 9, 4]
"""Rows of the files of a folder."""


def embeddings(n: int, dim: int = 6, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """(n, dim) random rows."""
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(dtype)


def write_npy(folder: Path, rows: np.ndarray, counts: list[int]) -> Path:
    """Rows in files of so many rows each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.split(rows, np.cumsum(counts)[:-1])):
        np.save(folder / f"img_emb_{number:02d}.npy", part)
    return folder


def write_parquet(folder: Path, columns: dict, counts: list[int], row_group: int = 4) -> Path:
    """Columns in files of so many rows each; arrays (n, dim) become lists."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = np.cumsum([0, *counts])
    for number, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
        table = pa.table({name: pa.array(list(values[begin:end])) for name, values in columns.items()})
        parquet.write_table(table, folder / f"metadata_{number:02d}.parquet", row_group_size=row_group)
    return folder


def remote(local, name: str) -> str:
    """The files of a local folder behind a URL."""
    fs = fsspec.filesystem("memory")
    for path in sorted(local.glob("*")):
        fs.pipe(f"/{name}/{path.name}", path.read_bytes())
    return f"memory://{name}"


def assert_reads(record: FolderConfig, rows: np.ndarray) -> None:
    """Any range of the rows of a folder is that of these rows."""
    folder = record.create()
    assert (folder.count, folder.shape) == (len(rows), rows.shape[1:])
    step = 4 if "memory:" in record.path else 1  # each read behind a URL starts threads
    for start in range(0, len(rows), step):
        for stop in range(start + 1, len(rows) + 1, step):
            assert np.array_equal(folder.rows.read(start, stop), rows[start:stop].astype(folder.rows.dtype))
