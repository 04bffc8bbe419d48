"""Tables in the Lance format, in a folder of this machine or behind a URL: rows, and large values piece by piece."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.data.errors import DataError, MissingError, UnreachableError, nearest_name
from dp_prior.data.files import decoding
from dp_prior.files.client_errors import kind_of, remedy
from dp_prior.files.entry_points import needing

if TYPE_CHECKING:
    import pyarrow

PIECE = 8 << 20
"""Bytes of a large value that are in memory at a time."""


def import_lance() -> Any:
    """Import the package that reads Lance tables.

    Raises:
        ImportError: it is not installed.
    """
    with needing("lance", "reading Lance tables needs pylance"):
        import lance
    return lance


def column_of(key: str) -> str:
    """The column of a feature: the converter writes `_` for the dots of a name."""
    return key.replace(".", "_")


class LanceTables:
    """The tables of a data set, each at one version.

    Attributes:
        place: the folder or the URL that holds the tables.
    """

    def __init__(self, place: str, versions: Mapping[str, int] | None = None):
        """Args: versions: version of each table, by name; None for the newest."""
        self.place = place
        self._lance, self._versions = import_lance(), versions or {}
        self._opened = lru_cache(maxsize=None)(self._open)

    @property
    def is_remote(self) -> bool:
        """Whether the tables are behind a URL."""
        return "://" in self.place

    def where(self, name: str) -> str:
        """Name a table in messages."""
        return f"{self.place.rstrip('/')}/{name}.lance"

    def version(self, name: str) -> int:
        """The version of a table that is read."""
        return int(self._opened(name).version)

    def columns(self, name: str) -> list[str]:
        """The columns of a table."""
        return self._opened(name).schema.names

    def count(self, name: str) -> int:
        """The rows of a table."""
        with self._errors_named(name):
            return self._opened(name).count_rows()

    def read(
        self, name: str, columns: Sequence[str], begin: int = 0, count: int | None = None, why: str = ""
    ) -> pyarrow.Table:
        """Read some columns of the rows from `begin` on.

        Args:
            why: what says that the columns exist, for messages.

        Raises:
            DataError: a column is missing, or the table is damaged.
            UnreachableError: the place did not answer.
        """
        self._check_columns(name, columns, why)
        with self._errors_named(name):
            return self._opened(name).to_table(columns=list(columns), offset=begin, limit=count)

    def batches(self, name: str, column: str, begin: int, count: int, rows: int) -> Iterator[pyarrow.Array]:
        """Read a column of the rows from `begin` on, some rows at a time."""
        self._check_columns(name, [column], "")
        for first in range(begin, begin + count, rows):
            with self._errors_named(name):
                limit = min(rows, begin + count - first)
                table = self._opened(name).to_table(columns=[column], offset=first, limit=limit)
            yield from table.column(0).chunks

    def save(self, name: str, column: str, row: int, path: Path) -> None:
        """Write a large value of a row into a file.

        Raises:
            OSError: the file cannot be written.
        """
        with self._errors_named(name):
            (blob,) = self._opened(name).take_blobs(column, indices=[row])
        with blob, path.open("wb") as file:
            while True:
                with self._errors_named(name):
                    piece = blob.read(PIECE)
                if not piece:
                    break
                file.write(piece)

    def files(self, name: str) -> list[Path]:
        """The files of a table; empty behind a URL."""
        return [] if self.is_remote else sorted(filter(Path.is_file, Path(self.where(name)).rglob("*")))

    def _open(self, name: str) -> Any:
        where = self.where(name)
        if not self.is_remote and not Path(where).is_dir():
            advice = "convert the data set again by lerobot-lance-convert of lerobot-lancedb 0.3 or later"
            raise MissingError(where, [f"no such table; {advice}, or check data.episodes"])
        with self._errors_named(name):
            return self._lance.dataset(where, version=self._versions.get(name))

    def _check_columns(self, name: str, columns: Sequence[str], why: str) -> None:
        stored = self.columns(name)
        missing = [column for column in columns if column not in stored]
        if missing:
            finding = f"has no column {', '.join(map(repr, missing))}{why}"
            raise DataError(self.where(name), [f"{finding}. {nearest_name(missing[0], stored)}"])

    @contextlib.contextmanager
    def _errors_named(self, name: str) -> Iterator[None]:
        """Report errors of reading a table; the text of those behind a URL, which may quote a secret, is left out."""
        where = self.where(name)
        if not self.is_remote:
            with decoding(where, "is no readable Lance table"):
                yield
            return
        try:
            yield
        except (DataError, ImportError):
            raise
        except Exception as error:
            if isinstance(error, ValueError) and "not found" in str(error).lower():
                version = self._versions.get(name)
                finding = "there is no such table" if version is None else f"version {version} is no longer there"
                raise MissingError(where, [f"{finding}; check data.episodes.url"]) from None
            raise UnreachableError(f"{where} cannot be read now ({kind_of(error)}){remedy(error)}") from None
