"""The selected numbers of a data set in files, which are made once and mapped by every process of a machine: the memory
that they take is the page cache of the operating system, once, and as much as there is.

Numbers of at most 4 bytes stay in the type recorded. Wider ones become float32, as all samples are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.errors import ChangedError, DataError, UnreadableError, UnwritableError
from dp_prior.data.files import Verify, memory_bytes
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.layout import CACHE_FILE
from dp_prior.data.recorded.selection import KeyConfig, read_selected
from dp_prior.files.durable import replace_file, sync_directory
from dp_prior.files.json_text import seal, unseal
from dp_prior_streams.cache_names import file_names
from dp_prior_streams.part_plan import PartPlan
from dp_prior_streams.recorded_types import ChosenAlready, RememberedChoice
from dp_prior_streams.sealed_folder import SealedFolder, seal_folder

log = logging.getLogger(__name__)

GROUP_PARTS = 1024
"""The numbers are read in groups that take at most this part of the memory, or one episode."""

FORMAT = 2

READS = 5
"""Attempts to read numbers whose files are written to meanwhile."""

T = TypeVar("T")

_REMEDY = "make room, name another folder in data.frame_cache, or use fewer keys or steps (split.max_rows)"


class MappedArray:
    """The mapped rows of a key, which are copied and converted to float32 where they are read.

    Attributes:
        stored: (N, *shape) of at most 4 bytes a number, mapped.
        shape, dtype: as of an array.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, stored: np.ndarray, numbers: MappedNumbers, file: str):
        """Args: file: name of the file that is mapped."""
        self.stored, self.shape, self._numbers, self._file = stored, stored.shape, numbers, file

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        copy = isinstance(rows, slice)
        return self._numbers.read(lambda: self.stored[rows].astype(np.float32, copy=copy), self._file)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._numbers.read(lambda: np.array(self.stored, dtype or np.float32), self._file)


class MappedColumn(DiskColumn):
    """See `Column`. Row i is row index[i] of a mapped array."""

    dtype = torch.float32
    may_move = True

    def __init__(self, array: MappedArray, index: np.ndarray):
        """Args: index: (m,) int64."""
        self._array, self._index, self.shape = array, index, tuple(array.shape[1:])

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self._array[self._index[ids.numpy()]])


