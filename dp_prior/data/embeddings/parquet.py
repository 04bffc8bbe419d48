"""Rows of one column of parquet files, a row group at a time; embedding-reader would read whole files, all columns."""

from __future__ import annotations

import numpy as np

from dp_prior.data.embeddings.files import Files
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import is_refusal, reading, unreadable


class ParquetRows:
    """The embeddings in a column of lists of numbers, all files in order of their names.

    Attributes:
        counts: rows of each file.
        dimension: numbers in a row.
        dtype: float32, which `read` gives.
        largest_read: rows of the largest row group; one is in memory while rows of it are read.
    """

    def __init__(self, place: str, files: Files, column: str):
        from pyarrow import parquet

        self.paths = files.paths
        self.dtype = np.dtype(np.float32)
        self._files, self._column = files, column
        self.is_local = files.is_local
        problems: list[str] = []

        def read_footer(path: str) -> list[int]:
            try:
                with files.open(path) as file:
                    parts = parquet.ParquetFile(file)
                    if column not in parts.schema_arrow.names:
                        hint = nearest_name(column, parts.schema_arrow.names)
                        problems.append(f"{path}: there is no column {column!r}. {hint}")
                    return [parts.metadata.row_group(i).num_rows for i in range(parts.metadata.num_row_groups)]
            except DataError as error:
                problems.append(f"{path}: {error.problems[0]}")
                return []
            except (OSError, ValueError) as error:
                if is_refusal(error):
                    raise unreadable(path, error) from error
                problems.append(f"{path}: cannot be read: {error}")
                return []

        groups = files.each(read_footer)
        if problems:
            raise DataError(place, sorted(problems))
        self.counts = np.array([sum(sizes) for sizes in groups], dtype=np.int64)
        self._groups = [
            (path, index) for path, sizes in zip(self.paths, groups, strict=True) for index in range(len(sizes))
        ]
        self._sizes = np.array([size for sizes in groups for size in sizes], dtype=np.int64)
        self._ends = np.cumsum(self._sizes)
        self.largest_read = int(self._sizes.max(initial=0))
        self._held: tuple[int, np.ndarray] = (-1, np.zeros((0, 0), np.float32))
        self.dimension = self._first_width() if self.largest_read else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, dimension) float32 rows.

        Raises:
            DataError: a row is missing or has another number of numbers.
        """
        out = np.empty((stop - start, self.dimension), self.dtype)
        done = 0
        for number in range(int(np.searchsorted(self._ends, start, side="right")), len(self._sizes)):
            before = int(self._ends[number] - self._sizes[number])
            begin, end = max(start - before, 0), min(stop - before, int(self._sizes[number]))
            if before >= stop:
                break
            if begin >= end:
                continue  # a file or row group without rows
            out[done : done + end - begin] = self._group(number)[begin:end]
            done += end - begin
        return out

    def locate(self, row: int) -> str:
        """The file that holds a row, and which of its rows that is."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, row, side="right"))
        return f"{self.paths[number]}, row {row - int(ends[number] - self.counts[number])}"

    def _group(self, number: int) -> np.ndarray:
        """(rows, dimension) float32 of one row group; the newest is kept."""
        held = self._held  # read once: another thread may replace it
        if held[0] != number:
            held = (number, self._read_group(*self._groups[number]))
            self._held = held
        return held[1]

    def _first_width(self) -> int:
        """Numbers in the first row, without decoding its row group."""
        import pyarrow
        from pyarrow import parquet

        path = self._groups[int(np.argmax(self._sizes > 0))][0]
        with reading(path), self._files.open(path) as file:
            first = next(parquet.ParquetFile(file).iter_batches(1, columns=[self._column])).column(0)
        kind, types = first.type, pyarrow.types
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not types.is_floating(kind.value_type):
            found = f"column {self._column!r} holds {kind}"
            raise DataError(path, [f"{found}; expected lists of floating-point numbers"])
        return len(first.flatten())

    def _read_group(self, path: str, index: int) -> np.ndarray:
        from pyarrow import parquet

        with reading(path), self._files.open(path) as file:
            column = parquet.ParquetFile(file).read_row_group(index, columns=[self._column]).column(0)
        parts, row = [], 0
        for rows in column.chunks:
            values = rows.flatten()
            lengths = rows.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != self.dimension)
            if len(wrong) or values.null_count:
                where = f"column {self._column!r}, row group {index}, row {row + int(wrong[0]) if len(wrong) else row}"
                raise DataError(path, [f"{where}: not a list of {self.dimension} numbers, which the first row is"])
            parts.append(values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False))
            row += len(rows)
        return np.concatenate(parts).reshape(row, self.dimension)
