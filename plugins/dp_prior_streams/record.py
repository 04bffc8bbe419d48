"""The record of a LeRobot data set that is streamed, and its store: tables arrive when they are read."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from dp_prior.config import Outside
from dp_prior.data.errors import DataError, MissingError, first_few
from dp_prior.data.files import load_npz
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig
from dp_prior.data.formats.episode_store import spans
from dp_prior.data.formats.lerobot.dataset import LeRobotStore
from dp_prior.data.formats.lerobot.meta import LeRobotMeta, TableFile
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.files.entry_points import needing
from dp_prior.files.printable import without_password
from dp_prior.files.regular_files import expanded, open_regular
from dp_prior.job.stop import StoppedEarly
from dp_prior_streams.manifest import RemoteSet, StoppedWaiting, in_parallel
from dp_prior_streams.part_cache import PartCache, budget_bytes, cache_lock, prepare_folder, too_small
from dp_prior_streams.remote_files import CutShortError, Pace, retried

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

MOST_METADATA = 64 << 20
"""Bytes of metadata that are fetched for the size of the least budget, though the budget has no room for them."""

CACHE = Path("~/.cache/dp_prior/streams")
"""Where streamed data sets are cached by default."""


class StreamedLeRobotConfig(EpisodeStoreRecord):
    """A LeRobot data set, format v2.0, v2.1 or v3.0, that does not fit the disk or the memory of this machine: its
    files arrive in the order of training, from any place that fsspec knows."""

    data_set: ClassVar[str] = "dp_prior_streams.trajectories:StreamedTrajectories"
    in_parts: ClassVar[bool] = True

    type: Literal["lerobot_stream"] = "lerobot_stream"

    url: Annotated[str, Outside()]
    """The folder that holds meta/ and data/: `hf://datasets/user/name`, `s3://bucket/folder`, `gs://`, `https://`, or
    a path such as that of a slow disk. The Hub's newest commit at the first opening stays; `@commit` behind the name
    asks for another one. Credentials come from the client of the place."""

    disk_gb: float = Field(gt=0)
    """Most GB of 10^9 bytes that the cached part of the data set takes on the disk of this machine; training has the
    same samples in the same order with any number."""

    cache: Path | None = None
    """The folder of all streamed data sets, which processes of this machine share; null: ~/.cache/dp_prior/streams."""

    @field_validator("url")
    @classmethod
    def _has_no_end(cls, url: str) -> str:
        _check_url(without_password(url))
        return url.rstrip("/") or "/"

    @property
    def folder(self) -> Path:
        """The cache of this data set."""
        return expanded(self.cache or CACHE) / hashlib.sha256(self.place.encode()).hexdigest()[:24]

    @property
    def place(self) -> str:
        """The URL; of a folder of this machine its absolute path."""
        return self.url if "://" in self.url else str(expanded(Path(self.url)).absolute())

    @property
    def path(self) -> Path:
        """The copy of the metadata on this machine."""
        return self.folder / "set"

    @property
    def is_remote(self) -> bool:
        return True

    def local(self, pinned: Mapping[str, str], cameras: Collection[str], choice: ChoiceConfig = ALL_EPISODES) -> Self:
        """Fetch the metadata into the cache; see `EpisodeStoreRecord`."""
        if not self.path.exists():
            self.create()
        else:
            with self._metadata_lock():
                self._fetch_metadata(RemoteSet(self.place, self.folder))
        return self

    def create(self) -> StreamedStore:
        """Fetch the metadata, unless they are in the cache, and read them; tables arrive when asked for.

        Raises:
            ImportError: pyarrow, or the package that reads the place, is not installed.
            DataError: the data set is damaged, or has changed since its first opening.
            UnreachableError: the place did not answer.
            UnwritableError: the cache cannot be written.
        """
        with needing("lerobot", "reading LeRobot data needs pyarrow"):
            import pyarrow.parquet  # noqa: F401
        cache = PartCache(self.folder, budget_bytes(self.disk_gb))
        with self._metadata_lock():
            is_first = not self.path.exists()
            remote, meta = self._opened() or self._opened(is_last=True)
            if is_first and metadata_bytes(remote) > budget_bytes(self.disk_gb):
                shutil.rmtree(self.path)  # what was read of them tells the budget that would do
            remote.note(_name(meta, table) for table in meta.tables)
        return StreamedStore(meta, remote, cache, self.disk_gb)

    def _opened(self, *, is_last: bool = False) -> tuple[RemoteSet, LeRobotMeta] | None:
        """Fetch and read the metadata; None after metadata that arrived now and cannot be read, such as a page that
        asks for a password. Args: is_last: raises the error instead."""
        is_first, remote = not self.path.exists(), RemoteSet(self.place, self.folder)
        self._fetch_metadata(remote)
        try:
            return remote, LeRobotMeta(self.path)
        except DataError as error:
            if not is_first:
                raise
            remote.forget()  # the next attempt, or start, fetches all anew
            shutil.rmtree(self.path)
            if not is_last:
                return None
            source = error.source.replace(str(self.path), remote.url)
            raise type(error)(source, error.problems, error.advice) from None

    def _metadata_lock(self) -> AbstractContextManager[None]:
        path = self.folder / "locks" / "metadata.lock"
        prepare_folder(path.parent)
        return cache_lock(path, lambda: None)

    def _fetch_metadata(self, remote: RemoteSet) -> None:
        """Fetch meta/ whole, into a folder that appears when complete; of such a folder what is missing or damaged.

        Raises:
            ConfigError: the metadata alone take more than the budget.
            MissingError: there is no data set at the URL.
            DataError: a name leads out of the data set.
        """
        folder = self.path
        is_whole = folder.exists() and "meta/info.json" in remote.files
        names = [name for name in remote.files if name.startswith("meta/")] if remote.is_listed or is_whole else []
        if not is_whole:
            if "meta/info.json" not in names and not remote.exists("meta/info.json"):
                finding = "has no meta/info.json; is this a LeRobot data set? check data.episodes.url"
                raise MissingError(remote.url, [finding])
            if not remote.is_listed:
                names = _usual_metadata(remote)
        _check_names(remote.url, names)
        if (size := metadata_bytes(remote)) > max(budget_bytes(self.disk_gb), MOST_METADATA):
            raise too_small(self.disk_gb, f"the metadata alone take {size:,} bytes")
        target = folder if is_whole else folder.with_name("set.incomplete")
        if not is_whole:
            shutil.rmtree(target, ignore_errors=True)

        def fetch(name: str) -> None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            arriving = target / f"{name}.arriving"
            remote.fetch(name, arriving)
            arriving.replace(target / name)

        damaged = [name for name in names if not _is_whole(target / name, remote, name)]
        if is_whole and damaged:
            log.warning("%s of %s are fetched again: missing or damaged", first_few(damaged), folder)
        in_parallel(fetch, damaged)
        if not is_whole:
            shutil.rmtree(folder, ignore_errors=True)  # whose manifest was lost
            target.rename(folder)


class StreamedStore(LeRobotStore):
    """See `LeRobotStore`; a table is fetched into the cache when it is read.

    Attributes:
        remote: the files where the data set lies.
        cache: the parts of the data set on this machine.
        needed: names in the cache that stay there while a table is fetched.
        arriving: the `Parts` that training reads; None before it opened them.
    """

    def __init__(self, meta: LeRobotMeta, remote: RemoteSet, cache: PartCache, disk_gb: float):
        super().__init__(meta)
        self.remote, self.cache, self.disk_gb = remote, cache, disk_gb
        self.needed: frozenset[str] = frozenset()
        self.arriving: Any = None
        self._folder: Path | None = None

    def part(self, tables: list[TableFile], needed: Collection[str], folder: Path) -> StreamedStore:
        """The store of the episodes in these tables alone.

        Args:
            needed: see `PartCache.make`.
            folder: receives the tables.
        """
        store = StreamedStore(self.meta.part(tables), self.remote, self.cache, self.disk_gb)
        store.needed, store._folder = frozenset(needed), folder
        return store

    def fetch(self) -> None:
        """Fetch the tables of a part into its folder.

        Raises:
            ChangedError: a table differs from the manifest.
            UnreachableError: a table does not arrive.
        """
        for table in self.meta.tables:
            self._arrived(table, self._folder)

    def with_places(self, error: DataError) -> DataError:
        """The error of a part that was fetched, with the names that its tables have where the data set lies."""
        names = {str(self._folder / name.replace("/", "_")): name for name in self.names_of(self.meta.tables)}
        problems = []
        for problem in error.problems:
            problem = problem.replace(f"{self.path}: ", "")
            for path, name in names.items():
                problem = problem.replace(path, self.remote.where(name))
            problems.append(problem)
        return type(error)(error.source, problems, error.advice)

    def bytes_of(self, tables: Iterable[TableFile]) -> int:
        """Bytes of tables where the data set lies."""
        return sum(self.remote.files[name].size for name in self.names_of(tables))

    def local(self, table: TableFile) -> TableFile:
        """A table of a part that was fetched."""
        return self._arrived(table, self._folder)

    def names_of(self, tables: Iterable[TableFile]) -> list[str]:
        """The names of tables below the data set."""
        return [_name(self.meta, table) for table in tables]

    def read(self, key: str) -> np.ndarray:
        """See `EpisodeStore`; a key of one number for each step is read once and kept in the cache."""
        if self.meta.is_part or not self.is_number(key) or self.keys()[key] not in ((), (1,)):
            return super().read(key)
        values = self._cached_column(_column_file(key))
        if values is None:
            values = super().read(key)
            self.keep(key, values)
        return values

    def keep(self, key: str, values: np.ndarray, numbers: np.ndarray | None = None) -> None:
        """Keep the values of a key of one number for each step in the cache. Args: numbers: (k,) of the episodes that
        have these values; None for all."""
        content, name = io.BytesIO(), _column_file(key, numbers)
        np.savez_compressed(content, values=values, sha256=_digest(name, values))
        self.cache.keep(name, content.getvalue())

    def _cached_column(self, name: str) -> np.ndarray | None:
        """The values in a file of the cache; None if the file is absent or damaged."""
        path = self.cache.folder / name
        if not path.exists():
            return None
        reason = "it is not what was written"
        try:
            arrays = load_npz(path)
            is_of_older_version = "sha256" not in arrays
            if is_of_older_version or np.array_equal(arrays["sha256"], _digest(name, arrays["values"])):
                return arrays["values"]
        except Exception as error:  # of a dozen types, the system's among them
            reason = f"it cannot be read ({error})"
        log.warning("the column in %s is read again from its data set: %s", path, reason)
        return None

    def episodes(self, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """See `EpisodeStore`; a key of one number for each step is read once for these episodes, and kept."""
        if self.meta.is_part or not self.is_number(key) or self.keys()[key] not in ((), (1,)):
            return super().episodes(key, ends, numbers)
        if (values := self._cached_column(_column_file(key))) is not None:
            return np.concatenate([values[begin:end] for begin, end in spans(ends, numbers)])
        if (values := self._cached_column(_column_file(key, numbers))) is None:
            values = super().episodes(key, ends, numbers)
            self.keep(key, values, numbers)
        return values

    def watch(self, look: Callable[[], object]) -> None:
        """Call a function while the place, or another process, is waited for; its error ends the wait.

        Raises:
            StoppedWaiting: from the wait, where the function raises StoppedEarly.
        """

        def look_with_file() -> None:
            try:
                look()
            except StoppedEarly as early:
                raise StoppedWaiting(early, self.remote.awaited()) from None

        self.remote.look = self.cache.look = look_with_file

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The metadata, which stay on this machine."""
        return sorted({*self.meta.listings, self.meta.info_file})

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "path": self.remote.url}

    def _read_table(self, file: TableFile, key: str, keys_ahead: Iterable[str]) -> pyarrow.Table:
        if self._folder is not None:
            return super()._read_table(self._arrived(file, self._folder), key, keys_ahead)
        size = self.remote.files[_name(self.meta, file)].size
        with self.cache.borrowed("table", size, self.needed, called=_name(self.meta, file)) as folder:
            return super()._read_table(self._arrived(file, folder), key, keys_ahead)

    def _arrived(self, file: TableFile, folder: Path) -> TableFile:
        """A table in a folder of this machine, which is fetched if it is not there."""
        name = _name(self.meta, file)
        path = folder / name.replace("/", "_")
        if not path.exists():
            self.remote.fetch(name, path, is_proven=self._folder is None)
        return file._replace(path=path)


