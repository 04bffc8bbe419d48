"""A folder of embeddings as a record: its place, its format and its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dp_prior.config import Config, Outside
from dp_prior.data.embeddings.file_rows import FileRows
from dp_prior.data.embeddings.metadata import count_rows, read_columns
from dp_prior.data.embeddings.npy import NpyRows
from dp_prior.data.embeddings.parquet import ParquetRows
from dp_prior.data.errors import DataError
from dp_prior.data.found_files import find_files

FINGERPRINTED_ROWS = 64

ABSURD = 1e12
"""Longer embeddings are damaged; the squares of much longer embeddings are infinite in float32."""

SCANNED_BYTES, SCANNED_BYTES_REMOTE, SCANNED_ROWS = 256 << 20, 8 << 20, 1024
"""Most bytes read by the scan before training, of local files and behind a URL, and rows of a block of it."""

MOST_ROWS_NAMED = 5


class FolderConfig(Config):
    """Embeddings, one per row, as embedding-reader and clip-retrieval write them."""

    path: Annotated[str, Outside()]
    """The folder, or one file: a path or any URL that fsspec knows, such as s3://bucket/img_emb. Files below it are
    read in the order of their names."""

    format: Literal["npy", "parquet", "parquet_npy"] = "npy"
    """npy: arrays (rows, dimension). parquet: one column of lists. parquet_npy: arrays beside parquet files of
    metadata, file by file."""

    column: str = "embedding"
    """Column that holds the embeddings, in format parquet."""

    metadata: Annotated[str | None, Outside()] = None
    """Folder or file of the metadata, parquet or CSV, row by row beside the embeddings; needed in format parquet_npy.
    null: there is none, in format parquet the other columns of the same files."""

    tokens: int | None = Field(default=None, ge=1)
    """Embeddings in a row, for text encodings; null: a row is one embedding."""

    def faults(self) -> Iterator[str]:
        if self.format == "parquet_npy" and self.metadata is None:
            yield "format 'parquet_npy' needs metadata, the folder of the parquet files; or use 'npy'"

    def places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the files that are read, by path or URL."""
        places: dict[str, tuple[str, ...]] = {self.path: (".parquet",) if self.format == "parquet" else (".npy",)}
        if self.metadata is not None:
            places[self.metadata] = (*places.get(self.metadata, ()), ".parquet", ".csv")
        return places

    def create(self, *, needs_length: bool = False) -> EmbeddingFolder:
        """Open the folder: headers are read and compared, embeddings are not.

        Args:
            needs_length: whether a row of zeros is an error.

        Raises:
            DataError: every file that is missing or damaged, or does not fit the others.
        """
        if self.format == "parquet":
            rows: FileRows = ParquetRows(find_files(self.path, (".parquet",)), self.column)
        else:
            rows = NpyRows(find_files(self.path, (".npy",)))
        if not rows.counts.sum():
            raise DataError(self.path, ["holds files, but no rows"])
        if not rows.dimension:
            raise DataError(self.path, ["the first row holds no numbers"])
        if self.tokens is not None and rows.dimension % self.tokens:
            raise DataError(self.path, [f"has {rows.dimension} numbers in a row, which are not {self.tokens} tokens"])
        if self.format == "parquet_npy":
            _check_pairs(self.path, rows, *count_rows(self.metadata))
        place = self.path if self.format == "parquet" and self.metadata is None else self.metadata
        return EmbeddingFolder(self.path, rows, place, self.tokens, needs_length=needs_length)


