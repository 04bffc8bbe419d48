"""Folders of embeddings as clip-retrieval writes them, small: row i is told by its first number."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet


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
