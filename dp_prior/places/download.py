"""A remote file -> a verified local file that appears whole or not at all; what was cut off goes on from there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dp_prior.checkpoints.format import CheckpointError

LARGEST_SMALL = 16 << 20  # bytes of a manifest or pointer
_ATTEMPTS = 5


class RemoteError(CheckpointError):
    """A remote place cannot be reached, refuses, or holds something else than it should."""


class NoPlaceError(FileNotFoundError):
    """Not only a file but the whole remote place does not exist, or is hidden.

    Attributes:
        may_be_hidden: nobody said who asks, and to strangers a private place looks as if it were not there.
    """

    may_be_hidden = False


def download(read_from: Callable[[int], Iterator[bytes]], target: Path, size: int, sha256: str) -> None:
    """Fetch a file of known size and hash.

    Args:
        read_from: start in bytes -> the content from there on; raises OSError when the connection breaks.
        target: its final name; meanwhile `NAME.part` beside it.

    Raises:
        RemoteError: it could not be had, or is another file. What is wrong is not kept.
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
        raise RemoteError(f"{target.name} could not be downloaded: {problem}; the next attempt goes on from there")
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    if found != sha256:
        part.unlink()
        raise RemoteError(f"{target.name} does not have the SHA-256 of its manifest; it was not kept")
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
