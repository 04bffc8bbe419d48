"""The parts of an opened data set: their numbers as arrays in files, made when a part arrives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dp_prior.data.errors import ChangedError, DataError, UnreadableError
from dp_prior.data.files import map_npy
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.recorded.selection import KeyConfig, read_selected
from dp_prior_streams.cache_names import file_names
from dp_prior_streams.part_cache import NoRoomError, empty_folder
from dp_prior_streams.part_plan import PartPlan
from dp_prior_streams.record import StreamedStore
from dp_prior_streams.recorded_types import ChosenAlready, RememberedChoice

if TYPE_CHECKING:
    from dp_prior.data.recorded.camera import FramesConfig

log = logging.getLogger(__name__)

MIXED_PARTS = 4
"""Parts whose samples are shuffled together; see `PartOrder`."""

OPEN = 2 * MIXED_PARTS
"""Arrived contents that a process holds open."""

READS = 5
"""Attempts to read rows of a content that is written to meanwhile."""

T = TypeVar("T")
R = TypeVar("R")


class Content(Protocol):
    """Something of a part that is made when the part arrives, such as its numbers or the frames of a camera."""

    def name(self, part: int) -> str:
        """Name in the cache of this content of a part; parts may share it."""

    def n_bytes(self, part: int) -> int:
        """Bytes of the content, at most."""

    def source_bytes(self, part: int) -> int:
        """Bytes that lie beside the content while it is made."""

    def fill(self, part: int, folder: Path, needed: Collection[str]) -> None:
        """Write the content into a folder. Args: needed: see `PartCache.make`."""


class EveryEpisode:
    """A choice of all episodes of a store; see `ChoiceConfig.of`."""

    def of(self, store: EpisodeStore) -> tuple[Chosen, list[str]]:
        """Choose every episode."""
        ends, problems = store.checked_ends()
        return Chosen(ends, np.arange(len(ends)), store.numbers()), problems


class PartNumbers:
    """See `Content`: the selected numbers of a group of parts, by the policy's name; see `recorded_types`."""

    def __init__(self, store: StreamedStore, plan: PartPlan, keys: Mapping[str, KeyConfig], stride: int):
        self._store, self._plan, self._keys, self._stride = store, plan, keys, stride
        identity = {"keys": {key: record.model_dump(mode="json") for key, record in keys.items()}, "stride": stride}
        identity |= {
            "groups": plan.group_ends.tolist(),
            "files": store.remote.identity(store.names_of(store.meta.tables)),
            "version": 1,
        }
        self.file_names = file_names(keys)
        if any(name != key for key, name in self.file_names.items()):
            identity["version"] = 2  # version 1 named the files by the keys
        identity["episodes"] = [table.episodes for table in chain.from_iterable(plan.groups)]
        self.digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        stored = store.keys()
        used = [stored.get(key, ()) for record in keys.values() for key in record.stored_keys]
        self._row_bytes = 4 * sum(map(math.prod, used)) + 8
        self.warnings: list[str] = []

    def name(self, part: int) -> str:
        """See `Content`."""
        return f"numbers-{self.digest[:16]}-{int(self._plan.group_of[part]):06d}"

    def n_bytes(self, part: int) -> int:
        """See `Content`."""
        begin, end = self._plan.span(int(self._plan.group_of[part]))
        return (end - begin) * self._row_bytes + 512 * (len(self._keys) + 2)

    def source_bytes(self, part: int) -> int:
        """See `Content`; of the tables."""
        return self._store.bytes_of(self._plan.groups[int(self._plan.group_of[part])])

    def fill(self, part: int, folder: Path, needed: Collection[str]) -> None:
        """See `Content`; checks what reading a data set checks.

        Raises:
            DataError: the numbers cannot be trained on; all problems of the group in one report.
        """
        tables = folder / "tables"
        tables.mkdir()
        store = self._store.part(self._plan.groups[int(self._plan.group_of[part])], needed, tables)
        store.fetch()
        every, problems = EveryEpisode().of(store)
        chosen = RememberedChoice(every.recorded, every.numbers, every.names)
        choice = ChosenAlready(chosen, tuple(problems))
        try:
            arrays, _, warnings = read_selected(store, dict(self._keys), choice, self._stride)
        except DataError as error:
            raise store.with_places(error) from None
        self.warnings += [line for line in warnings if line not in self.warnings]
        for key, array in arrays.items():
            values = chosen.as_recorded(store, self._keys[key], array, self._stride)
            np.save(folder / f"{self.file_names[key]}.npy", values, allow_pickle=False)
        if TASK in store.meta.features and store.is_number(TASK):
            np.save(folder / f"{TASK}.tasks.npy", store.read(TASK).reshape(-1).astype("<i8"), allow_pickle=False)
        shutil.rmtree(tables)

    def open(self, folder: Path) -> dict[str, np.ndarray]:
        """The arrays of an arrived part, mapped from the disk, by the name of the file."""
        names = [*self.file_names.values(), f"{TASK}.tasks"]
        paths = {name: folder / f"{name}.npy" for name in names if (folder / f"{name}.npy").exists()}
        return {name: map_npy(path) for name, path in paths.items()}


