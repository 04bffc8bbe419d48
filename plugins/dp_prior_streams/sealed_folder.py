"""Folders whose content is known: size, times and SHA-256 of each file, in a sealed document in the folder.

Sizes and times are compared first, since they cost no reading. Where they differ, as after a copy, or where the data
are verified by hashes, every byte decides.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from dp_prior.data.files import Verify, raise_refusal
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.regular_files import UnfitError, open_regular, read_small
from dp_prior.files.temporary import is_temporary

SIZES = "sizes.json"
"""The document; older versions noted only sizes in a file of this name."""

FORMAT = 2

REFUSALS = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of permissions, limits and memory, which making the folder again does not resolve."""

CLOCK_TICK_S = 0.02
"""Longest time in which two writes to a file have the same time."""

Stamp = tuple[int, int, int]
"""Bytes of a file, and the times in nanoseconds at which its content and its status changed."""


def seal_folder(folder: Path, name: str) -> None:
    """Hash the files of a folder, and write the document. Args: name: of the complete folder."""
    stamps = _settled_stamps(folder, _files(folder))
    _write(folder, name, stamps, {file: _sha256(folder / file) for file in stamps})


class SealedFolder:
    """A folder that `seal_folder` completed.

    Attributes:
        hashes: SHA-256 of each file by name, after a check without a fault.
        n_checks: checks without a fault that compared more than the stamps of the check before.
    """

    def __init__(self, path: Path, name: str):
        """Args: name: of the folder when it was sealed."""
        self._path, self._name = path, name
        self._stamps: dict[str, Stamp] = {}
        self._paths: dict[str, str] = {}
        self._is_doubtful = False
        self.hashes: dict[str, str] = {}
        self.n_checks = 0

    def fault(self, verify: Verify) -> str | None:
        """Compare the files with the document; returns the first difference, None without a difference.

        Args:
            verify: "hashes" for every byte at the first check, and where a file changed since.

        Raises:
            UnreadableError: the system refuses to read a file, and would refuse another one in its place.
        """
        try:
            if self._stamps and not self._is_doubtful and self._current() == self._stamps:
                return None
            return self._compare("hashes" if self._is_doubtful else verify)
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except OSError as error:
            if error.errno in REFUSALS:
                raise_refusal(error.filename, error)
            return f"{error.filename} cannot be read ({error.strerror})"
        except UnfitError as error:
            return str(error)

    def is_current(self, file: str | None = None) -> bool:
        """Whether a file, or every file, is there as at the last check."""
        try:
            if file is not None:
                path = self._paths[file]
                return _stamp(path) == self._stamps[path]
            return self._current() == self._stamps
        except (FileNotFoundError, KeyError):
            return False

    def is_changed(self, file: str | None = None) -> bool:
        """Whether a file, or any file, was written to since the last check; what was opened of a removed folder stays
        valid."""
        return not self.is_current(file) and self._path.exists()

    def doubt(self) -> str | None:
        """Compare every byte now, since the content could not be read; a fault stays until the folder is made again."""
        self._is_doubtful = True
        return self.fault("hashes")

    def _current(self) -> dict[str, Stamp]:
        return {path: _stamp(path) for path in self._stamps}

    def _compare(self, verify: Verify) -> str | None:
        try:
            noted = _read(self._path, self._name)
        except ValueError as error:
            return f"{SIZES} {error}"
        stamps = {file: _stamp(self._path / file) for file in noted}
        for file, (expected, _) in noted.items():
            if stamps[file][0] != expected[0]:
                return f"{file} has {stamps[file][0]:,} bytes, expected {expected[0]:,}"
        is_as_noted = all(stamps[file] == expected for file, (expected, _) in noted.items())
        hashes = {file: sha256 for file, (_, sha256) in noted.items()}
        if not is_as_noted:
            stamps = _settled_stamps(self._path, noted)
        if verify == "hashes" or not is_as_noted:
            for file, sha256 in hashes.items():
                if _sha256(self._path / file) != sha256:
                    return f"{file} has the right size, but not the SHA-256 that it was written with"
        if not is_as_noted:  # such as in a copy of the cache; the next check needs no reading
            with contextlib.suppress(OSError):
                _write(self._path, self._name, stamps, hashes)
        self.hashes, self.n_checks, self._is_doubtful = hashes, self.n_checks + 1, False
        self._paths = {file: str(self._path / file) for file in stamps}
        self._stamps = {self._paths[file]: stamp for file, stamp in stamps.items()}
        return None


def _files(folder: Path) -> list[str]:
    """The names of the files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SIZES and not is_temporary(path))
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _settled_stamps(folder: Path, files: Iterable[str]) -> dict[str, Stamp]:
    """The stamp of each file by name, after a pause where a file was written to just now: a further write would have
    the same time."""
    stamps = {file: _stamp(folder / file) for file in files}
    newest = max((max(times) for _, *times in stamps.values()), default=0)
    if newest > time.time_ns() - CLOCK_TICK_S * 1e9:
        time.sleep(CLOCK_TICK_S)
        stamps = {file: _stamp(folder / file) for file in stamps}
    return stamps


def _stamp(path: Path | str) -> Stamp:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path, name: str) -> dict[str, tuple[Stamp, str]]:
    """The stamp and the SHA-256 of each file in the document.

    Raises:
        ValueError: the document is damaged, that of another folder, or of an older version.
    """
    content = read_small(folder / SIZES)
    if b'"sha256"' not in content:
        raise ValueError("is of an older version, which noted no hashes")
    try:
        document = unseal(content)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None
    if (document.get("format"), document.get("name")) != (FORMAT, name):
        raise ValueError(f"belongs to {document.get('name')}, format {document.get('format')}")
    return {file: (tuple(stamp), sha256) for file, (stamp, sha256) in document["files"].items()}


def _write(folder: Path, name: str, stamps: dict[str, Stamp], hashes: dict[str, str]) -> None:
    files = {file: [stamp, hashes[file]] for file, stamp in stamps.items()}
    replace_file(folder / SIZES, seal({"format": FORMAT, "name": name, "files": files}))