def _name(meta: LeRobotMeta, file: TableFile) -> str:
    """The name of a table below the data set."""
    return file.path.relative_to(meta.path).as_posix()


def _column_file(key: str, numbers: np.ndarray | None = None) -> str:
    """The file of the cache that holds a key of the episodes of these numbers."""
    identity = key.encode() if numbers is None else key.encode() + b"\0" + numbers.astype("<i8").tobytes()
    return f"columns/{hashlib.sha256(identity).hexdigest()[:24]}.npz"


def _digest(name: str, values: np.ndarray) -> np.ndarray:
    """SHA-256 of the values in a file of this name, as bytes."""
    digest = hashlib.sha256(f"{name}{values.dtype.str}{values.shape}".encode())
    digest.update(np.ascontiguousarray(values).data)
    return np.frombuffer(digest.digest(), np.uint8)


def metadata_bytes(remote: RemoteSet) -> int:
    """Bytes of all metadata in the manifest."""
    return sum(version.size for name, version in remote.files.items() if name.startswith("meta/"))


def _check_url(url: str) -> None:
    """Refuse a URL below which no file can be asked for.

    Raises:
        ValueError: it is empty, names no host or bucket, or has a query.
    """
    example = "such as hf://datasets/user/name, s3://bucket/folder, https://host/folder or a path"
    if not url.strip():
        raise ValueError(f"it is empty; expected the folder that holds meta/ and data/, {example}")
    scheme, separator, rest = url.partition("://")
    if separator and not rest.strip("/") and scheme not in ("file", "local"):
        raise ValueError(f"{url} names no host, bucket or folder; expected one, {example}")
    if scheme not in ("http", "https"):
        return
    address = urlsplit(url)
    if "?" in url or "#" in url:
        folder = re.split("[?#]", url)[0]
        finding = "has a query or a fragment behind it, but files are asked for by their names below a folder"
        raise ValueError(f"{folder} {finding}; write {folder} alone, and behind a login use a store with credentials")
    try:
        has_port = address.port is None or address.port > 0
    except ValueError:
        has_port = False
    if not has_port:
        raise ValueError(f"{url} has a port that is no number from 1 to 65535; correct it")