class Parts:
    """The parts of the chosen episodes, each brought to this machine when it is asked for.

    Attributes:
        plan: how the data set is divided.
        numbers: content of every part.
        frames: content of every part for each camera, by the policy's name.
        contents: all contents of a part.
    """

    def __init__(
        self,
        store: StreamedStore,
        plan: PartPlan,
        keys: Mapping[str, KeyConfig],
        stride: int,
        cameras: Mapping[str, FramesConfig],
    ):
        self.store, self.plan = store, plan
        self.numbers = PartNumbers(store, plan, keys, stride)
        self.frames: dict[str, Any] = {}
        if cameras:
            from dp_prior_streams.part_frames import PartFrames

            self.frames = {name: PartFrames(store, plan, camera) for name, camera in cameras.items()}
        self.contents: list[Content] = [self.numbers, *self.frames.values()]
        self._opened: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._lock = Lock()

    @property
    def digest(self) -> str:
        """See `NumberGroups`."""
        return self.numbers.digest

    @property
    def warnings(self) -> list[str]:
        """See `NumberGroups`."""
        return self.numbers.warnings

    def load(self, name: str) -> bytes:
        """See `NumberGroups`."""
        return (self.store.cache.folder / name).read_bytes()

    def keep(self, name: str, content: bytes) -> None:
        """See `NumberGroups`."""
        self.store.cache.keep(name, content)

    def keep_tasks(self, tasks: np.ndarray, chosen: Chosen) -> None:
        """See `NumberGroups`."""
        self.store.keep(TASK, tasks, None if chosen.is_all else chosen.numbers)

    def names(self, *parts: int) -> set[str]:
        """Names in the cache of everything that parts need."""
        return {content.name(part) for part, content in product(parts, self.contents)}

    def has(self, part: int) -> bool:
        """Whether everything of a part is on this machine."""
        return all(self.store.cache.has(name) for name in self.names(part))

    def bring(self, part: int, needed: Collection[str]) -> None:
        """Bring a part to this machine. Args: needed: see `PartCache.make`.

        Raises:
            NoRoomError: the budget has no room beside `needed`.
        """
        for content in self.contents:
            self._made(content, part, needed, waits=False)

    def group(self, group: int) -> dict[str, np.ndarray]:
        """See `NumberGroups`."""
        arrays = self._numbers_of(group, lambda arrays: {name: np.array(array) for name, array in arrays.items()})
        names = {name: key for key, name in self.numbers.file_names.items()}
        return {names.get(name, name): _float32(array) if name in names else array for name, array in arrays.items()}

    def rows(self, group: int, key: str, rows: np.ndarray) -> np.ndarray:
        """Rows of a key, float32, by their (n,) numbers within a group."""
        name = self.numbers.file_names[key]
        return _float32(self._numbers_of(group, lambda arrays: arrays[name][rows], f"{name}.npy"))

    def _numbers_of(self, group: int, take: Callable[[dict[str, np.ndarray]], R], file: str | None = None) -> R:
        """What `take` copies from the mapped arrays of a group, by name of the file; see `read`."""
        return self.read(self.numbers, int(np.searchsorted(self.plan.group_of, group)), self.numbers.open, take, file)

    def read(
        self,
        content: Content,
        part: int,
        open_folder: Callable[[Path], T],
        take: Callable[[T], R],
        file: str | None = None,
    ) -> R:
        """What `take` copies from an opened content; the copy is made again where a file was written to meanwhile.

        Args:
            file: the only file that `take` reads; None for all.

        Raises:
            ConfigError: the budget has no room for the part alone.
            DataError, UnreadableError: it cannot be made, or is written to all the time.
        """
        sealed = self.store.cache.sealed(content.name(part))
        for _ in range(READS):
            n_checks, opened = self._open_content(content, part, open_folder, file)
            try:
                copied = take(opened)
            except Exception:  # such as of a frame that was damaged
                if not sealed.is_changed() and sealed.doubt() is None:
                    raise
                continue
            if sealed.n_checks == n_checks and not sealed.is_changed(file):
                return copied
        place = self.store.cache.path(content.name(part))
        raise UnreadableError(f"{place} is written to by another program; name another folder in data.episodes.cache")

    def opened(self, content: Content, part: int, open_folder: Callable[[Path], T]) -> T:
        """Open a content of a part; see `read` for its errors."""
        return self._open_content(content, part, open_folder)[1]

    def _open_content(
        self, content: Content, part: int, open_folder: Callable[[Path], T], file: str | None = None
    ) -> tuple[int, T]:
        """A content of a part, which is brought to this machine if it is not there, with the number of checks that its
        files had passed."""
        name = content.name(part)
        sealed = self.store.cache.sealed(name)
        with self._lock:
            if name in self._opened and self.store.cache.has(name, file) and self._opened[name][0] == sealed.n_checks:
                self._opened.move_to_end(name)
                return self._opened[name]
        while True:
            folder = self._arrived(content, part)
            if not self.store.cache.has(name):  # another process has just made room
                continue
            n_checks = sealed.n_checks
            try:
                opened = open_folder(folder)
                break
            except FileNotFoundError:
                continue
            except Exception:  # such as of a header that was damaged
                if sealed.doubt() is None:
                    raise
        with self._lock:
            self._opened = OrderedDict(
                (old, self._opened[old]) for old in self._opened if self.store.cache.path(old).exists()
            )
            self._opened[name] = n_checks, opened
            while len(self._opened) > OPEN * len(self.contents):
                self._opened.popitem(last=False)
        return n_checks, opened

    def _arrived(self, content: Content, part: int) -> Path:
        """The folder of a content; where the parts that are needed leave no room, they are removed too."""
        with contextlib.suppress(NoRoomError):
            return self._made(content, part, self.store.needed)
        return self._made(content, part, ())

    def least_bytes(self) -> int:
        """Bytes of the largest parts that training needs at a time, one on its way included."""
        total = 0
        for content in self.contents:
            parts = range(len(self.plan.ends))
            sizes = {content.name(part): content.n_bytes(part) for part in parts}
            total += sum(sorted(sizes.values())[-MIXED_PARTS - 1 :]) + max(map(content.source_bytes, parts))
        return total

    def _made(self, content: Content, part: int, needed: Collection[str], *, waits: bool = True) -> Path:
        name, n_bytes = content.name(part), content.n_bytes(part) + content.source_bytes(part)
        stay = {*needed, name}

        def fill(folder: Path) -> None:
            self.store.remote.drop()
            try:
                content.fill(part, folder, stay)
            except ChangedError:
                raise
            except DataError as error:
                if not self.store.remote.drop():  # the bytes are those noted, and decoded before
                    raise
                log.info("%s is fetched again, since its first bytes could not be read: %s", name, error)
                empty_folder(folder)
                content.fill(part, folder, stay)
            self.store.remote.confirm()

        return self.store.cache.make(name, n_bytes, fill, stay, waits=waits)


def _float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32, copy=False)


class PartArray:
    """The rows of a key over all parts: shape and type, and `rows` from the parts.

    Attributes:
        shape, dtype: as of an array.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, parts: Parts, key: str, row_shape: tuple[int, ...]):
        self._parts, self._key = parts, key
        self.shape = (int(parts.plan.group_ends[-1]), *row_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """(n, *shape[1:]) rows at (n,) numbers in any order."""
        values = np.empty((len(rows), *self.shape[1:]), self.dtype)
        groups = np.searchsorted(self._parts.plan.group_ends, rows, side="right")
        for group in np.unique(groups).tolist():
            is_here = groups == group
            begin, _ = self._parts.plan.span(group)
            values[is_here] = self._parts.rows(group, self._key, rows[is_here] - begin)
        return values

    def pieces(self) -> Iterator[np.ndarray]:
        """The rows of each group, in order."""
        for group in range(len(self._parts.plan.groups)):
            yield self._parts.group(group)[self._key]
