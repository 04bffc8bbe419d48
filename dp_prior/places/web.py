"""A checkpoint directory behind a web server. The reference pins the hash of its manifest, which pins all files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dp_prior.checkpoints.format import MANIFEST, FileEntry
from dp_prior.places.source import PIECE, RemoteError, download

_TIMEOUT_S = 30.0


class WebSource:
    """One checkpoint to read; see `Source`."""

    def __init__(self, reference: str):
        """
        Args:
            reference: `https://host/folder#sha256=...`.

        Raises:
            FileNotFoundError: the hash is missing.
        """
        url, _, fragment = reference.partition("#")
        name, _, digest = fragment.partition("=")
        if name != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise FileNotFoundError(
                f"{reference!r} needs the hash of its manifest: {url}#sha256=...; `dp-prior export` prints it, and "
                f"`sha256sum {MANIFEST}` does"
            )
        self._url = url.rstrip("/")
        self.digest = digest

    def read(self, path: str, most: int) -> bytes:
        """See `Source`; only the manifest."""
        if path != MANIFEST:
            raise FileNotFoundError(f"{self._url} is one checkpoint")
        data = b""
        try:
            for piece in self._from(path, 0):
                data += piece
                if len(data) > most:
                    raise RemoteError(f"{self._url}/{path} is larger than {most} bytes")
        except HTTPError as error:
            if error.code in (404, 410):
                raise FileNotFoundError(f"there is no {self._url}/{path}") from None
            raise RemoteError(f"{self._url}/{path} cannot be read: {error}") from None
        except OSError as error:
            raise RemoteError(f"{self._url}/{path} cannot be read: {error}") from None
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise RemoteError(f"{self._url}/{path} does not have the SHA-256 of the reference")
        return data

    def download(self, path: str, entry: FileEntry, target: Path) -> None:
        """See `Source`."""
        download(lambda start: self._from(path, start), target, entry.size, entry.sha256)

    def _from(self, path: str, start: int) -> Iterator[bytes]:
        request = Request(f"{self._url}/{path}", headers={"Range": f"bytes={start}-"} if start else {})
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                skipped = start if start and answer.status != 206 else 0  # the server does not support ranges
                while skipped:
                    skipped -= len(answer.read(min(PIECE, skipped))) or skipped
                while piece := answer.read1(PIECE):  # what has arrived, so that a broken connection loses little
                    yield piece
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}") from None
