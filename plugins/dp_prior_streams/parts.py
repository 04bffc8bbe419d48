"""The parts of an opened data set: their numbers as arrays in files, made when a part arrives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.recorded.selection import KeyConfig, read_selected
from dp_prior_streams.part_cache import NoRoomError
from dp_prior_streams.part_plan import PartPlan
from dp_prior_streams.record import StreamedStore

if TYPE_CHECKING:
    from dp_prior.data.recorded.camera import FramesConfig

MIXED_PARTS = 4
"""Parts whose samples are shuffled together; see `PartOrder`."""

OPEN = 2 * MIXED_PARTS
"""Arrived contents that a process holds open."""

T = TypeVar("T")


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
    """See `Content`: the selected numbers of a group of parts, float32, by the policy's name."""

    def __init__(self, store: StreamedStore, plan: PartPlan, keys: Mapping[str, KeyConfig], stride: int):
        self._store, self._plan, self._keys, self._stride = store, plan, keys, stride
        identity = {"keys": {key: record.model_dump(mode="json") for key, record in keys.items()}, "stride": stride}
        identity |= {
            "groups": plan.group_ends.tolist(),
            "files": store.remote.identity(store.names_of(store.meta.tables)),
            "version": 1,
        }
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
        arrays, _, warnings = read_selected(store, dict(self._keys), EveryEpisode(), self._stride)
        self.warnings += [line for line in warnings if line not in self.warnings]
        for key, array in arrays.items():
            np.save(folder / f"{key}.npy", array, allow_pickle=False)
        if TASK in store.meta.features and store.is_number(TASK):
            np.save(folder / f"{TASK}.tasks.npy", store.read(TASK).reshape(-1).astype("<i8"), allow_pickle=False)
        shutil.rmtree(tables)


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
        self._opened: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()

    @property
    def digest(self) -> str:
        """See `NumberGroups`."""
        return self.numbers.digest

    @property
    def warnings(self) -> list[str]:
        """See `NumberGroups`."""
        return self.numbers.warnings

    def kept(self, name: str) -> bytes:
        """See `NumberGroups`."""
        return (self.store.cache.folder / name).read_bytes()

    def keep(self, name: str, content: bytes) -> None:
        """See `NumberGroups`."""
        self.store.cache.keep(name, content)

    def keep_tasks(self, tasks: np.ndarray) -> None:
        """See `NumberGroups`."""
        self.store.keep(TASK, tasks)

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
        """The numbers of a group, mapped from the disk, by the policy's name."""
        part = int(np.searchsorted(self.plan.group_of, group))
        return self.opened(self.numbers, part, _mapped)

    def opened(self, content: Content, part: int, open_folder: Callable[[Path], T]) -> T:
        """Open a content of a part, which is brought to this machine if it is not there.

        Raises:
            ConfigError: the budget has no room for the part alone.
            DataError, UnreadableError: it cannot be made.
        """
        name = content.name(part)
        with self._lock:
            if name in self._opened and self.store.cache.has(name):
                self._opened.move_to_end(name)
                return self._opened[name]
        while True:
            try:
                opened = open_folder(self._arrived(content, part))
                break
            except FileNotFoundError:  # another process has just made room
                continue
        with self._lock:
            self._opened = OrderedDict(
                (old, self._opened[old]) for old in self._opened if self.store.cache.path(old).exists()
            )
            self._opened[name] = opened
            while len(self._opened) > OPEN * len(self.contents):
                self._opened.popitem(last=False)
        return opened

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
            content.fill(part, folder, stay)
            self.store.remote.confirm()

        return self.store.cache.make(name, n_bytes, fill, stay, waits=waits)


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    return {
        path.name.removesuffix(".npy"): np.load(path, mmap_mode="r", allow_pickle=False)
        for path in folder.glob("*.npy")
    }


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
            values[is_here] = self._parts.group(group)[self._key][rows[is_here] - begin]
        return values

    def pieces(self) -> Iterator[np.ndarray]:
        """The rows of each group, in order."""
        for group in range(len(self._parts.plan.groups)):
            yield self._parts.group(group)[self._key]
