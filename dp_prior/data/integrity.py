"""The manifest of a data set: files are recorded once and compared at every start, to detect damage before training.

Formats detect little themselves: zarr returns zeros for a lost chunk, and a flipped bit passes through most codecs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dp_prior.config import Config
from dp_prior.data.errors import ChangedError, DataError
from dp_prior.data.files import VIDEOS, Verify, reading
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.printable import as_unicode
from dp_prior.files.regular_files import expanded, open_regular, read_small

DATA_MANIFEST = "data_manifest.json"

LARGEST_DATA_MANIFEST = 1 << 30  # bytes: a zarr data set may have millions of chunks
_THREADS = 4


class FileNote(Config):
    """Size and hash of one file."""

    size: int = Field(ge=0)
    """Bytes."""

    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the whole file; null where it was never hashed."""


class DataManifest(Config):
    """The files of a data set as they were when it was first used."""

    format: Literal[1] = 1
    """Version of this document."""

    root: str
    """The recorded episodes; names are relative to it. Empty for data without episodes."""

    files: dict[str, FileNote]
    """Every file of the episodes that was read, by name; `.` where the data set is one file."""

    folders: dict[str, dict[str, FileNote]] = {}
    """Files of each folder of embeddings, by the folder's path or URL and their names in it."""


class Integrity:
    """Compares the files of a data set with its manifest, and writes the manifest when there is none.

    Files of episodes are always hashed when they are first noted. Embeddings and videos may take terabytes: their names
    and sizes are noted, and hashes only with verify "hashes" and on local disks.
    """

    def __init__(
        self, path: Path, root: Path | None, verify: Verify, places: Mapping[str, tuple[str, ...]] | None = None
    ):
        """
        Args:
            path: the manifest.
            root: the recorded episodes, a directory or a file; None if there are none.
            places: endings of the files of embeddings and their metadata, by path or URL.
        """
        self.path = path
        self._root = root
        self._verify = verify
        self._places = {_absolute(place): endings for place, endings in (places or {}).items()}

    def check(self) -> None:
        """Compare sizes, and hashes if asked for, of all files noted. Without a manifest there is nothing to compare.

        Raises:
            ChangedError: files have changed, are missing or were added; all of them in one report.
            UnreadableError: the system refused to read a file.
        """
        manifest = self._read()
        if manifest is None:
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="data-verify") as pool:
            paths = [self._root / name for name in manifest.files]
            problems = list(filter(None, pool.map(self._compare, paths, manifest.files.values())))
            for place in self._places:
                if (expected := manifest.folders.get(as_unicode(place))) is not None:
                    problems += self._compare_folder(place, expected, pool)
        if problems:
            data_set = "the data set" if self._root is None else str(self._root)
            raise ChangedError(f"{data_set} has changed since {self.path} was written", problems, _remedy([self.path]))

    def note(self, files: Iterable[Path]) -> None:
        """Write the manifest, or add the files that are not listed yet.

        Raises:
            DataError: a file is missing, or has a name that is no Unicode.
            UnreadableError: the system refused to read a file.
        """
        written = self._read()
        notes = {} if written is None else dict(written.files)
        folders = {} if written is None else dict(written.folders)
        file_names = sorted({path.relative_to(self._root).as_posix() for path in files if self.covers(path)})
        _check_names(str(self._root), file_names)
        names = [name for name in file_names if name not in notes or self._is_hashed(name) and not notes[name].sha256]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="data-hash") as pool:
            notes |= zip(names, pool.map(self._take, names), strict=True)
            for place, endings in self._places.items():
                name = as_unicode(place)
                folders[name] = self._take_folder(place, endings, folders.get(name), pool)
        manifest = DataManifest(root=self._root_name(), files=dict(sorted(notes.items())), folders=folders)
        if manifest == written or not (notes or folders):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, seal({"format": 1, **manifest.model_dump(mode="json", exclude_defaults=True)}))

    def scope(self) -> str:
        """One line: what is compared at a start, and content that is not read; empty without files."""
        if self._root is None and not self._places:
            return ""
        if self._verify == "sizes":
            late = ", from the first start on where there are embeddings" if self._places else ""
            return f"names and sizes of files, not their content (data.verify=hashes compares it{late})"
        urls = sum("://" in place for place in self._places)
        return "every byte of the data set's local files" + (
            f"; of {urls} folders behind URLs names and sizes alone" if urls else ""
        )

    def covers(self, file: Path) -> bool:
        """Whether a file is one of the recorded episodes."""
        return self._root is not None and file.is_relative_to(self._root)

    def _read(self) -> DataManifest | None:
        """The manifest; None if there is none, or it belongs to a data set elsewhere."""
        try:
            with reading(self.path):
                data = read_small(self.path, LARGEST_DATA_MANIFEST)
        except DataError:
            if self.path.exists():
                raise
            return None
        try:
            manifest = DataManifest.model_validate_json(json.dumps(unseal(data)), strict=True)
            leaving = [name for name in manifest.files if name.startswith("/") or ".." in Path(name).parts]
            if leaving:
                raise ValueError(f"{leaving[0]!r} leaves the data set")
        except (ValueError, ValidationError) as error:
            problem = f"is not a manifest of a data set ({str(error).splitlines()[0]})"
            raise DataError(str(self.path), [f"{problem}; delete it, and the next start writes it again"]) from None
        return manifest if manifest.root == self._root_name() else None

    def _compare(self, path: Path | str, expected: FileNote, size: int | None = None) -> str | None:
        """The change of a file, None without one; `size` is known where a folder was listed."""
        try:
            with reading(path):
                size = os.stat(path).st_size if size is None else size
                if size != expected.size:
                    return f"{path} has {size} bytes, expected {expected.size}"
                if self._verify == "hashes" and expected.sha256 is not None and _sha256(path) != expected.sha256:
                    return f"{path} has the right size, but not the SHA-256 that was noted: its content has changed"
        except DataError as error:
            return f"{path} {error.problems[0]}"
        return None

    def _compare_folder(self, place: str, expected: Mapping[str, FileNote], pool: ThreadPoolExecutor) -> list[str]:
        """The changes of the files in a folder of embeddings."""
        from dp_prior.data.found_files import find_files

        try:
            files = find_files(place, self._places[place])
            sizes = files.sizes()
        except DataError as error:
            return [f"{place}: {problem}" for problem in error.problems]
        problems = [f"{_join(place, name)} is missing" for name in sorted(expected.keys() - sizes.keys())]
        problems += [f"{_join(place, name)} was not there" for name in sorted(sizes.keys() - expected.keys())]
        both = sorted(expected.keys() & sizes.keys())
        unknown = [name for name in both if expected[name].sha256 is None]
        if self._verify == "hashes" and files.is_local and unknown:
            finding = "were noted without a hash, so whether their content has changed cannot be told"
            problems.append(f"{len(unknown)} files of {place} {finding}; compare sizes with data.verify=sizes")
        changes = pool.map(lambda name: self._compare(_join(place, name), expected[name], sizes[name]), both)
        return problems + list(filter(None, changes))

    def _is_hashed(self, name: str) -> bool:
        """Whether the hash of a file is noted; videos may take terabytes."""
        return self._verify == "hashes" or not name.lower().endswith(VIDEOS)

    def _take(self, name: str) -> FileNote:
        path = self._root / name
        with reading(path):
            return FileNote(size=os.stat(path).st_size, sha256=_sha256(path) if self._is_hashed(name) else None)

    def _take_folder(
        self, place: str, endings: tuple[str, ...], notes: Mapping[str, FileNote] | None, pool: ThreadPoolExecutor
    ) -> dict[str, FileNote]:
        """Notes of a folder, of local files with hashes if hashes are to be verified. Existing notes stay."""
        if notes is not None:
            return dict(notes)
        from dp_prior.data.found_files import find_files

        files = find_files(place, endings)
        sizes, hashes = files.sizes(), dict[str, str]()
        _check_names(place, sizes)
        if self._verify == "hashes" and files.is_local:
            hashes = dict(zip(sizes, pool.map(lambda name: _sha256(_join(place, name)), sizes), strict=True))
        return {name: FileNote(size=size, sha256=hashes.get(name)) for name, size in sizes.items()}

    def _root_name(self) -> str:
        return "" if self._root is None else as_unicode(str(self._root.absolute()))


