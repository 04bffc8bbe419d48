"""Folders behind a URL that fsspec knows, to send to and to read from: s3://, gs://, az://, sftp://, file://, memory://.

Each checkpoint is uploaded to its own folder, `URL/checkpoints/step_00012000`, read back and compared, and only then
does `URL/best.json` or `URL/latest.json` name it. A store that replaces an object as a whole, as all object stores do,
therefore never shows half a checkpoint. Credentials are those of the file system's own configuration.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from dp_prior.checkpoints.format import LARGEST_MANIFEST, MANIFEST, FileEntry
from dp_prior.durable import replace_file, sync_directory
from dp_prior.places.destination import DeliveryError, folders
from dp_prior.places.parcel import Parcel
from dp_prior.places.pointer import LARGEST_POINTER, Pointer, worse_than
from dp_prior.places.source import PIECE, RemoteError, download
from dp_prior.places.upload import UploadConfig
from dp_prior.redact import without_password

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss"}
_REFUSED = ("NoCredentialsError", "DefaultCredentialsError", "ImportError", "ModuleNotFoundError", "NoSuchBucket")


class FsspecSaverConfig(UploadConfig):
    """Sends checkpoints to a folder behind a URL that fsspec knows; the file system's package has to be installed."""

    type: Literal["fsspec"] = "fsspec"

    url: str
    """The folder, for example `s3://bucket/runs/pusht`. `memory://` ends with the process."""

    @field_validator("url")
    @classmethod
    def _has_a_scheme(cls, url: str) -> str:
        if "://" not in url or "@" in url.rpartition("/")[2]:
            raise ValueError(
                f"{url!r} is not the URL of a folder, such as s3://bucket/runs/pusht; for a path use `local`"
            )
        return without_password(url.rstrip("/") if not url.endswith("://") else url)

    @property
    def in_process(self) -> bool:
        """True for memory, which no other process sees."""
        return self.url.startswith("memory://")

    @property
    def place(self) -> str:
        """See `UploadConfig`."""
        return f"fsspec {self.url}"

    def destination(self) -> FolderDestination:
        """See `UploadConfig`."""
        return FolderDestination(self.url)


