"""A folder of embeddings as a record: where it is, in which of the three formats, and its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.config import Config
from dp_prior.data.embeddings.files import find_files
from dp_prior.data.embeddings.metadata import count_rows, read_columns
from dp_prior.data.embeddings.npy import NpyRows
from dp_prior.data.embeddings.parquet import ParquetRows
from dp_prior.data.errors import DataError

FINGERPRINTED_ROWS = 64


class Rows(Protocol):
    """Rows in files; see `NpyRows`."""

    paths: list[str]
    counts: np.ndarray
    dimension: int
    dtype: np.dtype
    largest_read: int

    def read(self, start: int, stop: int) -> np.ndarray: ...

    def locate(self, row: int) -> str: ...


class FolderConfig(Config):
    """Embeddings, a row each, as embedding-reader and clip-retrieval write them."""

    path: str
    """The folder, or one file: a path or any URL that fsspec knows, such as s3://bucket/img_emb. Files below it are
    read in the order of their names."""

    format: Literal["npy", "parquet", "parquet_npy"] = "npy"
    """npy: arrays (rows, dimension). parquet: one column of lists. parquet_npy: arrays beside parquet files of
    metadata, file by file."""

    column: str = "embedding"
    """Column that holds the embeddings, in format parquet."""

    metadata: str | None = None
    """Folder or file of the metadata, parquet or CSV, row by row beside the embeddings; needed in format parquet_npy.
    null: there is none, in format parquet the other columns of the same files."""

    tokens: int | None = Field(default=None, ge=1)
    """A row is so many embeddings one after another, as text encodings are; null: a row is one embedding."""

    @model_validator(mode="after")
    def _has_metadata(self) -> FolderConfig:
        if self.format == "parquet_npy" and self.metadata is None:
            raise ValueError("format 'parquet_npy' needs metadata, the folder of the parquet files; or use 'npy'")
        return self

    def create(self) -> Folder:
        """Open it: headers are read and compared, embeddings are not.

        Raises:
            DataError: files are missing, damaged or do not fit together; all that is wrong, by name.
        """
        if self.format == "parquet":
            rows: Rows = ParquetRows(self.path, find_files(self.path, (".parquet",)), self.column)
        else:
            rows = NpyRows(self.path, find_files(self.path, (".npy",)))
        if not rows.counts.sum():
            raise DataError(self.path, ["holds files, but no rows"])
        if not rows.dimension:
            raise DataError(self.path, ["the first row holds no numbers"])
        if self.tokens is not None and rows.dimension % self.tokens:
            raise DataError(self.path, [f"has {rows.dimension} numbers in a row, which are not {self.tokens} tokens"])
        if self.format == "parquet_npy":
            _check_pairs(self.path, rows, *count_rows(self.metadata))
        place = self.path if self.format == "parquet" and self.metadata is None else self.metadata
        return Folder(self.path, rows, place, self.tokens)


class Folder:
    """Open embeddings.

    Attributes:
        count: rows in all.
        shape: of a row: (dimension,), or (tokens, dimension).
        rows: the rows themselves, flat.
    """

    def __init__(self, path: str, rows: Rows, metadata: str | None, tokens: int | None):
        self.path = path
        self.rows = rows
        self.count = int(rows.counts.sum())
        self.shape = (rows.dimension,) if tokens is None else (tokens, rows.dimension // tokens)
        self._metadata = metadata

    def columns(self, names: list[str], as_text: bool = False) -> Iterator[dict[str, np.ndarray]]:
        """Columns of the metadata from the first row to the last, a part at a time, see `read_columns`.

        Raises:
            DataError: there is no metadata, no such column, or not one row of it for each embedding.
        """
        if self._metadata is None:
            raise DataError(self.path, [f"columns {names} are wanted, but no metadata is named for these embeddings"])
        total = 0
        for part in read_columns(self._metadata, names, as_text):
            total += len(part[names[0]])
            yield part
        if total != self.count:
            raise DataError(self._metadata, [f"has {total} rows, but {self.path} has {self.count} embeddings"])

    def check_finite(self, values: Tensor, rows: Callable[[], np.ndarray]) -> None:
        """Raises DataError, naming the file, if one of the (n, ...) values, read from (n,) `rows()`, is not finite."""
        if not torch.isfinite(values.sum()):
            bad = np.flatnonzero(~torch.isfinite(values.flatten(1)).all(dim=1).numpy())
            if len(bad):
                where = self.rows.locate(int(rows()[bad[0]]))
                raise DataError(self.path, [f"{where}: holds a number that is not finite; leave the row out"])

    def fingerprint(self) -> str:
        """SHA-256 of the files' names and sizes and of some rows: tells data sets apart without reading one."""
        digest = hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode())
        count = 1 if self.rows.largest_read else min(FINGERPRINTED_ROWS, self.count)  # a row group is no small thing
        for row in np.arange(count) * self.count // count:
            digest.update(self.rows.read(int(row), int(row) + 1).astype("<f4").tobytes())
        return digest.hexdigest()

    def describe(self) -> dict:
        """What identifies the embeddings without reading them; JSON-able."""
        files = {
            path.rsplit("/", 1)[-1]: int(count) for path, count in zip(self.rows.paths, self.rows.counts, strict=True)
        }
        return {"rows": self.count, "shape": list(self.shape), "files": files}


def _check_pairs(path: str, rows: Rows, metadata: list[str], counts: np.ndarray) -> None:
    """Every .npy file has its parquet file, with as many rows; embedding-reader would drop what is left over."""
    if len(metadata) != len(rows.paths):
        raise DataError(
            path, [f"there are {len(rows.paths)} .npy files, but {len(metadata)} parquet files of metadata beside them"]
        )
    problems = [
        f"{array} has {own} rows, but {table} beside it {other}"
        for array, own, table, other in zip(rows.paths, rows.counts, metadata, counts, strict=True)
        if own != other
    ]
    if problems:
        raise DataError(path, problems)
