"""Builds a frame cache: reads files in parallel, and makes each episode durable separately.

A build that dies at any moment goes on with the episodes that `episodes.jsonl` lists; a line is appended only after the
frames that it speaks of were synced to disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.errors import MOST_PROBLEMS_SHOWN, DataError
from dp_prior.data.frames import FramePart, FrameSource
from dp_prior.data.frames.encodings import Encoding
from dp_prior.data.frames.layout import CACHE_FILE, JOURNAL, CacheIndex, StoredEpisode, read_journal
from dp_prior.data.frames.pixel_file import write_all
from dp_prior.files.durable import replace_file, sync_directory
from dp_prior.files.json_text import seal
from dp_prior.files.printable import as_unicode, duration
from dp_prior.tensors.pixels.resize import Fit

SYNC_EVERY_S = 1.0


@dataclass(frozen=True)
class Plan:
    """The planned content of a cache, and its directory."""

    source: FrameSource
    fit: Fit
    encoding: Encoding
    directory: Path

    @property
    def lengths(self) -> np.ndarray:
        """(E,) frames of each episode."""
        return np.diff(self.source.ends, prepend=0)

    @property
    def n_frames(self) -> int:
        """Frames in all."""
        return int(self.source.ends[-1])

    @property
    def file_bytes(self) -> int | None:
        """See `Encoding.file_bytes`."""
        return self.encoding.file_bytes(self.n_frames, self.fit.size)

    def done(self) -> dict[int, StoredEpisode]:
        """Episodes that an earlier build has made durable."""
        return read_journal(self.directory, self.encoding.files[0], self.file_bytes)

    def frames(self, block: np.ndarray) -> Tensor:
        """(k, H, W, channels) of the source -> (k, h, w, channels), as they are stored."""
        return self.encoding.pixels(self.fit.apply(torch.from_numpy(np.require(block, requirements="CW"))))

    def count(self, episodes: Iterable[int]) -> int:
        """Frames of these episodes."""
        return int(self.lengths[list(episodes)].sum())


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is."""

    frames_done: int
    frames: int
    frames_per_s: float
    seconds_left: float

    def __str__(self) -> str:
        done = f"{self.frames_done:,} of {self.frames:,} frames, {self.frames_per_s:,.0f} frames/s"
        return f"{done}, {duration(self.seconds_left)} left" if self.seconds_left < float("inf") else done


def build(
    plan: Plan, workers: int, progress: Callable[[BuildProgress], None], check: Callable[[], None] = lambda: None
) -> None:
    """Read every episode that is not stored yet, and complete the cache.

    Args:
        check: called about once per second; its exception ends the build. The episodes read so far stay.

    Raises:
        DataError: files cannot be read, or do not match the rows; one line for each. The other episodes stay.
        OSError: the cache cannot be written.
    """
    with _Writer(plan) as writer:
        _Build(plan, writer, progress, check).run(workers)
        writer.complete()


