"""The manifest of a streamed data set: sizes and versions of its files at the first opening, and hashes of the bytes
that arrived since. Bytes that arrive later are compared with both, and refused where they differ."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from dp_prior.data.errors import ChangedError, DataError
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior.job.stop import StoppedEarly
from dp_prior_streams.remote_files import (
    FileVersion,
    IncompleteError,
    ListingLimit,
    Pace,
    Place,
    place_at,
    retried,
    save,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

MANIFEST, HASHES = "manifest.json", "hashes.jsonl"

PARALLEL_REQUESTS = 16
"""Requests for versions of files at the same time, of a place that lists no folder."""


class StoppedWaiting(StoppedEarly):
    """The run was asked to stop while a file was on its way."""

    def __init__(self, early: StoppedEarly, file: str):
        super().__init__(early.reason, early.rank)
        lost = "ranks that wait for a file cannot save together, so steps since the last save will be repeated"
        resumption = "the same command begins training, or resumes it at the last checkpoint"
        self.args = (f"stopped on {early.reason} while {file} was on its way; {lost}; {resumption}",)


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
        self._awaited: list[str] = []
        self.fetched_bytes = 0
        self.look: Callable[[], object] = lambda: None
        document = self._read()
        if document is None:
            self._place = retried(url, lambda: place_at(url), pace=ListingLimit(url))
            self.url, self.files = self._place.url, retried(url, self._place.listing, pace=ListingLimit(url)) or {}
            self._write()
        else:
            self.url = document["url"]
            times = document.get("modified", {})
            self.files = {
                name: FileVersion(**version, modified=times.get(name)) for name, version in document["files"].items()
            }

    @property
    def place(self) -> Place:
        """The place, opened at the version of the manifest when first asked for."""
        with self._lock:
            if self._place is None:
                self._place = retried(self.url, lambda: place_at(self.url), self.look, ListingLimit(self.url))
            return self._place

    @property
    def is_listed(self) -> bool:
        """Whether the place listed its files, so that others do not exist."""
        return not self.url.startswith(("http://", "https://"))

    def identity(self, names: Iterable[str]) -> str:
        """SHA-256 of names, sizes and versions of files."""
        content = json.dumps({name: _lasting(self.files[name]) for name in sorted(names)})
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

    def awaited(self) -> str:
        """Name the file for which this process has waited longest; a file of the place if another process fetches."""
        return next(iter(self._awaited), f"a file of {self.url}")

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

        def arrive(place: Place) -> tuple[str, Path]:
            path = target.with_name(f"{target.name}.{next(numbers)}")  # an abandoned attempt goes on writing its own
            try:
                return save(place.pieces(name, begin, end), path, end - begin, pace), path
            except BaseException:
                path.unlink(missing_ok=True)
                raise

        for is_last in (False, True):  # a byte may change on the way
            try:
                sha256, path = self._asked(where, arrive, pace)
            except IncompleteError:  # perhaps of a file that is shorter now
                self._check_version(name, is_range=key != name)
                raise
            path.replace(target)
            with self._lock:
                self.fetched_bytes += end - begin
            expected = self._expected(key, version)
            if expected in (None, sha256):
                break
            if is_last:
                target.unlink()
                self.refuse(name, f"has the SHA-256 {sha256[:12]}, expected {expected[:12]}")
        if expected is None:
            self._check_version(name, is_range=key != name)
            if is_proven:
                self._remember(key, sha256)
            else:
                self._unproven.hashes = [*self._hashes_to_prove(), (key, sha256)]

    def forget(self) -> None:
        """Remove the manifest and the hashes, so that the next opening begins both anew."""
        for name in (MANIFEST, HASHES):
            (self._folder / name).unlink(missing_ok=True)

    def _asked(self, where: str, attempt: Callable[[Place], T], pace: Pace) -> T:
        """See `retried`; meanwhile the file is awaited. Args: attempt: gets the place, which is opened before."""
        self._awaited.append(where)
        try:
            place = self.place
            return retried(where, lambda: attempt(place), self.look, pace)
        finally:
            self._awaited.remove(where)

    def _version(self, name: str) -> FileVersion:
        return self._asked(self.where(name), lambda place: place.version(name), Pace())

    def confirm(self) -> None:
        """Note the hashes of the bytes that this thread fetched and decoded."""
        for key, sha256 in self._hashes_to_prove():
            self._remember(key, sha256)
        self._unproven.hashes = []

    def drop(self) -> bool:
        """Forget the bytes that this thread fetched and could not decode; returns whether there were any."""
        hashes, self._unproven.hashes = self._hashes_to_prove(), []
        return bool(hashes)

    def _hashes_to_prove(self) -> list[tuple[str, str]]:
        return getattr(self._unproven, "hashes", [])

    def _check_version(self, name: str, *, is_range: bool) -> None:
        """Compare size and version of a file whose content was not hashed before.

        A file that was restored has another time. So times of a folder, which its user restores, count for ranges
        alone, since the ranges of a file belong together.

        Raises:
            ChangedError: they differ from the manifest.
        """
        expected = self.files[name]
        for _ in range(2):  # a server may answer wrongly once
            now = self._version(name)
            if not expected.differs(now if is_range or not self.is_listed else replace(now, modified=None)):
                return
        self.refuse(name, f"is {now}; expected {expected}")

    def refuse(self, name: str, finding: str) -> None:
        """Raises ChangedError for a file that differs from the manifest."""
        remedy = f"restore it; if the change is meant, delete {self._folder}, and the next start reads the set anew"
        raise ChangedError(f"{self.url} is not what it was when it was first opened", [f"{name} {finding}"], remedy)

    def hash_of(self, name: str) -> str | None:
        """The SHA-256 of a whole file, as noted or as the place says; None before the file was fetched."""
        return self._expected(name, self.files[name])

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
            with contextlib.suppress(ValueError, TypeError):  # damaged, or cut short by a full disk
                name, sha256, *checks = json.loads(line)
                if checks in ([], [_check(name, sha256)]):  # older versions wrote no check
                    self._hashes.setdefault(name, sha256)
                    continue
            path = self._folder / HASHES
            log.warning("%s has a damaged line; the file of that line gets the hash of its next arrival", path)

    def _remember(self, key: str, sha256: str) -> None:
        line = json.dumps([key, sha256, _check(key, sha256)]).encode() + b"\n"
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
        files = {name: _lasting(version) for name, version in sorted(self.files.items())}
        times = {name: version.modified for name, version in sorted(self.files.items()) if version.modified}
        document = {"format": 1, "asked": self._asked_url, "url": self.url, "files": files, "modified": times}
        replace_file(self._folder / MANIFEST, seal(document))


def _check(key: str, sha256: str) -> str:
    """Tells a line of hashes from a line that was damaged."""
    return hashlib.sha256(f"{key}\n{sha256}".encode()).hexdigest()[:16]


def _lasting(version: FileVersion) -> dict[str, Any]:
    """What a copy of a file has too."""
    return {name: value for name, value in asdict(version).items() if name != "modified"}


def in_parallel(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Call a function with each name, several at a time; raises the first error."""
    with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="files") as pool:
        list(pool.map(work, names))
