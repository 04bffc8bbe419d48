"""`Source`, a remote folder of checkpoints, the verified download of its files, and the error of every remote place."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from dp_prior.checkpoints.format import CheckpointError, FileEntry

PIECE = 1 << 20  # bytes read at once
_ATTEMPTS = 5

Trouble = Literal["refused", "unavailable", "damaged", "offline"]
"""Refused: needs a change by the user. Unavailable: retry later. Damaged: the files differ from their
manifest; never retry. Offline: the client is in offline mode."""


class RemoteError(CheckpointError):
    """A remote place cannot be reached, refuses access, or has unexpected content.

    Attributes:
        trouble: class of the error, which decides about a retry; see `Trouble`.
        retry_after: seconds that the place asks to wait before the next attempt.
    """

    def __init__(self, message: str, trouble: Trouble = "unavailable", retry_after: float | None = None):
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.retry_after = retry_after


class NoPlaceError(FileNotFoundError):
    """The whole remote place does not exist, rather than one file in it.

    Attributes:
        may_be_hidden: the request had no token; a private place may exist, since the Hub hides it.
    """

    def __init__(self, message: str, *, may_be_hidden: bool = False):
        super().__init__(message)
        self.may_be_hidden = may_be_hidden


def kind_of(error: Exception) -> str:
    """The type of an error and the operating system's reason, without the error's text, which may quote a secret."""
    code = error.errno if isinstance(error, OSError) else None
    return type(error).__name__ + (f": {os.strerror(code)}" if isinstance(code, int) else "")


class Source(Protocol):
    """One remote folder. Raises FileNotFoundError for a missing file and RemoteError for every other failure."""

    def read(self, path: str, most: int) -> bytes:
        """The content of a small file; RemoteError if it has more than `most` bytes."""

    def download(self, path: str, size: int, target: Path, *, anew: bool) -> None:
        """Write a file of `size` bytes to `target`; resumes if `target` holds the beginning.

        Args:
            anew: the last download was damaged, so do not use a cache.
        """


class StreamedSource:
    """A source whose files are read from any offset, so that an interrupted download resumes."""

    def __init__(self, url: str):
        self.url = url

    def stream(self, path: str, start: int) -> Iterator[bytes]:
        """The content of a file from an offset on.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: the connection broke. The text is shown to the user, so it must not quote a secret.
        """
        raise NotImplementedError

    def read(self, path: str, most: int) -> bytes:
        """See `Source`."""
        data = b""
        try:
            for piece in self.stream(path, 0):
                data += piece
                if len(data) > most:
                    raise RemoteError(f"{self.url}/{path} is larger than {most} bytes")
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {self.url}/{path}") from None
        except OSError as error:
            raise RemoteError(f"{self.url}/{path} cannot be read: {error}") from None
        return data

    def download(self, path: str, size: int, target: Path, *, anew: bool) -> None:
        """See `Source`."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._append(path, target, size)
                return
            except OSError as error:
                if attempt == _ATTEMPTS:
                    problem = f"{type(error).__name__}: {error}; the next attempt resumes"
                    raise RemoteError(f"{path} could not be downloaded: {problem}") from None

    def _append(self, path: str, target: Path, size: int) -> None:
        with open(target, "ab") as file:
            start = file.tell()
            if start > size:
                start = file.truncate(0)
            if start == size:
                return
            for piece in self.stream(path, start):
                file.write(piece[: size - start])
                start += len(piece)
                if start >= size:
                    return
        raise OSError(f"it ends after {start} of {size} bytes")


def is_intact(path: Path, entry: FileEntry) -> bool:
    """Whether a file has the hash in the manifest. Syncs the file first."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
