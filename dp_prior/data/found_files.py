"""Files of embeddings: one file or a folder, on a local disk or behind any URL that fsspec knows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from dp_prior.data.errors import DataError, MissingError
from dp_prior.data.files import reading
from dp_prior.data.remote_files import RemoteFile, reached
from dp_prior.files.left_behind import left_behind
from dp_prior.files.regular_files import check_regular, expanded, open_regular

PARALLEL_FILES = 32
"""Headers that are read at the same time: on a remote store latency dominates."""

T = TypeVar("T")


def raise_error(error: OSError) -> None:
    """For `os.walk`, which passes over folders that it cannot list unless told otherwise."""
    raise error


@dataclass(frozen=True)
class Files:
    """Files of one kind below a place, in the order of their names.

    Attributes:
        url: the file or folder, as the configuration names it.
        fs: the fsspec file system.
        paths: as `fs` wants them.
        place: the file or folder, as `fs` wants it.
        is_local: whether they lie on a disk of this machine.
    """

    url: str
    fs: Any
    place: str
    paths: list[str]
    is_local: bool

    def open(self, path: str) -> Any:
        """Open one of the files for reading; local files must be regular files."""
        return open_regular(path) if self.is_local else RemoteFile(self.fs, path)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file by its name below the place, `.` where the place is a file itself."""
        names = [path[len(self.place) + 1 :] or "." for path in self.paths]
        return dict(zip(names, self.each(self._size), strict=True))

    def _size(self, path: str) -> int:
        if not self.is_local:
            with reached(path):
                return int(self.fs.size(path))
        status = os.stat(path)
        check_regular(path, status.st_mode)
        return status.st_size

    def each(self, read: Callable[[str], T]) -> list[T]:
        """`read(path)` of every file, in order, many at a time.

        Raises:
            UnreadableError: the system refused to read one, or the place to be reached.
            DataError: what is wrong with the files.
        """
        problems = []

        def attempt(path: str) -> T | None:
            try:
                with reading(path):
                    return read(path)
            except DataError as error:
                problems.extend(f"{path}: {problem}" for problem in error.problems)
            except ValueError as error:  # pyarrow's too
                problems.append(f"{path}: cannot be read: {error}")

        def attempts() -> list[T | None]:
            with ThreadPoolExecutor(min(PARALLEL_FILES, len(self.paths))) as pool:
                return list(pool.map(attempt, self.paths))

        results = attempts() if self.is_local else left_behind(attempts, place=self.url)
        if problems:
            raise DataError(self.url, sorted(problems))
        return results


def find_files(place: str, endings: tuple[str, ...]) -> Files:
    """List the files below `place`, or `place` itself.

    Raises:
        DataError: nothing is there, or nothing with one of these endings.
        UnreadableError: the system refused to list a folder, or the place to be reached.
        ImportError: the URL is of a kind whose package is not installed.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    with reached(place):  # some file systems connect, or read a file, when they are made
        try:
            fs, path = url_to_fs(place if "://" in place else str(expanded(place)))
        except ValueError as error:
            raise DataError(place, [f"is neither a path nor a URL that fsspec knows: {error}"]) from None
    path = path.rstrip("/") or path
    is_local = isinstance(fs, LocalFileSystem)
    patterns = " or ".join(f"*{ending}" for ending in dict.fromkeys(map(str.lower, endings)))
    kind = _local_kind(place, path) if is_local else _remote_kind(place, fs, path)
    if kind == "file":
        if not path.endswith(endings):
            raise DataError(place, [f"is a file; expected {patterns}, or a folder of these"])
        return Files(place, fs, path, [path], is_local)
    if kind is None:
        raise MissingError(place, [f"there is no such file or folder as {path}; look at the path"])
    with reading(place) if is_local else reached(place):
        # a glob would read brackets in names
        names = _files_below(path) if is_local else left_behind(lambda: fs.find(path), place=place)
        paths = sorted(name for name in names if name.endswith(endings))
    paths = [name for name in paths if "/." not in name[len(path) :]]  # left by file browsers and notebooks
    if not paths:
        raise DataError(place, [f"holds no file {patterns}"])
    return Files(place, fs, path, paths, is_local)


def by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts digits by their value: every run of them as a number, text between them as text; equal ones, such as 1 and
    01, by the name, since a folder lists its files in another order on another disk."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", name)], name


def _local_kind(place: str, path: str) -> str | None:
    """`file` or `directory`, None if there is neither; refuses other files, such as pipes."""
    with reading(place):
        if os.path.lexists(path) and not os.path.isdir(path):
            check_regular(place, os.stat(path).st_mode)
    if os.path.isdir(path):
        return "directory"
    return "file" if os.path.isfile(path) else None


def _remote_kind(place: str, fs: Any, path: str) -> str | None:
    """`file` or `directory`, None if there is neither; `isfile` and `isdir` of fsspec take any error for that."""

    def kind() -> str | None:
        try:
            return fs.info(path)["type"]
        except FileNotFoundError:
            return None

    with reached(place):
        return left_behind(kind, place=place)


def _files_below(path: str) -> Iterator[str]:
    """Files in a local folder and in those inside, links to folders included, which fsspec would leave out."""
    for folder, inside, names in os.walk(path, followlinks=True, onerror=raise_error):
        real = os.path.realpath(folder)
        if folder != path and os.path.commonpath([real, os.path.realpath(os.path.dirname(folder))]) == real:
            inside.clear()  # a link back to where it came from
        else:
            yield from (os.path.join(folder, name) for name in names)
