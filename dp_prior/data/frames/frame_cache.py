"""The frame cache: every frame of a camera once, at the size that a network sees: colours as uint8, depth as float32.

The name of a cache is a digest of everything that decides about its pixels: source files, camera, rows, `Fit`, encoding
and versions. A change of any gives another cache, so that one is never out of date.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dp_prior.data.errors import DataError, UnreadableError, UnwritableError
from dp_prior.data.files import Verify
from dp_prior.data.frames import FrameSource
from dp_prior.data.frames.build import BuildProgress, Plan, build
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.encodings import RAW, Encoding
from dp_prior.data.frames.frame_rows import FrameRows
from dp_prior.data.frames.layout import CACHE_FILE, JOURNAL, CacheIndex, read_index
from dp_prior.files.durable import sync_directory
from dp_prior.files.printable import duration
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.pixels.resize import Fit

log = logging.getLogger(__name__)

CACHE_FOLDER = ".dp_prior_frames"
USER_CACHE = Path("~/.cache/dp_prior/frames")
"""For data sets beside which nothing can be written, or that are no files of their own."""

_SAMPLE_FRAMES = 64


@dataclass(frozen=True)
class BuildEstimate:
    """The cost of a build."""

    frames: int
    frames_left: int
    seconds: float
    n_bytes: int
    """Of the complete cache."""

    free_bytes: int
    encoding: Encoding

    def __str__(self) -> str:
        work = f"{self.frames_left:,} of {self.frames:,} frames to read, about {duration(self.seconds)}"
        return f"{work}; {_gigabytes(self.n_bytes)} as {self.encoding.type}, {_gigabytes(self.free_bytes)} free"


def cache_root(configured: Path | None, data_set: Path) -> Path:
    """Where caches lie: the given directory; else beside the data set; else, if that is read-only, `USER_CACHE`."""
    if configured is not None:
        return expanded(configured)
    beside = expanded(data_set).absolute().parent / CACHE_FOLDER
    if os.access(beside if beside.exists() else beside.parent, os.W_OK | os.X_OK):
        return beside
    return expanded(USER_CACHE)


class FrameCache:
    """The cache of one camera at one size; built where it is not complete.

    Attributes:
        seen: see `Fit.seen`.
        recorded: height and width of the frames before the resize.
        files: of the source.
    """

    def __init__(self, source: FrameSource, fit: Fit, root: Path, encoding: Encoding = RAW):
        """
        Args:
            root: directory of all caches; created if missing.

        Raises:
            DataError: there is no frame, or a file of the source is missing.
        """
        if not len(source.ends) or source.ends[-1] <= 0:
            raise DataError(str(source.root), ["has no frames"])
        encoding.check_packages()
        places = getattr(source, "places", source.parts)
        identity = {
            "format": CacheIndex.model_fields["format"].default,
            "source": source.describe(),
            "files": _identify(source),
            "parts": [[part.where.removeprefix(str(source.root)), *part.episodes] for part in places],
            "ends": source.ends.tolist(),
            "fit": fit.model_dump(mode="json"),
            "encoding": encoding.model_dump(mode="json"),
        }
        self.digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.directory = root / self.digest[:32]
        self.shape, self.dtype = (*fit.size, encoding.channels), encoding.dtype
        self.n_frames, self.seen = int(source.ends[-1]), fit.seen(*source.size)
        self.recorded, self.files = (int(source.size[0]), int(source.size[1])), source.files()
        self._plan = Plan(source, fit, encoding, self.directory)

    def estimate(self, workers: int = 1) -> BuildEstimate:
        """The cost of `build`. Reads the first few frames of one file unless the cache is complete; writes nothing."""
        plan, encoding, free = self._plan, self._plan.encoding, _free_bytes(self.directory)
        if self._damage("sizes") is None:
            return BuildEstimate(plan.n_frames, 0, 0.0, sum(read_index(self.directory).sizes.values()), free, encoding)
        frames_left = plan.n_frames - plan.count(plan.done())
        began, count, stored = time.monotonic(), 0, 0
        for block in plan.source.read(plan.source.parts[0], 0):
            fitted = plan.frames(block)
            stored += sum(len(encoding.encode(frame)) for frame in fitted)
            count += len(fitted)
            if count >= _SAMPLE_FRAMES:
                break
        seconds = (time.monotonic() - began) / max(count, 1) * frames_left / min(workers, len(plan.source.parts))
        n_bytes = encoding.expected_bytes(plan.n_frames, plan.fit.size, stored / max(count, 1))
        return BuildEstimate(plan.n_frames, frames_left, seconds, n_bytes, free, encoding)

    def build(
        self,
        workers: int = 1,
        progress: Callable[[BuildProgress], None] = lambda done: None,
        tell: Callable[[str], None] = lambda line: None,
        verify: Verify = "sizes",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Complete the cache; returns at once if it is. One process builds while the others wait for it.

        Args:
            workers: threads, each of which reads one file at a time.
            progress: called about once per second.
            tell: called with a line about what is waited for, or why a complete cache is built again.
            verify: how a complete cache is checked first; a damaged cache is built again.
            check: called about once per second while building or waiting; its exception ends the call, and the episodes
                read so far stay.

        Raises:
            DataError: files cannot be read or do not match the rows, all of them in one report, and what could be read
                stays.
            UnwritableError: the disk is too small, or the cache cannot be written.
            UnreadableError: the system refused to read a file of the source or of the cache.
        """
        if verify == "sizes" and self._damage("sizes") is None:  # needs no lock, so a complete cache may be read-only
            return
        root, plan = self.directory.parent, self._plan
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot be created ({error.strerror}); name another directory for the frame cache"
            raise UnwritableError(error.errno, problem, str(root)) from None

        def how_far() -> str:
            return f"{plan.count(plan.done()):,} of {plan.n_frames:,} frames are done"

        with build_lock(root / f"{self.directory.name}.lock", tell, how_far, check):
            damage = self._damage(verify)
            if damage is None:
                return
            if (self.directory / CACHE_FILE).exists():
                tell(f"the frame cache {self.directory} is built again: {damage}")
                self._clear()
            try:
                self.directory.mkdir(exist_ok=True)
                self._refuse_small_disk(workers)
                build(plan, workers, progress, check)
            except (UnreadableError, UnwritableError):  # a file of the source; the disk is too small
                raise
            except OSError as error:
                state = f"{error.strerror or error}; {_gigabytes(_free_bytes(self.directory))} free"
                remedy = "Make room and start again: episodes that are stored stay"
                problem = f"cannot be written ({state}). {remedy}"
                raise UnwritableError(error.errno, problem, str(self.directory)) from None

    def open(self, verify: Verify = "sizes") -> FrameRows:
        """The frames by row, from the cache, which is built if needed; logs damage that hashes find. See `build`."""
        self.build()
        rows = FrameRows(self.directory)
        if verify == "hashes" and rows.damage():  # all processes check at once; the repairing process again
            self.build(tell=log.warning, verify=verify)
            rows = FrameRows(self.directory)
        self._refuse_others(rows)
        return rows

    def _refuse_others(self, rows: FrameRows) -> None:
        """Compare some frames of the first and the last part if the cache was made from another data set that still
        exists. A cache is found by names, sizes and times of files, which two data sets may share: archives keep times
        in whole seconds.

        Raises:
            DataError: it holds other frames.
        """
        plan, other = self._plan, Path(rows.index.source)
        source = plan.source
        if not source.files() or not other.exists() or os.path.samefile(other, source.root):
            return
        for part in (source.parts[0], source.parts[-1]):
            number = part.episodes[0]
            fitted = plan.frames(next(source.read(part, 0)))[: plan.lengths[number]]
            first = int(source.ends[number] - plan.lengths[number])
            stored = rows.rows(torch.arange(first, first + len(fitted)))
            if not torch.equal(plan.encoding.decoded(fitted, str(source.root)), stored):
                problem = f"has files of the same sizes and times as {other}, whose frames are in {self.directory}"
                remedy = "touch them (their times change), or name another data.frame_cache"
                raise DataError(str(source.root), [f"{problem}; {remedy}"])

    def _damage(self, verify: Verify) -> str | None:
        """Why the cache cannot be used as it is."""
        try:
            read_index(self.directory)
            return FrameRows(self.directory).damage() if verify == "hashes" else None
        except DataError as error:
            return error.problems[0]

    def _clear(self) -> None:
        for name in (JOURNAL, CACHE_FILE):  # first and durably, so that nothing trusts what is half deleted
            (self.directory / name).unlink(missing_ok=True)
        sync_directory(self.directory)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory)

    def _refuse_small_disk(self, workers: int) -> None:
        plan = self._plan
        needed = self.estimate(workers).n_bytes if plan.file_bytes is None else plan.file_bytes
        there = sum(file.stat().st_blocks * 512 for file in self.directory.iterdir())
        free = _free_bytes(self.directory)
        if needed - there > free:
            finding = f"needs {_gigabytes(needed)}, has {_gigabytes(there)}, and the disk has {_gigabytes(free)} free"
            remedy = f"Make room, name another directory, or choose {plan.encoding.smaller}"
            raise UnwritableError(errno.ENOSPC, f"{finding}. {remedy}; nothing was read", str(self.directory))


def _identify(source: FrameSource) -> dict[str, list[int]]:
    """The identity of the files of a source: size and modification time by name."""
    identity: dict[str, list[int]] = {}
    missing = []
    for path in source.files():
        name = path.relative_to(source.root).as_posix()
        try:
            status = os.stat(path)
        except OSError as error:
            missing.append(f"{path} cannot be read: {error.strerror}")
            continue
        identity[name] = [status.st_size, status.st_mtime_ns]
    if missing:
        raise DataError(str(source.root), [*missing, "a frame cache is found by the files that it was made from"])
    return identity


def _free_bytes(directory: Path) -> int:
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3g} GB" if n_bytes >= 1e7 else f"{n_bytes / 1e6:.3g} MB"
