"""The files of a data set, noted once and compared at every start: damage is named before anything is trained on it.

Formats notice little themselves: zarr gives zeros for a lost chunk, and a flipped bit passes through most codecs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dp_prior.config import Config
from dp_prior.data.errors import DataError
from dp_prior.durable import replace_file, seal, unseal

MANIFEST = "data_manifest.json"
Verify = Literal["sizes", "hashes"]

_READ_AT_ONCE = 1 << 20  # bytes
_THREADS = 4


class FileNote(Config):
    """What is known of one file."""

    size: int = Field(ge=0)
    """Bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the whole file."""


class DataManifest(Config):
    """The files of a data set as they were when it was first used."""

    format: Literal[1] = 1
    """Version of this document."""

    root: str
    """The data set; names are relative to it."""

    files: dict[str, FileNote]
    """Every file that was read, by name; `.` where the data set is one file."""


class Integrity:
    """Compares the files of a data set with its manifest, and writes that when there is none."""

    def __init__(self, path: Path, root: Path, verify: Verify):
        """
        Args:
            path: the manifest.
            root: the data set, a directory or a file.
        """
        self._path = path
        self._root = root
        self._verify = verify

    def check(self) -> None:
        """Compare sizes, and hashes if asked for, of all files noted. Without a manifest there is nothing to compare.

        Raises:
            DataError: files have changed, are missing or cannot be read; all of them in one report.
        """
        manifest = self._read()
        if manifest is None:
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="data-verify") as pool:
            problems = list(filter(None, pool.map(self._compare, manifest.files, manifest.files.values())))
        if problems:
            advice = (
                f"copy the data set again, or repair it; if the change is meant, delete {self._path}, and a run with "
                "checkpoints then needs --allow-change data.fingerprint"
            )
            raise DataError(f"{self._root} is not what it was when {self._path} was written", [*problems, advice])

    def note(self, files: Iterable[Path]) -> None:
        """Write the manifest, or add files to it that are not in it yet.

        Raises:
            DataError: a file cannot be read.
        """
        known = self._read()
        notes = {} if known is None else dict(known.files)
        names = [name for name in sorted(self._name(path) for path in files) if name not in notes]
        if not names:
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="data-hash") as pool:
            try:
                notes |= zip(names, pool.map(self._take, names), strict=True)
            except OSError as error:
                raise DataError(str(error.filename), [f"cannot be read: {error.strerror}"]) from None
        manifest = DataManifest(root=str(self._root.absolute()), files=dict(sorted(notes.items())))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, seal(manifest.model_dump(mode="json")))

    def _read(self) -> DataManifest | None:
        """The manifest; None if there is none, or it is of a data set elsewhere."""
        try:
            data = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DataError(str(self._path), [f"cannot be read: {error.strerror}"]) from None
        try:
            manifest = DataManifest.model_validate_json(json.dumps(unseal(data)), strict=True)
            leaving = [name for name in manifest.files if name.startswith("/") or ".." in Path(name).parts]
            if leaving:
                raise ValueError(f"{leaving[0]!r} leaves the data set")
        except (ValueError, ValidationError) as error:
            problem = f"is no manifest of a data set ({str(error).splitlines()[0]})"
            raise DataError(str(self._path), [f"{problem}; delete it to have it written anew"]) from None
        return manifest if manifest.root == str(self._root.absolute()) else None

    def _compare(self, name: str, expected: FileNote) -> str | None:
        path = self._root / name
        try:
            size = os.stat(path).st_size
            if size != expected.size:
                return f"{path} has {size} bytes, expected {expected.size}"
            if self._verify == "hashes" and _sha256(path) != expected.sha256:
                return f"{path} has the right size, but not the SHA-256 that was noted: its content has changed"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return None

    def _take(self, name: str) -> FileNote:
        path = self._root / name
        return FileNote(size=os.stat(path).st_size, sha256=_sha256(path))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_READ_AT_ONCE):
            digest.update(piece)
    return digest.hexdigest()
