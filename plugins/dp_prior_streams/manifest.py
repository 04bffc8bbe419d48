"""The manifest of a streamed data set: sizes and versions of its files at the first opening, and hashes of the bytes
that arrived since. Bytes that arrive later are compared with both, and refused where they differ."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dp_prior.data.errors import ChangedError, DataError
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior_streams.remote_files import FileVersion, Pace, Place, place_at, retried, save

MANIFEST, HASHES = "manifest.json", "hashes.jsonl"

PARALLEL_REQUESTS = 16
"""Requests for versions of files at the same time, of a place that lists no folder."""


class RemoteSet:
    """The files of a data set at one version, which are fetched and compared with the manifest.

    Attributes:
        url: the folder at the version of the manifest.
        files: version of every listed file, by name.
        fetched_bytes: that arrived in this process.
        look: called while a request waits; its error ends the wait.
    """

    def __init__(self, url: str, folder: Path):
        """Open the manifest in a folder of the cache, or begin a manifest.

        Raises:
            DataError: the manifest is damaged, or the place is unknown.
            UnreachableError: the place did not answer; with a manifest the place is asked when bytes are needed.
        """
        self._folder, self._asked_url = folder, url
        self._place: Place | None = None
        self._lock = threading.Lock()
        self._hashes: dict[str, str] = {}
        self._hashes_read = 0
        self._unproven = threading.local()
        self.fetched_bytes = 0
        self.look: Callable[[], object] = lambda: None
        document = self._read()
        if document is None:
            self._place = retried(url, lambda: place_at(url))
            self.url, self.files = self._place.url, retried(url, self._place.listing) or {}
            self._write()
        else:
            self.url = document["url"]
            self.files = {name: FileVersion(**version) for name, version in document["files"].items()}

    @property
    def place(self) -> Place:
        """The place, opened at the version of the manifest when first asked for."""
        with self._lock:
            if self._place is None:
                self._place = retried(self.url, lambda: place_at(self.url), self.look)
            return self._place

    @property
    def is_listed(self) -> bool:
        """Whether the place listed its files, so that others do not exist."""
        return not self.url.startswith(("http://", "https://"))

    def identity(self, names: Iterable[str]) -> str:
        """SHA-256 of names, sizes and versions of files."""
        content = json.dumps({name: asdict(self.files[name]) for name in sorted(names)})
        return hashlib.sha256(content.encode()).hexdigest()

    def note(self, names: Iterable[str]) -> None:
        """Add files to the manifest, of a place that lists none.

        Raises:
            DataError: a file does not exist, one line for each.
        """
        unknown = [name for name in names if name not in self.files]
        if not unknown:
            return
        missing: list[str] = []

        def version(name: str) -> FileVersion | None:
            try:
                return self._version(name)
            except DataError:
                missing.append(name)
                return None

        versions: dict[str, FileVersion] = {}
        if self.is_listed:
            missing = unknown
        else:
            with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="versions") as pool:
                versions = dict(zip(unknown, pool.map(version, unknown), strict=True))
        if missing:
            problems = [f"{name}: no such file, but the list of episodes names it" for name in sorted(missing)]
            raise DataError(self.url, problems, "the copy is incomplete")
        self.files |= versions
        self._write()

    def exists(self, name: str) -> bool:
        """Whether the place has a file; asks a place that lists none, and notes the file."""
        if name in self.files or self.is_listed:
            return name in self.files
        try:
            self.files[name] = self._version(name)
        except DataError:
            return False
        self._write()
        return True

    def where(self, name: str) -> str:
        """Name a file in messages."""
        return f"{self.url}/{name}"

    def fetch(self, name: str, target: Path, begin: int = 0, end: int | None = None, *, is_proven: bool = True) -> None:
        """Write a file, or a range of its bytes, to a path of this machine.

        Args:
            is_proven: note the hash of bytes that arrive for the first time at once; otherwise `confirm` does, after
                they were decoded, since a place may send something else of the same size.

        Raises:
            ChangedError: the bytes differ from the manifest.
            UnreachableError: they do not arrive.
        """
        version, where = self.files[name], self.where(name)
        end = version.size if end is None else end
        key = name if end - begin == version.size else f"{name} {begin}-{end}"

        pace, numbers = Pace(), itertools.count()

        def arrive() -> tuple[str, Path]:
            path = target.with_name(f"{target.name}.{next(numbers)}")  # an abandoned attempt goes on writing its own
            try:
                return save(self.place.pieces(name, begin, end), path, where, end - begin, pace), path
            except BaseException:
                path.unlink(missing_ok=True)
                raise

        for is_last in (False, True):  # a byte may change on the way
            sha256, path = retried(where, arrive, self.look, pace)
            path.replace(target)
            with self._lock:
                self.fetched_bytes += end - begin
            expected = self._expected(key, version)
            if expected in (None, sha256):
                break
            if is_last:
                target.unlink()
                self._refuse(name, f"has the SHA-256 {sha256[:12]}, expected {expected[:12]}")
        if expected is None:
            self._check_version(name)
            if is_proven:
                self._remember(key, sha256)
            else:
                self._unproven.hashes = [*self._hashes_to_prove(), (key, sha256)]

    def forget(self) -> None:
        """Remove the manifest and the hashes, so that the next opening begins both anew."""
        for name in (MANIFEST, HASHES):
            (self._folder / name).unlink(missing_ok=True)

    def _version(self, name: str) -> FileVersion:
        return retried(self.where(name), lambda: self.place.version(name), self.look, Pace())

    def confirm(self) -> None:
        """Note the hashes of the bytes that this thread fetched and decoded."""
        for key, sha256 in self._hashes_to_prove():
            self._remember(key, sha256)
        self._unproven.hashes = []

    def drop(self) -> None:
        """Forget the bytes that this thread fetched and could not decode."""
        self._unproven.hashes = []

    def _hashes_to_prove(self) -> list[tuple[str, str]]:
        return getattr(self._unproven, "hashes", [])

    def _check_version(self, name: str) -> None:
        """Compare size and version of a file whose content was not hashed before.

        Raises:
            ChangedError: they differ from the manifest.
        """
        expected, now = self.files[name], self._version(name)
        if (now.size, now.tag) != (expected.size, expected.tag):
            self._refuse(name, f"is {now.size:,} bytes, version {now.tag}; expected {expected.size:,}, {expected.tag}")

    def _refuse(self, name: str, finding: str) -> None:
        remedy = f"restore it; if the change is meant, delete {self._folder}, and the next start reads the set anew"
        raise ChangedError(f"{self.url} is not what it was when it was first opened", [f"{name} {finding}"], remedy)

    def _expected(self, key: str, version: FileVersion) -> str | None:
        """The hash of bytes that this or another process noted, or that the place says."""
        if " " not in key and version.sha256 is not None:
            return version.sha256
        with self._lock:
            if key not in self._hashes:
                self._read_hashes()
            return self._hashes.get(key)

    def _read_hashes(self) -> None:
        try:
            with (self._folder / HASHES).open("rb") as file:
                file.seek(self._hashes_read)
                lines = file.read()
        except FileNotFoundError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._hashes_read += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # a line that a full disk cut short, and the line behind it
                name, sha256 = json.loads(line)
                self._hashes.setdefault(name, sha256)

    def _remember(self, key: str, sha256: str) -> None:
        line = json.dumps([key, sha256]).encode() + b"\n"
        descriptor = os.open(self._folder / HASHES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)  # one write to the end, so lines of several processes do not mix
        finally:
            os.close(descriptor)
        with self._lock:
            self._hashes.setdefault(key, sha256)

    def _read(self) -> dict[str, Any] | None:
        path = self._folder / MANIFEST
        try:
            return unseal(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            advice = f"delete {self._folder}, and the next start reads the data set anew"
            raise DataError(str(path), [f"is no manifest of a data set: {error}"], advice) from None

    def _write(self) -> None:
        files = {name: asdict(version) for name, version in sorted(self.files.items())}
        replace_file(
            self._folder / MANIFEST, seal({"format": 1, "asked": self._asked_url, "url": self.url, "files": files})
        )


def in_parallel(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call a function with each name, several at a time; raises the first error."""
    with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="files") as pool:
        list(pool.map(work, names))
