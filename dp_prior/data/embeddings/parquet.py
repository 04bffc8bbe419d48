"""Rows of one column of parquet files, a row group at a time; embedding-reader would read whole files, all columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dp_prior.data.embeddings.file_rows import FileRows
from dp_prior.data.embeddings.metadata import check_columns
from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding, reading
from dp_prior.data.found_files import Files
from dp_prior.data.parquet_sizes import check_columns_fit


class ParquetRows(FileRows):
    """The embeddings in a column of lists of numbers, float32. A piece is a row group, of which the last is kept."""

    def __init__(self, files: Files, column: str):
        self._files, self._column = files, column
        pieces = files.each(self._read_footer)
        self._groups: list[tuple[str, int]] = []
        for path, sizes in zip(files.paths, pieces, strict=True):
            self._groups += [(path, index) for index in range(len(sizes))]
        self._group = lru_cache(1)(self._read_group)
        super().__init__(files, pieces, 0, np.float32)
        self.largest_read = int(self._sizes.max(initial=0))
        if self.largest_read:
            self.dimension = self._first_width()

    def _read_footer(self, path: str) -> list[int]:
        """Read the number of rows of each row group."""
        from pyarrow import parquet

        with self._files.open(path) as file:
            footer = check_columns_fit(path, file, [self._column])
            check_columns(path, parquet.ParquetFile(file).schema_arrow.names, [self._column])
            return footer.groups

    def _read_piece(self, number: int, begin: int, out: np.ndarray) -> None:
        out[:] = self._group(number)[begin : begin + len(out)]

    def _first_width(self) -> int:
        """Count the numbers in the first row, without decoding its row group."""
        import pyarrow
        from pyarrow import parquet

        path = self._groups[int(np.argmax(self._sizes > 0))][0]
        with decoding(path), reading(path), self._files.open(path) as file:
            first = next(parquet.ParquetFile(file).iter_batches(1, columns=[self._column])).column(0)
        kind, types = first.type, pyarrow.types
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not types.is_floating(kind.value_type):
            raise DataError(path, [f"column {self._column!r} holds {kind}; expected lists of floating-point numbers"])
        return len(first.flatten())

    def _read_group(self, number: int) -> np.ndarray:
        """Decode a row group to (rows, dimension) float32."""
        from pyarrow import parquet

        path, index = self._groups[number]
        with decoding(path), reading(path), self._files.open(path) as file:
            column = parquet.ParquetFile(file).read_row_group(index, columns=[self._column]).column(0)
        parts, row = [], 0
        for rows in column.chunks:
            values = rows.flatten()
            lengths = rows.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != self.dimension)
            if values.null_count and not len(wrong):
                wrong = np.flatnonzero(values.is_null()) // self.dimension
            if len(wrong):
                where = f"column {self._column!r}, row group {index}, row {row + int(wrong[0])}"
                raise DataError(path, [f"{where}: not a list of {self.dimension} numbers, which the first row is"])
            with np.errstate(
                over="ignore"
            ):  # beyond float32 a number becomes infinite, which the check of rows refuses
                parts.append(values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False))
            row += len(rows)
        return np.concatenate(parts).reshape(row, self.dimension)
