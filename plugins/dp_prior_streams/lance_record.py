"""The record of a LeRobot data set in Lance tables, as lerobot-lance-convert writes them, and its store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer

from dp_prior.config import Outside
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig
from dp_prior.data.formats.lerobot.dataset import LeRobotStore
from dp_prior.data.formats.lerobot.frames import checked_contents
from dp_prior.data.formats.lerobot.meta import LeRobotMeta, TableFile
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.frames import FrameContents, FrameSource
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.printable import without_password
from dp_prior.files.regular_files import expanded
from dp_prior_streams.lance_frames import FRAMES, VIDEOS, LancePictures, LanceVideos
from dp_prior_streams.lance_tables import LanceTables, column_of
from dp_prior_streams.sealed_folder import SealedFolder, seal_folder

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

CACHE = Path("~/.cache/dp_prior/lance")
"""Where the metadata of data sets behind a URL are kept."""

META, VERSIONS = "meta", "versions.json"
"""Table of the files of meta/, and the file that names the versions of all tables at the first opening."""

ROWS_AT_ONCE = 1 << 17
"""Rows of the table that are read together, at most, unless an episode is longer."""


class LanceConfig(EpisodeStoreRecord):
    """A LeRobot data set, format v3.0, in Lance tables, as `lerobot-lance-convert` of lerobot-lancedb writes them: any
    columns, episodes and videos are read without the others, also from an object store."""

    type: Literal["lance"] = "lance"

    path: Path | None = None
    """The folder that holds frames.lance and meta/; relative to the working directory, `~` is the home directory. Give
    either this or `url`."""

    url: Annotated[str | None, Outside()] = None
    """The folder in an object store, `s3://bucket/folder`, `gs://` or `az://`. Credentials come from the environment.
    The newest versions of the tables at the first opening stay."""

    def faults(self) -> Iterator[str]:
        if (self.path is None) == (self.url is None):
            finding = "both path and url are" if self.url else "neither path nor url is"
            yield f'{finding} given; write "path" for a directory, or "url" for an object store'
        elif self.url is not None and "://" not in self.url:
            yield f'url is {self.url!r}; for a directory write "path"'
        elif self.url is not None and self.url.startswith(("hf://", "http://", "https://")):
            remedy = "download the folder, such as by hf download, and give its path"
            yield f"url is {self.url!r}, but Lance tables are read from s3://, gs:// and az://; {remedy}"

    @field_validator("url")
    @classmethod
    def _has_no_end(cls, url: str | None) -> str | None:
        return url and without_password(url.rstrip("/"))

    @model_serializer(mode="wrap")
    def _leave_out_the_copy_of_the_metadata(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return write(self) if self.url is None else {**write(self), "path": None}

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return (path / "meta" / "info.json").is_file() and (path / f"{FRAMES}.lance").is_dir()

    @property
    def is_remote(self) -> bool:
        return self.url is not None

    def local(self, pinned: Mapping[str, str], cameras: Collection[str], choice: ChoiceConfig = ALL_EPISODES) -> Self:
        """See `EpisodeStoreRecord`; copies the metadata and notes the versions of the tables at the first opening, and
        copies metadata that were damaged since again."""
        if self.url is None or self.path is not None:
            return self
        folder = expanded(CACHE) / hashlib.sha256(self.url.encode()).hexdigest()[:24]
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder / "metadata.lock", lambda line: None, lambda: "", lambda: None):
            versions = _versions(folder) if (folder / VERSIONS).is_file() else {}
            fault = SealedFolder(folder / META, META).fault("hashes")
            if versions and fault is not None:
                log.warning("%s is copied again: %s", folder / META, fault)
            if not versions or fault is not None:
                _copy_metadata(LanceTables(self.url, versions), folder)
        return self.model_copy(update={"path": folder})

    def create(self) -> LanceStore:
        """Read the metadata; rows are read when asked for.

        Raises:
            ImportError: pylance is not installed.
            DataError: the tables are not those of a LeRobot data set.
            UnreachableError: the object store did not answer.
        """
        path = expanded(self.local({}, ()).path)
        versions = _versions(path) if self.url else {}
        tables = LanceTables(self.url or str(path), versions)
        return LanceStore(LeRobotMeta(path), tables)


class LanceStore(LeRobotStore):
    """See `LeRobotStore`; a part of the table of steps takes the place of each Parquet file.

    Attributes:
        tables: the tables of the data set.
    """

    def __init__(self, meta: LeRobotMeta, tables: LanceTables):
        """
        Raises:
            DataError: the metadata are not those of format v3.0, or the table has another number of rows.
        """
        if meta.version != "v3.0":
            finding = f"has codebase_version {meta.version!r}; expected v3.0, which lerobot-lance-convert reads"
            raise DataError(str(meta.info_file), [finding])
        self.tables = tables
        self._begins: dict[Path, int] = {}
        meta.tables = list(self._parts_of_table(meta))
        super().__init__(meta)
        count, expected = tables.count(FRAMES), sum(meta.lengths.values())
        if count != expected:
            finding = f"holds {count} rows, but the episode list gives its episodes {expected}"
            raise DataError(tables.where(FRAMES), [f"{finding}; convert the data set again"])

    def open_frames(self, key: str, ends: np.ndarray, numbers: np.ndarray, contents: FrameContents) -> FrameSource:
        """See `EpisodeStore`; videos without a chosen episode are not read."""
        if key not in self.meta.cameras:
            return super().open_frames(key, ends, numbers, contents)
        contents, episodes = checked_contents(self.meta, key, contents), set(numbers.tolist())
        if self.dtype(key) == "video":
            return LanceVideos(self.tables, self.meta, key, ends, episodes, contents)
        begins = {str(path): begin for path, begin in self._begins.items()}
        return LancePictures(self.tables, begins, self.meta, key, ends, episodes, contents)

    def frame_files(self, key: str, ends: np.ndarray) -> list[Any]:
        """See `EpisodeStore`; no file holds frames alone."""
        return []

    def files(self, keys: Iterable[str]) -> list[Path]:
        """The files of the table of steps, and the metadata."""
        return sorted({*self.tables.files(FRAMES), *self.meta.listings, self.meta.info_file})

    def describe(self) -> dict[str, Any]:
        """See `LeRobotStore`; of tables behind a URL with their versions."""
        described = {**super().describe(), "format": f"LeRobot {self.meta.version} in Lance", "path": self.tables.place}
        return {**described, "version": self.tables.version(FRAMES)} if self.tables.is_remote else described

    def _read_columns(self, file: TableFile, key: str, optional: Collection[str]) -> pyarrow.Table:
        """See `LeRobotStore`; reads the rows of these episodes alone."""
        stored = self.tables.columns(FRAMES)
        keys = [key, *(name for name in sorted(optional) if column_of(name) in stored and name != key)]
        begin, count = self._begins[file.path], file.n_rows(self.meta.lengths)
        why = ", which meta/info.json declares"
        return self.tables.read(FRAMES, [*map(column_of, keys)], begin, count, why).rename_columns(keys)

    def _parts_of_table(self, meta: LeRobotMeta) -> Iterator[TableFile]:
        """Divide the table into parts of whole episodes, in the order in which the files have them."""
        begins, row = {}, 0
        for file in sorted(meta.tables, key=lambda file: file.path):  # the order in which the converter reads files
            for episode in file.episodes:
                begins[episode] = row
                row += meta.lengths[episode]
        for file in meta.tables:
            episodes: list[int] = []
            for episode in file.episodes:
                if episodes and begins[episode] + meta.lengths[episode] - begins[episodes[0]] > ROWS_AT_ONCE:
                    yield self._part(meta, episodes, begins)
                    episodes = []
                episodes.append(episode)
            yield self._part(meta, episodes, begins)

    def _part(self, meta: LeRobotMeta, episodes: list[int], begins: Mapping[int, int]) -> TableFile:
        begin, last = begins[episodes[0]], episodes[-1]
        rows = f"rows {begin} to {begins[last] + meta.lengths[last] - 1}"
        part = TableFile(Path(f"{self.tables.where(FRAMES)}, {rows}"), episodes)
        self._begins[part.path] = begin
        return part


def _copy_metadata(tables: LanceTables, folder: Path) -> None:
    """Copy meta/ from its table into a folder, and note the versions of the tables.

    Raises:
        DataError: the table is no copy of such a folder.
    """
    versions = {name: tables.version(name) for name in (META, FRAMES, VIDEOS)}
    content = tables.read(META, ["path", "data"]).to_pydict()
    target = folder / "meta"
    shutil.rmtree(target, ignore_errors=True)
    for name, data in zip(content["path"], content["data"], strict=True):
        if not name or ".." in Path(name).parts or name.startswith("/") or "\0" in name:
            finding = f"holds {name!r}, which is no path within meta/"
            raise DataError(tables.where(META), [f"{finding}; remove the row there"])
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    seal_folder(target, META)
    replace_file(folder / VERSIONS, seal({"format": 1, "versions": versions}))


def _versions(folder: Path) -> dict[str, int]:
    """The versions of the tables at the first opening.

    Raises:
        DataError: their file is damaged.
    """
    content = (folder / VERSIONS).read_bytes()
    try:
        return unseal(content)["versions"]
    except (ValueError, KeyError):
        with contextlib.suppress(ValueError):
            versions = json.loads(content)  # of an older version, which sealed none
            if isinstance(versions, dict) and versions.keys() == {META, FRAMES, VIDEOS}:
                return versions
    advice = f"delete {folder}, and the next start reads the newest versions"
    raise DataError(str(folder / VERSIONS), ["does not hold the versions of tables"], advice)