def _check_names(url: str, names: Iterable[str]) -> None:
    """Refuse names that would be written outside the cache.

    Raises:
        DataError: a name leads out of the data set; one line for each.
    """
    problems = [
        f"{name!r} is no path within the data set; remove it there, or copy the data set without it"
        for name in names
        if ".." in Path(name).parts or name.startswith("/") or "\0" in name
    ]
    if problems:
        raise DataError(url, problems)


def _is_whole(path: Path, remote: RemoteSet, name: str) -> bool:
    """Whether a file holds the bytes that arrived when the file was fetched."""
    if not path.is_file() or path.stat().st_size != remote.files[name].size:
        return False
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == remote.hash_of(name)


def _is_table(remote: RemoteSet, name: str) -> bool:
    """Whether a file begins as Parquet does: some servers answer every name, with a page."""
    size, place = min(4, remote.files[name].size), remote.place

    def beginning() -> bytes:
        content = b"".join(place.pieces(name, 0, size))
        if len(content) < size:
            raise CutShortError(f"{len(content):,} of {size:,} bytes came")
        return content

    return retried(remote.where(name), beginning, remote.look, Pace()) == b"PAR1"


def _usual_metadata(remote: RemoteSet) -> list[str]:
    """The metadata at a place that lists no folder: files by their usual names, as far as these go."""
    names = ["meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/tasks.parquet"]
    names = [name for name in names if remote.exists(name)]
    names = [name for name in names if name.endswith((".json", ".jsonl")) or _is_table(remote, name)]
    for chunk in range(1000):
        before = len(names)
        for file in range(1000):
            name = f"meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
            if not remote.exists(name) or not _is_table(remote, name):
                break
            names.append(name)
        if len(names) == before:
            break
    return names
