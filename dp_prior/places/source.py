"""`Source`, the protocol of a remote folder of checkpoints, and the verified download of one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from dp_prior.checkpoints.format import CheckpointError, FileEntry

PIECE = 1 << 20  # bytes read at once
_ATTEMPTS = 5


class RemoteError(CheckpointError):
    """A remote place cannot be reached, refuses access, or has unexpected content."""


class NoPlaceError(FileNotFoundError):
    """The whole remote place does not exist, rather than one file in it.

    Attributes:
        may_be_hidden: the request had no token, and without one a private place looks as if it did not exist.
    """

    def __init__(self, message: str, *, may_be_hidden: bool = False):
        super().__init__(message)
        self.may_be_hidden = may_be_hidden


class Source(Protocol):
    """One remote folder. Raises FileNotFoundError for a missing file and RemoteError for every other failure."""

    def read(self, path: str, most: int) -> bytes:
        """The content of a small file; RemoteError if it has more than `most` bytes."""

    def download(self, path: str, entry: FileEntry, target: Path) -> None:
        """Write a file to `target` after comparing its size and hash with `entry`."""


def download(read_from: Callable[[int], Iterator[bytes]], target: Path, size: int, sha256: str) -> None:
    """Download a file of known size and hash; an interrupted download resumes.

    Args:
        read_from: offset in bytes -> the content from there on; raises OSError when the connection breaks.
        target: final name; `NAME.part` beside it until the hash has been compared.

    Raises:
        RemoteError: it cannot be downloaded, or its hash differs; then it is deleted.
    """
    part = target.with_name(f"{target.name}.part")
    problem = "it is shorter than its manifest says"
    for _ in range(_ATTEMPTS):
        try:
            _append(read_from, part, size)
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if part.stat().st_size >= size:
            break
    else:
        raise RemoteError(f"{target.name} could not be downloaded: {problem}; the next attempt resumes")
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if found != sha256:
        part.unlink()
        raise RemoteError(f"{target.name} does not have the SHA-256 of its manifest; it was deleted")
    os.rename(part, target)


def _append(read_from: Callable[[int], Iterator[bytes]], part: Path, size: int) -> None:
    start = part.stat().st_size if part.exists() else 0
    if start > size:
        part.unlink()
        start = 0
    if start == size and part.exists():
        return
    with open(part, "ab") as file:
        for piece in read_from(start):
            file.write(piece[: size - start])
            start += len(piece)
            if start >= size:
                return