class EmbeddingFolder:
    """Open embeddings.

    Attributes:
        count: rows in all.
        shape: of a row: (dimension,), or (tokens, dimension).
        rows: the rows themselves, flat.
    """

    def __init__(
        self, path: str, rows: FileRows, metadata: str | None, tokens: int | None, *, needs_length: bool = False
    ):
        self.path = path
        self._needs_length = needs_length
        self.rows = rows
        self.count = int(rows.counts.sum())
        self.shape = (rows.dimension,) if tokens is None else (tokens, rows.dimension // tokens)
        self._metadata = metadata

    def has_column(self, name: str) -> bool:
        """Whether the metadata have a column."""
        try:
            next(self.columns([name]), None)
        except DataError:
            return False
        return self._metadata is not None

    def columns(self, names: list[str], as_text: bool = False) -> Iterator[dict[str, np.ndarray]]:
        """Read columns of the metadata in order of rows, a part at a time, see `read_columns`.

        Raises:
            DataError: metadata or the column are missing, or have another number of rows than the embeddings.
        """
        if self._metadata is None:
            raise DataError(self.path, [f"columns {names} are wanted, but no metadata is named for these embeddings"])
        total = 0
        for part in read_columns(self._metadata, names, as_text):
            total += len(part[names[0]])
            if total <= self.count:
                yield part
        if total != self.count:
            raise DataError(self._metadata, [f"has {total} rows, but {self.path} has {self.count} embeddings"])

    def check(self, values: np.ndarray, rows: np.ndarray) -> None:
        """Check (n, dimension) values that were read from (n,) `rows`.

        Raises:
            DataError: a row is not finite, has values beyond `ABSURD`, or has length 0 where a length is needed.
        """
        values = values.astype(np.float32, copy=False)
        squares = np.einsum("ij,ij->i", values, values)
        lowest = 0.0 if self._needs_length else -1.0
        bad = np.flatnonzero(~((squares > lowest) & (squares < ABSURD**2)))
        if len(bad):
            raise DataError(self.path, [self._fault(values[at], int(rows[at])) for at in bad[:MOST_ROWS_NAMED]])

    def _fault(self, values: np.ndarray, row: int) -> str:
        where = self.rows.locate(row)
        if not np.isfinite(values).all():
            return f"{where}: holds a number that is not finite as float32; leave the row out"
        if values.any():
            largest = float(np.abs(values).max())
            return f"{where}: its largest value is {largest:g}, which no embedding has; repair it or leave the row out"
        return f"{where}: is all zeros, so it has no direction; leave the row out"

    def scan(self, used: int | None = None) -> int:
        """Check rows before training: all of them up to `SCANNED_BYTES`, otherwise evenly spread blocks of that size.

        Args:
            used: number of first rows to check; None for all.

        Returns:
            The number of rows checked.

        Raises:
            DataError: see `check`.
        """
        count = self.count if used is None else used
        block = max(self.rows.largest_read, SCANNED_ROWS)  # a row group is decoded whole
        budget = SCANNED_BYTES if self.rows.is_local else SCANNED_BYTES_REMOTE
        n_blocks = -(-count // block)
        n_scanned = min(max(budget // (block * self.rows.dimension * self.rows.dtype.itemsize), 1), n_blocks)
        scanned = 0
        for number in np.arange(n_scanned) * n_blocks // n_scanned:
            start = int(number) * block
            rows = np.arange(start, min(start + block, count))
            self.check(self.rows.read(start, start + len(rows)), rows)
            scanned += len(rows)
        return scanned

    def fingerprint(self) -> str:
        """SHA-256 of file names, numbers of rows and some rows: identifies the data without reading all of them."""
        digest = hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode())
        count = 1 if self.rows.largest_read else min(FINGERPRINTED_ROWS, self.count)  # each decodes a whole row group
        for row in np.arange(count) * self.count // count:
            digest.update(self.rows.read(int(row), int(row) + 1).astype("<f4").tobytes())
        return digest.hexdigest()

    def describe(self) -> dict:
        """Rows, shape and files, which identify the embeddings without reading them; JSON-able."""
        names = [path.rsplit("/", 1)[-1] for path in self.rows.paths]
        files = dict(zip(names, self.rows.counts.tolist(), strict=True))
        return {"rows": self.count, "shape": list(self.shape), "files": files}


def _check_pairs(path: str, rows: FileRows, metadata: list[str], counts: np.ndarray) -> None:
    """Refuse .npy files without a parquet file of as many rows; embedding-reader would drop the surplus rows."""
    n_arrays, n_tables = len(rows.paths), len(metadata)
    if n_arrays != n_tables:
        problem = f"there are {n_arrays} .npy files, but {n_tables} parquet files of metadata beside them"
        raise DataError(path, [problem])
    problems = [
        f"{array} has {array_rows} rows, but {table} beside it {table_rows}"
        for array, array_rows, table, table_rows in zip(rows.paths, rows.counts, metadata, counts, strict=True)
        if array_rows != table_rows
    ]
    if problems:
        raise DataError(path, problems)
