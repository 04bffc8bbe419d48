"""Rows of .npy files one after another, any range of them without reading the rest.

Local files are read at their offset. Behind a URL embedding-reader (1.8.1) reads many pieces in parallel. Each call
asks it for one bounded window and drains it (an iteration that is abandoned never ends), after the headers of all files
were read here: it assumes that every file is C-ordered and of the first one's type and width; others are refused.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_prior.data.embeddings.files import Files
from dp_prior.data.errors import DataError
from dp_prior.data.files import is_refusal, reading, unreadable
from dp_prior.regular_files import open_regular

WINDOW_BYTES, WINDOW_FILES = 32 << 20, 16
"""Most bytes, as float32, and files of one call of embedding-reader. A file's share is one piece, each with a thread;
with more pieces than threads an error would make it wait forever."""


@dataclass(frozen=True)
class Header:
    """The header of an .npy file, or the problem with it.

    Attributes:
        rows, dimension: its shape.
        dtype: of the numbers.
        offset: bytes before the first row.
        problem: why it cannot be read; None if it can.
    """

    rows: int = 0
    dimension: int = 0
    dtype: np.dtype = np.dtype("<f4")
    offset: int = 0
    problem: str | None = None


def read_header(files: Files, path: str) -> Header:
    """Read and check the header of one file.

    Raises:
        UnreadableError: the system refused to read it.
    """
    try:
        with files.open(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
            offset = file.tell()
    except DataError as error:
        return Header(problem=error.problems[0])
    except (ValueError, EOFError) as error:
        return Header(problem=f"is no .npy file: {error}")
    except OSError as error:
        if is_refusal(error):
            raise unreadable(path, error) from error
        return Header(problem=f"cannot be read: {error}")
    if len(shape) != 2:
        return Header(problem=f"has shape {shape}; expected (rows, dimension)")
    if is_fortran and min(shape) > 1:
        return Header(problem="is in Fortran order, column after column; save numpy.ascontiguousarray of it")
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8) or dtype.byteorder == ">":
        return Header(problem=f"holds {dtype.str}; expected little-endian float16, float32 or float64")
    expected = offset + shape[0] * shape[1] * dtype.itemsize
    if size != expected:
        return Header(problem=f"has {size} bytes, but its header declares {shape} {dtype.name}, which take {expected}")
    return Header(shape[0], shape[1], dtype, offset)


class NpyRows:
    """The rows of all files in order of their names.

    Attributes:
        counts: rows of each file.
        dimension: numbers in a row.
        dtype: what `read` returns: float16 if all files are, otherwise float32.
        largest_read: rows that `read` may hold besides those asked for; none.
    """

    largest_read = 0

    def __init__(self, place: str, files: Files):
        headers = files.each(lambda path: read_header(files, path))
        named = list(zip(files.paths, headers, strict=True))
        problems = [f"{path}: {header.problem}" for path, header in named if header.problem]
        good = [(path, header) for path, header in named if not header.problem]
        widths = sorted({header.dimension for _, header in good})
        if len(widths) > 1:
            first = {width: next(path for path, header in good if header.dimension == width) for width in widths}
            problems.append(f"files differ in dimension: {first}; every row needs as many numbers")
        kinds = sorted({header.dtype.name for _, header in good if header.rows})
        if not files.is_local and len(kinds) > 1:
            problems.append(f"files differ in type, {kinds}, which embedding-reader cannot read behind a URL")
        if problems:
            raise DataError(place, problems)
        self.paths = files.paths
        self.counts = np.array([header.rows for header in headers], dtype=np.int64)
        self.dimension = widths[0]
        self.dtype = np.dtype(np.float16 if kinds == ["float16"] else np.float32)
        self._place, self._fs, self._headers = place, files.fs, headers
        self.is_local = files.is_local
        self._ends = np.cumsum(self.counts)
        self._reader = None if files.is_local else self._make_reader(place, files)

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, dimension) rows, in `dtype`.

        Raises:
            DataError: a file has become shorter.
        """
        if self._reader is not None:
            return self._read_windows(start, stop)
        out = np.empty((stop - start, self.dimension), self.dtype)
        done = 0
        for number in range(int(np.searchsorted(self._ends, start, side="right")), len(self.paths)):
            before = int(self._ends[number] - self.counts[number])
            begin, end = max(start - before, 0), min(stop - before, int(self.counts[number]))
            if before >= stop:
                break
            if begin >= end:
                continue  # a file or row group without rows
            self._read_file(number, begin, out[done : done + end - begin])
            done += end - begin
        return out

    def locate(self, row: int) -> str:
        """The file that holds a row, and which of its rows that is."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        return f"{self.paths[number]}, row {row - int(self._ends[number] - self.counts[number])}"

    def _read_file(self, number: int, begin: int, out: np.ndarray) -> None:
        """Rows of one local file into `out`, which is contiguous."""
        header = self._headers[number]
        into = out if out.dtype == header.dtype else np.empty(out.shape, header.dtype)
        path = self.paths[number]
        with reading(path), open_regular(path) as file:
            file.seek(header.offset + begin * self.dimension * header.dtype.itemsize)
            left = memoryview(into).cast("B")
            while len(left):
                count = file.readinto(left)
                if not count:
                    raise DataError(path, ["has become shorter since it was opened"])
                left = left[count:]
        if into is not out:
            out[:] = into

    def _make_reader(self, place: str, files: Files) -> Any:
        """embedding-reader over the same rows, compared with what the headers say."""
        from embedding_reader import EmbeddingReader

        if not files.is_folder:
            raise DataError(
                place, ["is one file; behind a URL embedding-reader reads folders only, so name its folder"]
            )
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
            reader = EmbeddingReader(place, "npy")
        if (reader.count, reader.dimension) != (self._ends[-1], self.dimension):
            raise DataError(
                place,
                [
                    f"embedding-reader sees {reader.count} rows of {reader.dimension} numbers, but the headers of the "
                    f"files declare {self._ends[-1]} of {self.dimension}"
                ],
            )
        return reader

    def _read_windows(self, start: int, stop: int) -> np.ndarray:
        size = max(1, WINDOW_BYTES // (4 * self.dimension))
        out = np.empty((stop - start, self.dimension), self.dtype)
        begin = start
        while begin < stop:
            first = int(np.searchsorted(self._ends, begin, side="right"))
            last = min(first + WINDOW_FILES, len(self._ends)) - 1
            end = min(begin + size, stop, int(self._ends[last]))
            windows = self._reader(end - begin, begin, end, parallel_pieces=WINDOW_FILES, show_progress=False)
            for rows, _ in list(windows):
                out[begin - start : end - start] = rows
            begin = end
        return out
