"""Rows of .npy files.

Local files are read at their offset. Behind a URL embedding-reader (1.8.1) reads many pieces in parallel. Each call
requests a single bounded window and drains the iteration, because an abandoned iteration never ends. embedding-reader
assumes that every file is C-ordered and has the type and width of the first file; so all headers are read here before,
and other files are refused.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dp_prior.data.embeddings.file_rows import FileRows
from dp_prior.data.errors import DataError
from dp_prior.data.files import check_array, decoding, npy_header, reading
from dp_prior.data.found_files import Files
from dp_prior.data.remote_files import reached
from dp_prior.files.regular_files import open_regular

WINDOW_BYTES, WINDOW_FILES = 32 << 20, 16
"""Most bytes, as float32, and files of one call of embedding-reader. A file's share is one piece, each with a thread;
with more pieces than threads an error would make it wait forever."""


class Header(NamedTuple):
    """The header of an .npy file.

    Attributes:
        shape: (rows, dimension).
        dtype: of the numbers.
        offset: bytes before the first row.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    offset: int


def read_header(files: Files, path: str) -> Header:
    """Read and check the header of one file.

    Raises:
        DataError: it is no .npy file of embeddings.
        OSError: it cannot be read.
    """
    with files.open(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            shape, is_fortran, dtype = npy_header(file)
        except (ValueError, EOFError) as error:
            raise DataError(path, [f"is no .npy file: {error}"]) from None
        offset = file.tell()
    if dtype.hasobject:
        raise DataError(path, ["holds Python objects, never decoded; save numbers (docs/own_data.md#other-files)"])
    if len(shape) != 2:
        raise DataError(path, [f"has shape {shape}; expected (rows, dimension)"])
    if is_fortran and min(shape) > 1:
        raise DataError(path, ["is in Fortran order, column after column; save numpy.ascontiguousarray of it"])
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8) or dtype.byteorder == ">":
        raise DataError(path, [f"holds {dtype.str}; expected little-endian float16, float32 or float64"])
    expected = offset + shape[0] * shape[1] * dtype.itemsize
    if size != expected:
        problem = f"has {size} bytes, but its header declares {shape} {dtype.name}, which take {expected}"
        raise DataError(path, [problem])
    check_array(path, shape, dtype)
    return Header(shape, dtype, offset)


class NpyRows(FileRows):
    """The rows of all files, float16 if all files are, otherwise float32."""

    def __init__(self, files: Files):
        self._url = files.url
        self._headers = files.each(lambda path: read_header(files, path))
        first = {header.shape[1]: path for path, header in reversed(list(zip(files.paths, self._headers, strict=True)))}
        kinds = sorted({header.dtype.name for header in self._headers if header.shape[0]})
        problems = []
        if len(first) > 1:
            problems.append(f"files differ in dimension: {first}; every row needs as many numbers")
        if not files.is_local and len(kinds) > 1:
            problems.append(f"files differ in type, {kinds}, which embedding-reader cannot read behind a URL")
        if problems:
            raise DataError(files.url, problems)
        dtype = np.float16 if kinds == ["float16"] else np.float32
        super().__init__(files, [header.shape[:1] for header in self._headers], min(first), dtype)
        self._reader = None if files.is_local else self._make_reader(files)

    def read(self, start: int, stop: int) -> np.ndarray:
        return super().read(start, stop) if self._reader is None else self._read_windows(start, stop)

    def _read_piece(self, number: int, begin: int, out: np.ndarray) -> None:
        header, path = self._headers[number], self.paths[number]
        into = out if out.dtype == header.dtype else np.empty(out.shape, header.dtype)
        with reading(path), open_regular(path) as file:
            file.seek(header.offset + begin * self.dimension * header.dtype.itemsize)
            if file.readinto(memoryview(into).cast("B")) < into.nbytes:
                raise DataError(path, ["has become shorter since it was opened"])
        if into is not out:
            with np.errstate(
                over="ignore"
            ):  # beyond float32 a number becomes infinite, which the check of rows refuses
                out[:] = into

    def _make_reader(self, files: Files) -> Any:
        """Open embedding-reader on the same rows, and compare its counts with the headers."""
        from embedding_reader import EmbeddingReader

        if files.paths == [files.place]:
            problem = "is one file; behind a URL embedding-reader reads folders only, so name its folder"
            raise DataError(files.url, [problem])
        refusal = "cannot be opened by embedding-reader, which reads hidden files too; delete those"
        with decoding(files.url, refusal), contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            reader = EmbeddingReader(files.url, "npy")
        if (reader.count, reader.dimension) != (self._ends[-1], self.dimension):
            counted = f"embedding-reader sees {reader.count} rows of {reader.dimension} numbers"
            declared = f"the headers of the files declare {self._ends[-1]} of {self.dimension}"
            raise DataError(files.url, [f"{counted}, but {declared}; it reads hidden files too, so delete those"])
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
            for rows, _ in self._drained(windows):
                out[begin - start : end - start] = rows
            begin = end
        return out

    def _drained(self, windows: Iterator[tuple[np.ndarray, Any]]) -> list[tuple[np.ndarray, Any]]:
        """Read all windows of one call; embedding-reader wraps the error of a file in ValueError."""
        try:
            return list(windows)
        except ValueError as error:
            if isinstance(error.__cause__, ValueError):
                raise DataError(self._url, [f"{error}: it has changed since it was opened"]) from None
            with reached(self._url):
                raise error.__cause__ or error from None