class _Writer:
    """The files of a cache that is being built. Threads write episodes; `sync`, in one thread, makes them durable."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._lock = threading.Lock()
        self._written: list[StoredEpisode] = []

    def __enter__(self) -> _Writer:
        plan = self._plan
        plan.directory.mkdir(exist_ok=True)
        self.done = plan.done()
        self._files = [_open(plan.directory / name) for name in plan.encoding.files]
        self._journal = _open(plan.directory / JOURNAL)
        lines = b"".join(episode.line() for episode in self.done.values())
        os.ftruncate(self._journal, len(lines))  # cuts off a line that a crash tore
        os.lseek(self._journal, len(lines), os.SEEK_SET)
        end = max((episode.stop for episode in self.done.values()), default=0)
        self._frames = plan.encoding.writer(self._files, plan.n_frames, plan.fit.size, end)
        sync_directory(plan.directory)
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._files, self._journal):
            os.close(file)

    def write(self, number: int, blocks: Iterable[Tensor]) -> StoredEpisode:
        """Store the frames of an episode, which come as blocks of (k, h, w, channels)."""
        row = int(self._plan.source.ends[number] - self._plan.lengths[number])
        sha256, end = self._frames.write(row, blocks)
        return StoredEpisode(number, sha256, end)

    def note(self, episode: StoredEpisode) -> None:
        """Take an episode whose frames are written and known to be right."""
        with self._lock:
            self._written.append(episode)

    def sync(self) -> None:
        """Make all that was noted durable."""
        with self._lock:
            written, self._written = self._written, []
        if not written:
            return
        for file in self._files:
            os.fsync(file)
        write_all(self._journal, memoryview(b"".join(episode.line() for episode in written)))
        os.fsync(self._journal)
        self.done |= {episode.number: episode for episode in written}

    def complete(self) -> None:
        """Declare the cache complete."""
        plan = self._plan
        index = CacheIndex(
            source=as_unicode(str(plan.source.root.absolute())),
            fit=plan.fit,
            encoding=plan.encoding,
            ends=plan.source.ends.tolist(),
            sizes={n: os.fstat(file).st_size for n, file in zip(plan.encoding.files, self._files, strict=True)},
            digests=[self.done[number].sha256 for number in range(len(plan.lengths))],
        )
        for file in self._files:
            os.fsync(file)
        replace_file(plan.directory / CACHE_FILE, seal(index.model_dump(mode="json")))
        os.unlink(plan.directory / JOURNAL)


class _Stopped(Exception):
    """The build ends early; episodes in progress are dropped."""


class _Build:
    """Reads the parts of a source in threads: decoders and codecs release Python's interpreter lock.

    Threads and not processes: nothing is started or copied, and no orphan writes on after the builder was killed.
    """

    def __init__(
        self, plan: Plan, writer: _Writer, progress: Callable[[BuildProgress], None], check: Callable[[], None]
    ):
        self._plan, self._writer, self._progress, self._check = plan, writer, progress, check
        self._stop = threading.Event()
        self._read = 0
        self._lock = threading.Lock()

    def run(self, workers: int) -> None:
        """Read everything that is not done; raise all that cannot be read."""
        began = next_sync = time.monotonic()
        before = self._plan.count(self._writer.done)
        parts = [part for part in self._plan.source.parts if not self._writer.done.keys() >= set(part.episodes)]
        self._reads_ahead = len(parts) < workers
        problems: list[str] = []
        with ThreadPoolExecutor(workers, thread_name_prefix="frames") as pool:
            running: set[Future[None]] = set()
            try:
                while parts or running:
                    self._check()
                    while parts and len(running) < workers:
                        running.add(pool.submit(self._read_part, parts.pop(0)))
                    finished, running = wait(running, SYNC_EVERY_S, FIRST_COMPLETED)
                    problems += _problems_of(finished)
                    if len(problems) >= MOST_PROBLEMS_SHOWN:
                        parts.clear()
                    if time.monotonic() >= next_sync:
                        self._writer.sync()
                        self._report(before, time.monotonic() - began)
                        next_sync = time.monotonic() + SYNC_EVERY_S
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                self._writer.sync()
        if problems:
            raise DataError(str(self._plan.source.root), problems)
        self._report(before, time.monotonic() - began)

    def _report(self, before: int, seconds: float) -> None:
        rate, done = self._read / max(seconds, 1e-9), before + self._read
        seconds_left = (self._plan.n_frames - done) / rate if rate else float("inf")
        self._progress(BuildProgress(done, self._plan.n_frames, rate, seconds_left))

    def _read_part(self, part: FramePart) -> None:
        """Store the remaining episodes of a part. Episodes are stored in file order, so the finished ones come
        first."""
        lengths = self._plan.lengths
        done = 0
        while part.episodes[done] in self._writer.done:
            done += 1
        with contextlib.closing(self._fitted(part, self._plan.count(part.episodes[:done]))) as blocks:
            cutter = _Cutter(blocks)
            stored: StoredEpisode | None = None
            for number in part.episodes[done:]:
                if stored is not None:
                    self._writer.note(stored)
                stored = self._writer.write(number, cutter.take(int(lengths[number])))
            cutter.finish(part)  # the source compares counts at the end of a file, and may refuse it
            if stored is not None:
                self._writer.note(stored)

    def _fitted(self, part: FramePart, skip: int) -> Iterator[Tensor]:
        blocks = self._plan.source.read(part, skip)
        for block in _read_ahead(blocks) if self._reads_ahead else blocks:
            if self._stop.is_set():
                raise _Stopped
            yield self._plan.frames(block)
            with self._lock:
                self._read += len(block)


def _read_ahead(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks while a thread decodes the next one, for cores without a file of their own."""
    with ThreadPoolExecutor(1, thread_name_prefix="frames_ahead") as pool:
        following = pool.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = pool.submit(next, blocks, None)
            yield block


class _Cutter:
    """Cuts a stream of blocks of frames into episodes."""

    def __init__(self, blocks: Iterator[Tensor]):
        self._blocks = blocks
        self._rest: Tensor | None = None

    def take(self, count: int) -> Iterator[Tensor]:
        """The next `count` frames."""
        while count:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._blocks)
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece

    def finish(self, part: FramePart) -> None:
        """Read to the end, where no frame may be left."""
        surplus = 0 if self._rest is None else len(self._rest)
        surplus += sum(map(len, self._blocks))
        if surplus:
            raise DataError(part.where, [f"holds {surplus} frames more than its episodes have rows"])


def _problems_of(finished: Iterable[Future[None]]) -> list[str]:
    problems = []
    for future in finished:
        error = future.exception()
        if isinstance(error, DataError):
            problems += [f"{error.source}: {problem}" for problem in error.problems]
        elif error is not None:
            raise error
    return problems


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
