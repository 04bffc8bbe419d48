"""Any place that fsspec knows as a place for checkpoints: s3://, gs://, az://, sftp://, hf://, file://, memory://.

Each checkpoint goes to a folder of its own, `URL/checkpoints/step_00012000`, is read back and compared, and only then
does `URL/best.json` or `URL/latest.json` name it. A store that replaces an object as a whole, as all object stores do,
therefore never shows half a checkpoint. Credentials are those of the file system's own configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from dp_prior.places.delivery import DeliveryError, Destination, Parcel, stays
from dp_prior.places.upload import UploadConfig
from dp_prior.redact import without_password

_PIECE = 1 << 20


class FsspecSaverConfig(UploadConfig):
    """Sends checkpoints to a folder behind a URL that fsspec knows; the file system's package has to be installed."""

    type: Literal["fsspec"] = "fsspec"

    url: str
    """The folder, for example `s3://bucket/runs/pusht`. `memory://` lives only as long as the process."""

    @field_validator("url")
    @classmethod
    def _has_a_scheme(cls, url: str) -> str:
        if "://" not in url or "@" in url.rpartition("/")[2]:
            raise ValueError(f"{url!r} is no URL of a folder, such as s3://bucket/runs/pusht; for a path use `local`")
        return without_password(url.rstrip("/") if not url.endswith("://") else url)

    @property
    def in_process(self) -> bool:
        """Nobody else sees the memory of this process."""
        return self.url.startswith("memory://")

    @property
    def place(self) -> str:
        """See `UploadConfig`."""
        return f"fsspec {self.url}"

    def destination(self) -> Destination:
        """See `UploadConfig`."""
        return Folder(self.url)


class Folder:
    """Speaks to a file system."""

    def __init__(self, url: str):
        import fsspec

        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise DeliveryError("refused", f"{url} cannot be written to: {error}") from None

    def check(self) -> str:
        """Whether a file can be made there."""
        with self._told():
            self._write("write_test.json", b"{}\n")
            self._fs.rm(f"{self._root}/write_test.json")
        return f"{self.url} can be written to"

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> tuple[str, str | None]:
        """Folder, comparison, pointer; what an earlier attempt has done is found and not done again."""
        with self._told():
            folder = self._folder(parcel)
            spend()
            for name, (size, sha256) in parcel.files().items():
                path = f"{folder}/{name}"
                if self._hash(path) == (size, sha256):
                    continue
                self._make(f"{self._root}/{folder}")
                self._fs.put_file(str(parcel.directory / name), f"{self._root}/{path}")
                if self._hash(path) != (size, sha256):
                    raise DeliveryError("unavailable", f"{self.url}/{path} is not what was sent")
            reason = stays(self._read("best.json"), parcel) if "best" in parcel.kinds else None
            moved = [kind for kind in parcel.kinds if kind != "best" or reason is None]
            for kind in moved:
                spend()
                self._write(f"{kind}.json", parcel.pointer(folder))
        return f"{folder} is up" + (f" as {' and '.join(moved)}" if moved else ""), reason

    def _folder(self, parcel: Parcel) -> str:
        """Of this checkpoint; a name under which another one is complete is not used."""
        name, number = f"checkpoints/{parcel.intent['name']}", 1
        while True:
            folder = name if number == 1 else f"{name}_{number}"
            manifest = self._read(f"{folder}/manifest.json")
            if manifest is None or hashlib.sha256(manifest).hexdigest() == parcel.digest:
                return folder
            number += 1

    def _read(self, path: str) -> bytes | None:
        try:
            return self._fs.cat_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return None

    def _write(self, path: str, data: bytes) -> None:
        """A small file, whole or not at all where the store does that; a local one by a rename."""
        target = f"{self._root}/{path}"
        self._make(self._root)
        if type(self._fs).__name__ == "LocalFileSystem":
            from dp_prior.durable import replace_file

            replace_file(Path(target), data)
        else:
            self._fs.pipe_file(target, data)

    def _make(self, directory: str) -> None:
        """Object stores have no directories, and some would make a bucket of a misspelt name."""
        names = self._fs.protocol
        if not _OBJECT_STORES & {names, *([] if isinstance(names, str) else names)}:
            self._fs.makedirs(directory, exist_ok=True)

    def _hash(self, path: str) -> tuple[int, str] | None:
        """(size, SHA-256) of a file there, None if there is none; listings that were remembered are forgotten."""
        digest, size = hashlib.sha256(), 0
        self._fs.invalidate_cache()
        try:
            with self._fs.open(f"{self._root}/{path}", "rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
        except FileNotFoundError:
            return None
        return size, digest.hexdigest()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever a file system raises, by its kind: its text may quote what is secret."""
        try:
            yield
        except DeliveryError:
            raise
        except PermissionError:
            raise DeliveryError("refused", f"{self.url} may not be written to; look at the credentials") from None
        except FileNotFoundError:
            raise DeliveryError("refused", f"{self.url} cannot be written to: there is no such bucket") from None
        except Exception as error:
            refused = type(error).__name__ in _REFUSED
            kind = "refused" if refused else "unavailable"
            raise DeliveryError(kind, f"{self.url} cannot be written to ({type(error).__name__})") from None


_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss"}
_REFUSED = ("NoCredentialsError", "DefaultCredentialsError", "ImportError", "ModuleNotFoundError", "NoSuchBucket")