def _check_names(place: str, names: Iterable[str]) -> None:
    """Raises DataError for names of files that no manifest can hold; those of folders above them may be any."""
    if odd := [name for name in names if as_unicode(name) != name]:
        raise DataError(place, [f"{name!r} is not named in UTF-8; rename it" for name in odd])


def _remedy(manifests: Sequence[Path]) -> str:
    """The remedy where files differ from their manifests."""
    return (
        f"copy the data set again, or repair it; if the change is meant, delete {' and '.join(map(str, manifests))}, "
        "and a run with checkpoints then needs --allow-change data.fingerprint"
    )


class JointIntegrity:
    """See `Integrity`, of several data sets, each of which has its own manifest."""

    def __init__(self, parts: Sequence[Integrity]):
        self._parts = parts

    def check(self) -> None:
        """See `Integrity.check`; one report of all data sets."""
        problems, changed = [], []
        for part in self._parts:
            try:
                part.check()
            except DataError as error:
                problems += [f"{error.source}: {problem}" for problem in error.problems]
                changed += [part.path] if isinstance(error, ChangedError) else []
        if changed:
            raise ChangedError("data.sets", problems, _remedy(changed))
        if problems:
            raise DataError("data.sets", problems)

    def scope(self) -> str:
        """See `Integrity.scope`; each line once."""
        return "; ".join(dict.fromkeys(filter(None, (part.scope() for part in self._parts))))

    def note(self, files: Iterable[Path]) -> None:
        """See `Integrity.note`."""
        files = list(files)
        for part in self._parts:
            part.note(filter(part.covers, files))


def _absolute(place: str) -> str:
    return place if "://" in place else os.path.abspath(expanded(place))


def _join(place: str, name: str) -> str:
    return place if name == "." else f"{place.rstrip('/')}/{name}"


def _sha256(path: Path | str) -> str:
    with reading(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