class FolderDestination:
    """A folder to send to; see `Destination`."""

    def __init__(self, url: str):
        self.url = url
        try:
            self._fs, self._root = _open(url)
        except (ImportError, ValueError) as error:
            raise DeliveryError("refused", f"{url} cannot be written to: {error}") from None

    def check(self) -> str:
        """Whether a file can be created there."""
        with self._translated():
            self._write("write_test.json", b"{}\n")
            self._fs.rm(f"{self._root}/write_test.json")
        return f"{self.url} can be written to"

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> tuple[str, str | None]:
        """Upload the folder, verify it, move the pointer; skips steps that an earlier attempt completed."""
        with self._translated():
            folder = self._folder(parcel)
            spend()
            for name, entry in parcel.files().items():
                self._put(parcel.directory / name, f"{folder}/{name}", entry)
            reason, pointer = None, parcel.pointer(folder)
            if "best" in parcel.kinds:
                reason = worse_than(Pointer.parse(self._read("best.json", LARGEST_POINTER) or b""), pointer)
            moved = [kind for kind in parcel.kinds if kind != "best" or reason is None]
            for kind in moved:
                spend()
                self._write(f"{kind}.json", pointer.encode())
        return f"{folder} is uploaded" + (f" as {' and '.join(moved)}" if moved else ""), reason

    def _folder(self, parcel: Parcel) -> str:
        """The folder for this checkpoint; skips folders that hold another complete checkpoint."""
        for folder in folders(parcel.intent.name):
            manifest = self._read(f"{folder}/{MANIFEST}", LARGEST_MANIFEST)
            if manifest is None or hashlib.sha256(manifest).hexdigest() == parcel.digest:
                return folder
        raise AssertionError("there is always another name")

    def _put(self, source: Path, path: str, entry: FileEntry) -> None:
        if self._hash(path) == (entry.size, entry.sha256):
            return
        target = f"{self._root}/{path}"
        self._make(target.rpartition("/")[0])
        self._fs.put_file(str(source), target)
        if _is_local(self._fs):
            with open(target, "rb") as file:
                os.fsync(file.fileno())
            sync_directory(Path(target).parent)
        if self._hash(path) != (entry.size, entry.sha256):
            raise DeliveryError("unavailable", f"{self.url}/{path} is not what was sent")

    def _read(self, path: str, most: int) -> bytes | None:
        """The first `most` bytes and one more of a file there, None if there is none."""
        try:
            return _read_file(self._fs, f"{self._root}/{path}", most)
        except FileNotFoundError:
            return None

    def _write(self, path: str, data: bytes) -> None:
        """Write a small file atomically: object stores replace it as a whole, a local file is renamed."""
        target = f"{self._root}/{path}"
        self._make(self._root)
        if _is_local(self._fs):
            replace_file(Path(target), data)
        else:
            self._fs.pipe_file(target, data)

    def _make(self, directory: str) -> None:
        """Object stores have no directories, and some would create a bucket for a misspelt name."""
        names = self._fs.protocol
        if not _OBJECT_STORES & {names, *([] if isinstance(names, str) else names)}:
            self._fs.makedirs(directory, exist_ok=True)

    def _hash(self, path: str) -> tuple[int, str] | None:
        """(size, SHA-256) of a file there, None if there is none; cached listings are invalidated first."""
        digest, size = hashlib.sha256(), 0
        self._fs.invalidate_cache()
        try:
            with self._fs.open(f"{self._root}/{path}", "rb") as file:
                while piece := file.read(PIECE):
                    digest.update(piece)
                    size += len(piece)
        except FileNotFoundError:
            return None
        return size, digest.hexdigest()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of a file system as DeliveryError, with their type alone: the text may quote a secret."""
        try:
            yield
        except DeliveryError:
            raise
        except PermissionError:
            raise DeliveryError("refused", f"{self.url} may not be written to; check the credentials") from None
        except FileNotFoundError:
            raise DeliveryError("refused", f"{self.url} cannot be written to: there is no such bucket") from None
        except Exception as error:
            refused = type(error).__name__ in _REFUSED
            kind = "refused" if refused else "unavailable"
            raise DeliveryError(kind, f"{self.url} cannot be written to ({type(error).__name__})") from None


class FolderSource:
    """A folder to read from; see `Source`."""

    def __init__(self, url: str):
        self._url = url
        try:
            self._fs, self._root = _open(url)
        except (ImportError, ValueError) as error:
            raise RemoteError(f"{url} cannot be read: {error}") from None

    def read(self, path: str, most: int) -> bytes:
        """See `Source`."""
        with self._translated(path):
            data = _read_file(self._fs, f"{self._root}/{path}", most)
        if len(data) > most:
            raise RemoteError(f"{self._url}/{path} is larger than {most} bytes")
        return data

    def download(self, path: str, entry: FileEntry, target: Path) -> None:
        """See `Source`."""
        with self._translated(path):
            _refuse_special(self._fs, f"{self._root}/{path}")
            download(lambda start: self._from(path, start), target, entry.size, entry.sha256)

    def _from(self, path: str, start: int) -> Iterator[bytes]:
        with self._fs.open(f"{self._root}/{path}", "rb") as file:
            file.seek(start)
            while piece := file.read(PIECE):
                yield piece

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Raise errors of a file system, each of which has its own types, as RemoteError or FileNotFoundError."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError):
            raise FileNotFoundError(f"there is no {self._url}/{path}") from None
        except RemoteError:
            raise
        except Exception as error:
            raise RemoteError(f"{self._url}/{path} cannot be read: {type(error).__name__}") from None


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.core.url_to_fs(url)


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def _read_file(fs: Any, path: str, most: int) -> bytes:
    """The content of a file, or its first `most` bytes and one more."""
    _refuse_special(fs, path)
    with fs.open(path, "rb") as file:
        return file.read(most + 1)


def _refuse_special(fs: Any, path: str) -> None:
    """Refuse a FIFO or device of this machine: opening it could block for ever."""
    if _is_local(fs) and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise RemoteError(f"{path} is not a regular file")