class MappedNumbers:
    """See `NumberGroups`.

    Attributes:
        directory: of the files.
        arrays: (N, *shape) of each key.
    """

    def __init__(
        self,
        store: EpisodeStore,
        keys: Mapping[str, KeyConfig],
        chosen: Chosen,
        stride: int,
        root: Path,
        verify: Verify = "sizes",
    ):
        """Make the files unless they are there; another process that makes them is waited for.

        Args:
            root: folder of all caches; created if missing.
            verify: how complete files are checked; damaged files are made again. See `SealedFolder.fault`.

        Raises:
            DataError: the numbers cannot be trained on.
            UnwritableError: the disk has no room for them.
        """
        self._store, self._keys, self._chosen, self._stride = store, dict(keys), chosen, stride
        self._file_names = file_names(keys)
        self.plan = _groups(chosen, self._row_bytes())
        store.count_as_read(chosen.numbers)
        self.digest = self._digest()
        self.directory = root / f"numbers-{self.digest[:32]}"
        self._sealed, self._verify = SealedFolder(self.directory, self.directory.name), verify
        self.arrays: dict[str, MappedArray] = {}
        self._lock = Lock()
        index = self._opened() or self._opened_in_turn()  # a complete folder may be read-only
        self.warnings: list[str] = index["warnings"]
        self._hashes = self._sealed.hashes

    def read(self, take: Callable[[], T], file: str) -> T:
        """What `take` copies from a file; files that were written to are compared first, and made again.

        Raises:
            ChangedError: they are damaged, and the data set is not what they were made from.
            UnreadableError: they are written to all the time.
        """
        for _ in range(READS):
            if not self._sealed.is_current(file):
                self._repair()
            n_checks, copied = self._sealed.n_checks, take()
            if self._sealed.n_checks == n_checks and not self._sealed.is_changed(file):
                return copied
        place = self.directory
        raise UnreadableError(f"{place} is written to by another program; name another folder in data.frame_cache")

    def _repair(self) -> None:
        """Compare the files with their hashes, and make them again where they differ."""
        with self._lock:
            if self._sealed.is_current():  # another thread was faster
                return
            if self._sealed.fault(self._verify) is not None and self._digest() != self.digest:
                finding = f"has changed since this run began, and its numbers in {self.directory} are damaged"
                raise ChangedError(self._store.where, [finding], "restore the data set, and start again")
            self._opened() or self._opened_in_turn()
            if self._sealed.hashes != self._hashes:
                finding = f"gave other numbers than at the start of this run, for {self.directory}"
                raise ChangedError(self._store.where, [finding], "restore the data set, and start again")

    def _opened_in_turn(self) -> dict[str, Any]:
        """Map the files, which are made unless they are complete, one process at a time; returns their index."""
        root = self.directory.parent
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            finding = f"cannot be created ({error.strerror}); name another folder in data.frame_cache"
            raise UnwritableError(error.errno, finding, str(root)) from None
        lock = self.directory.with_name(f"{self.directory.name}.lock")
        with build_lock(lock, log.info, lambda: "", lambda: None):
            index = self._opened()
            if index is None:
                if self.directory.exists():
                    log.warning("%s is made again: %s", self.directory, self._fault())
                self._make()
                index = self._opened()
        return index

    def _opened(self) -> dict[str, Any] | None:
        """Map the files; returns their index, None if they are not complete or differ from their hashes."""
        try:
            if self._fault() is not None:
                return None
            index = unseal((self.directory / CACHE_FILE).read_bytes())
            for key, shape in index["shapes"].items():
                path, dtype = self._file(self.directory, key), index["dtypes"][key]
                stored = np.asarray(np.memmap(path, dtype, "r", shape=(int(self._chosen.ends[-1]), *shape)))
                if key in self.arrays:
                    self.arrays[key].stored = stored
                else:
                    self.arrays[key] = MappedArray(stored, self, path.name)
            return index
        except FileNotFoundError:  # another process makes them again
            return None

    def _fault(self) -> str | None:
        """Why the files cannot be used; None if they are complete."""
        fault = self._sealed.fault(self._verify)
        if fault is not None:
            return fault
        try:
            index = unseal((self.directory / CACHE_FILE).read_bytes())
            return None if index["shapes"].keys() == self._keys.keys() else f"{CACHE_FILE} has other keys"
        except (OSError, ValueError, KeyError) as error:
            return self._sealed.doubt() or f"{CACHE_FILE} is damaged: {error}"

    def group(self, group: int) -> dict[str, np.ndarray]:
        """See `NumberGroups`."""
        begin, end = self.plan.span(group)
        return {key: array[begin:end] for key, array in self.arrays.items()}

    def load(self, name: str) -> bytes:
        """See `NumberGroups`."""
        return (self.directory / name).read_bytes()

    def keep(self, name: str, content: bytes) -> None:
        """See `NumberGroups`."""
        (self.directory / name).parent.mkdir(exist_ok=True)
        replace_file(self.directory / name, content)

    def keep_tasks(self, tasks: np.ndarray, chosen: Chosen) -> None:
        """See `NumberGroups`; a data set on this machine is asked again."""

    def _row_bytes(self) -> int:
        """Bytes of a step, as stored keys and as float32."""
        shapes = self._store.keys()
        return 4 * sum(math.prod(shapes.get(key, ())) for key in self._stored_keys())

    def _file_bytes(self) -> int:
        """Bytes of the files, if the data set holds the types that it names."""
        shapes, row_bytes = self._store.keys(), 0
        for key in self._stored_keys():
            if key in shapes:
                row_bytes += math.prod(shapes[key]) * _item_bytes(self._store.dtype(key))
        return int(self._chosen.ends[-1]) * row_bytes

    def _stored_keys(self) -> list[str]:
        """The keys of the data set, as often as they are used."""
        return [*chain.from_iterable(record.stored_keys for record in self._keys.values())]

    def _digest(self) -> str:
        """Changes with whatever decides about the numbers: the data set, its files, the choice and the keys."""
        files = {str(path): os.stat(path) for path in self._store.files(self._stored_keys()) if path.exists()}
        identity = {
            "format": FORMAT,
            "source": self._store.describe(),
            "files": {name: [status.st_size, status.st_mtime_ns] for name, status in files.items()},
            "keys": {key: record.model_dump(mode="json") for key, record in self._keys.items()},
            "recorded": self._chosen.recorded.tolist(),
            "chosen": self._chosen.numbers.tolist(),
            "stride": self._stride,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def _file(self, directory: Path, key: str) -> Path:
        return directory / f"{self._file_names[key]}.numbers"

    def _make(self) -> None:
        """Write the files in a folder beside their place, which takes this place when it is complete."""
        shutil.rmtree(self.directory, ignore_errors=True)
        folder = self.directory.with_name(f"{self.directory.name}.incomplete")
        shutil.rmtree(folder, ignore_errors=True)
        n_bytes = self._file_bytes()
        log.info("writing %.3g GB of numbers, which are mapped instead of held in memory: %s", n_bytes / 1e9, folder)
        try:
            with _explaining_full_disk(folder, n_bytes):
                folder.mkdir()
                _refuse_small_disk(folder, n_bytes)
                index = {"format": FORMAT, "source": self._store.where, **self._write(folder)}
                replace_file(folder / CACHE_FILE, seal(index))
                seal_folder(folder, self.directory.name)
                folder.rename(self.directory)
                sync_directory(self.directory.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the numbers of all groups: each key in its type, in float32 where groups have it in several types.

        Returns:
            Shapes of a step and types by key, and warnings.

        Raises:
            DataError: numbers cannot be trained on; the problems of all groups in one report.
        """
        mixed_keys: set[str] = set()
        while True:
            shapes, types, warnings = self._write_groups(folder, mixed_keys)
            mixed_keys = {key for key, dtypes in types.items() if len(dtypes) > 1}
            if not mixed_keys:
                dtypes = {key: listed[0] for key, listed in types.items()}
                return {"shapes": shapes, "dtypes": dtypes, "warnings": warnings}

    def _write_groups(
        self, folder: Path, float32_keys: set[str]
    ) -> tuple[dict[str, list[int]], dict[str, list[str]], list[str]]:
        """Write the numbers of each group behind those before; with the shapes of a step, all types, and warnings."""
        shapes: dict[str, list[int]] = {}
        types: dict[str, list[str]] = {}
        warnings: list[str] = []
        problems: list[str] = []
        with ExitStack() as stack:
            files = {key: stack.enter_context(self._file(folder, key).open("wb")) for key in self._keys}
            for chosen in self._parts_of_choice():
                try:
                    arrays, _, lines = read_selected(self._store, self._keys, ChosenAlready(chosen), self._stride)
                except DataError as error:
                    problems += error.problems
                    continue
                warnings += [line for line in lines if line not in warnings]
                for key, array in arrays.items():
                    shape = shapes.setdefault(key, list(array.shape[1:]))
                    if shape != list(array.shape[1:]):
                        finding = (
                            f"{key} has shape {array.shape[1:]} per step in some episodes, {tuple(shape)} in others"
                        )
                        problems.append(finding)
                        continue
                    values = np.ascontiguousarray(array, "<f4")
                    if key not in float32_keys:
                        values = chosen.as_recorded(self._store, self._keys[key], array, self._stride)
                    if values.dtype.str not in types.setdefault(key, []):
                        types[key].append(values.dtype.str)
                    files[key].write(values.data)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        if problems:
            raise DataError(self._store.where, problems)
        return shapes, types, warnings

    def _parts_of_choice(self) -> Iterator[RememberedChoice]:
        """The chosen episodes of each group; all at once for a format that reads no episodes apart."""
        if not self._store.reads_apart:
            yield self._remembered(self._chosen.numbers)
            return
        for group in range(len(self.plan.groups)):
            places = self.plan.episodes(*self.plan.span(group))
            yield self._remembered(self._chosen.numbers[places])

    def _remembered(self, numbers: np.ndarray) -> RememberedChoice:
        return RememberedChoice(self._chosen.recorded, numbers, self._chosen.names)


def _groups(chosen: Chosen, row_bytes: int) -> PartPlan:
    """The chosen episodes in groups of whole episodes."""
    most = max(1, memory_bytes() // (GROUP_PARTS * max(row_bytes, 1)))
    group_ends, begin = [], 0
    for end, following in zip(chosen.ends.tolist(), [*chosen.ends[1:].tolist(), None], strict=True):
        if following is None or following - begin > most:
            group_ends.append(end)
            begin = end
    ends, groups = np.array(group_ends, np.int64), [[] for _ in group_ends]
    names = chosen.names[chosen.numbers]
    return PartPlan(groups, ends, ends, np.arange(len(ends)), chosen.ends, chosen.numbers, names, {})


def _item_bytes(dtype: str) -> int:
    """Bytes of a stored number of a recorded type; of float32 for names that numpy does not know."""
    try:
        return min(np.dtype(dtype).itemsize, 4)
    except TypeError:
        return 4


@contextmanager
def _explaining_full_disk(folder: Path, n_bytes: int) -> Iterator[None]:
    """Inside, an error of writing to a folder is raised as UnwritableError; one of reading a data set is unchanged."""
    try:
        yield
    except UnwritableError:
        raise
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder)):
            raise
        reason = f"{n_bytes:,} bytes of numbers cannot be written ({error.strerror}); {_REMEDY}"
        raise UnwritableError(error.errno, reason, str(folder)) from None


def _refuse_small_disk(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise OSError(errno.ENOSPC, f"the disk has {free:,} bytes free", str(folder))
