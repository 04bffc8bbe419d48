"""The selected numbers of a data set in files, float32, which are made once and mapped by every process of a machine:
the memory that they take is the page cache of the operating system, once, and as much as there is."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.errors import DataError, UnwritableError
from dp_prior.data.files import memory_bytes
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.layout import CACHE_FILE
from dp_prior.data.recorded.selection import KeyConfig, read_selected
from dp_prior.files.durable import replace_file, sync_directory
from dp_prior.files.json_text import seal, unseal
from dp_prior_streams.part_plan import PartPlan

log = logging.getLogger(__name__)

GROUP_PARTS = 1024
"""The numbers are read in groups that take at most this part of the memory, or one episode."""

FORMAT = 1

_REMEDY = "make room, name another folder in data.frame_cache, or use fewer keys or steps (split.max_rows)"


class MappedColumn(DiskColumn):
    """See `Column`. Row i is row index[i] of a mapped array."""

    dtype = torch.float32
    may_move = True

    def __init__(self, array: np.ndarray, index: np.ndarray):
        """Args: index: (m,) int64."""
        self._array, self._index, self.shape = array, index, tuple(array.shape[1:])

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self._array[self._index[ids.numpy()]])


@dataclass(frozen=True)
class ChosenAlready:
    """A choice that was made; see `ChoiceConfig.of`."""

    chosen: Chosen

    def of(self, store: EpisodeStore) -> tuple[Chosen, list[str]]:
        """The chosen episodes."""
        return self.chosen, []


class MappedNumbers:
    """See `NumberGroups`.

    Attributes:
        directory: of the files.
        arrays: (N, *shape) float32 of each key, mapped.
    """

    def __init__(self, store: EpisodeStore, keys: Mapping[str, KeyConfig], chosen: Chosen, stride: int, root: Path):
        """Make the files unless they are there; another process that makes them is waited for.

        Args:
            root: folder of all caches; created if missing.

        Raises:
            DataError: the numbers cannot be trained on.
            UnwritableError: the disk has no room for them.
        """
        self._store, self._keys, self._chosen, self._stride = store, dict(keys), chosen, stride
        self.plan = _groups(chosen, self._row_bytes())
        store.count_as_read(chosen.numbers)
        self.digest = self._digest()
        self.directory = root / f"numbers-{self.digest[:32]}"
        root.mkdir(parents=True, exist_ok=True)
        lock = self.directory.with_name(f"{self.directory.name}.lock")
        with build_lock(lock, log.info, lambda: "", lambda: None):
            index = self._index()
            if index is None:
                self._make()
                index = self._index()
        self.warnings: list[str] = index["warnings"]
        self.arrays = {}
        for key, shape in index["shapes"].items():
            array = np.memmap(self._file(self.directory, key), "<f4", "r", shape=(int(chosen.ends[-1]), *shape))
            self.arrays[key] = np.asarray(array)

    def group(self, group: int) -> dict[str, np.ndarray]:
        """See `NumberGroups`."""
        begin, end = self.plan.span(group)
        return {key: array[begin:end] for key, array in self.arrays.items()}

    def kept(self, name: str) -> bytes:
        """See `NumberGroups`."""
        return (self.directory / name).read_bytes()

    def keep(self, name: str, content: bytes) -> None:
        """See `NumberGroups`."""
        (self.directory / name).parent.mkdir(exist_ok=True)
        replace_file(self.directory / name, content)

    def keep_tasks(self, tasks: np.ndarray) -> None:
        """See `NumberGroups`; a data set on this machine is asked again."""

    def _row_bytes(self) -> int:
        """Bytes of a step, as stored keys and as float32."""
        shapes = self._store.keys()
        return 4 * sum(math.prod(shapes.get(key, ())) for key in self._stored_keys())

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
        return directory / f"{key}.f4"

    def _index(self) -> dict[str, Any] | None:
        """The index of the files; None unless all of them are there, each with its size."""
        try:
            index = unseal((self.directory / CACHE_FILE).read_bytes())
            rows = int(self._chosen.ends[-1])
            sizes = {key: 4 * rows * math.prod(shape) for key, shape in index["shapes"].items()}
            is_whole = all(self._file(self.directory, key).stat().st_size == size for key, size in sizes.items())
            return index if is_whole and index["shapes"].keys() == self._keys.keys() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _make(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        folder = self.directory.with_name(f"{self.directory.name}.incomplete")
        shutil.rmtree(folder, ignore_errors=True)
        n_bytes = int(self._chosen.ends[-1]) * self._row_bytes()
        log.info("writing %.3g GB of numbers, which are mapped instead of held in memory: %s", n_bytes / 1e9, folder)
        try:
            folder.mkdir()
            self._refuse_small_disk(folder, n_bytes)
            shapes, warnings = self._write(folder)
            index = {"format": FORMAT, "source": self._store.where, "shapes": shapes, "warnings": warnings}
            replace_file(folder / CACHE_FILE, seal(index))
            folder.rename(self.directory)
            sync_directory(self.directory.parent)
        except UnwritableError:
            raise
        except OSError as error:
            if error.filename is not None and not str(error.filename).startswith(str(folder)):
                raise
            reason = f"{n_bytes:,} bytes of numbers cannot be written ({error.strerror}); {_REMEDY}"
            raise UnwritableError(error.errno, reason, str(folder)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse_small_disk(self, folder: Path, n_bytes: int) -> None:
        free = shutil.disk_usage(folder).free
        if n_bytes > free:
            raise OSError(errno.ENOSPC, f"the disk has {free:,} bytes free", str(folder))

    def _write(self, folder: Path) -> tuple[dict[str, list[int]], list[str]]:
        """Write the numbers of each group behind those before; with the shapes of a step, and warnings.

        Raises:
            DataError: numbers cannot be trained on; the problems of all groups in one report.
        """
        shapes: dict[str, list[int]] = {}
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
                    files[key].write(np.ascontiguousarray(array, "<f4").data)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        if problems:
            raise DataError(self._store.where, problems)
        return shapes, warnings

    def _parts_of_choice(self) -> Iterator[Chosen]:
        """The chosen episodes of each group; all at once for a format that reads no episodes apart."""
        if not self._store.reads_apart:
            yield self._chosen
            return
        for group in range(len(self.plan.groups)):
            places = self.plan.episodes(*self.plan.span(group))
            yield replace(self._chosen, numbers=self._chosen.numbers[places])


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
