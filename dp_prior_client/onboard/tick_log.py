"""TickLog: writes every tick of an agent to a file per episode, in a thread, so that the control loop never waits.

The files are `.npz` archives of one row per tick, which `dp-prior inspect` reads as a data set. The file of the running
episode is replaced every few seconds by a longer one, so that a killed process loses the last seconds at most.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import time
import weakref
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

if TYPE_CHECKING:
    from dp_prior_client.onboard.obs_spec import ObsSpec

FLUSH_S, BUSY_SHARE = 5.0, 0.05
"""Seconds between two writes of the running episode at least, and largest share of the time that the thread writes."""

MOST_ROWS = 10_000
"""Ticks of a file; a longer episode goes on in another file."""

MOST_NUMBERS = 64
"""Width of an observation beyond which its checksum is logged instead of its numbers."""

LIMITS = {"range": 1, "step": 2, "distance": 4}
"""Bits of the kinds of limits in the array `limits`; `REFUSED` is the bit of all numbers of a refused action."""

REFUSED = 8

MOST_TICKS, POLL_S = 10_000, 0.2
"""Ticks that may wait for the thread before further ones are dropped, and seconds between two looks of the thread."""

MOST_SUMMED = 128 << 10
"""Bytes of an observation that its checksum is made of, about."""

CHUNK_COLUMNS = ("chunk", "chunk_start")
"""Columns of ticks at which a chunk begins; others have a value at every tick."""

META, FORMAT = "meta.json", "dp_prior ticks 1"

log = logging.getLogger(__name__)


class Tick(NamedTuple):
    """One control step."""

    time: float
    """Seconds since 1970."""

    episode: int
    step: int

    obs: Mapping[str, np.ndarray]
    """(*shape) by key."""

    action: np.ndarray
    """(action_dim,) the action within the limits that clip, also if refused, or not commanded in a dry run."""

    chunk: np.ndarray | None = None
    """(n, action_dim) the chunk whose execution begins at this tick; None at the ticks that go on with it."""

    chunk_start: int = 0
    """Index in `chunk` of the action of this tick."""

    late_s: float = 0.0
    """Seconds without a new action, this step included: `action` is held, or given by `LoopLimits.then`; 0 for a new
    action."""

    problems: Sequence[tuple[str, int]] = ()
    """Kind and number of the limits that the action, or an action of a chunk that begins, exceeds."""

    is_refused: bool = False
    """Whether the action was refused."""

    is_dry: bool = False
    """Whether the robot was commanded to stay instead."""


class Recorder:
    """Notes the ticks of one agent; `TickLog.recorder` makes it.

    Attributes:
        reads: of the agent's policy; None if not known.
    """

    def __init__(self, log: TickLog, reads: ObsSpec | None):
        self._log, self.reads = log, reads

    def note(self, tick: Tick) -> None:
        """Hand a tick to the thread; never waits for it, and raises nothing."""
        try:
            row = _row(tick)
        except Exception:  # a fault of the log is none of the robot's
            self._log.fail()
        else:
            self._log.put(self, (tick.episode, tick.step, row))

    def end(self) -> None:
        """Finish the file of the episode; the next tick begins another one."""
        self._log.put(self, None)


class TickLog:
    """The log of one agent or of several, in a folder with a file per episode, `episode_000000.npz` and so on.

    An array `obs.KEY` holds the numbers of a narrow observation, `crc32.KEY` the checksum of any other; `action`,
    `time`, `episode`, `step`, `late_s` and `is_dry` are those of `Tick`, and `limits` has for each number of the action
    the bits of `LIMITS`. `chunk`, `chunk_start` and `chunk_row`, the row of the tick, have an entry per chunk.

    Attributes:
        dropped: ticks that are missing, because the disk was too slow or they could not be logged.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        flush_s: float = FLUSH_S,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            folder: is made where missing; older files stay, and new files get higher numbers.
            flush_s: seconds of the running episode that a killed process may lose.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder):  # a log that cannot be written is noticed before the robot moves
            pass
        self.dropped = 0
        self._has_failed = False
        self._ticks: deque = deque()  # whose ends are safe without a lock, and whose use wakes no thread
        is_ending = threading.Event()
        writer = _LogWriter(self.folder, self._ticks, flush_s, monotonic)
        thread = threading.Thread(target=writer.run, args=(is_ending,), name="tick log", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _stop, is_ending, thread)  # at the end of the program, too

    def recorder(self, reads: ObsSpec | None = None) -> Recorder:
        """Notes the ticks of one agent. Args: reads: names of the numbers, and the rate, which the files then state."""
        return Recorder(self, reads)

    def close(self) -> None:
        """Write what is noted and end the thread."""
        self._stop()

    def __enter__(self) -> TickLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def put(self, recorder: Recorder, entry: Any) -> None:
        """Let the thread take what a recorder has noted."""
        if len(self._ticks) < MOST_TICKS:
            self._ticks.append((recorder, entry))
            return
        self.dropped += 1
        if self.dropped == 1:
            log.warning("ticks are missing in the log %s: its disk is slower than the robot", self.folder)

    def fail(self) -> None:
        """Tell of an exception, once: what a tick holds cannot be logged."""
        self.dropped += 1
        if not self._has_failed:
            self._has_failed = True
            log.exception("a tick cannot be logged in %s; further such errors are not shown", self.folder)


def _stop(is_ending: threading.Event, thread: threading.Thread) -> None:
    is_ending.set()
    if threading.current_thread() is not thread:  # which may drop the last reference to the log
        thread.join()


class _LogWriter:
    """The thread's side: collects rows by agent, and writes files."""

    def __init__(self, folder: Path, ticks: deque, flush_s: float, monotonic: Callable[[], float]):
        self._folder, self._ticks, self._flush_s, self._monotonic = folder, ticks, flush_s, monotonic
        self._episodes: dict[Recorder, _Episode] = {}
        self._has_failed = False
        self._due = monotonic() + flush_s

    def run(self, is_ending: threading.Event) -> None:
        """Take ticks until the end."""
        while not is_ending.wait(POLL_S):
            self._take_all()
            if self._monotonic() >= self._due:
                self._flush()
        self._take_all()
        for recorder in list(self._episodes):
            self._finish(recorder)

    def _take_all(self) -> None:
        while self._ticks:
            recorder, entry = self._ticks.popleft()
            try:
                self._take(recorder, entry)
            except Exception as error:  # must not end the log of the next ticks
                self._fail(error)
            time.sleep(0)  # lets the control loop go first

    def _take(self, recorder: Recorder, entry: tuple[int, int, list[tuple[str, np.ndarray]]] | None) -> None:
        episode = self._episodes.get(recorder)
        if episode is not None and (entry is None or not episode.takes(*entry)):
            self._finish(recorder)
            episode = None
        if entry is None:
            return
        if episode is None:
            episode = self._episodes[recorder] = _Episode(self._folder, recorder.reads)
        episode.add(*entry)

    def _flush(self) -> None:
        start = self._monotonic()
        for episode in list(self._episodes.values()):
            self._write(episode, is_last=False)
        end = self._monotonic()
        self._due = end + max(self._flush_s, (end - start) / BUSY_SHARE)

    def _finish(self, recorder: Recorder) -> None:
        self._write(self._episodes.pop(recorder), is_last=True)

    def _write(self, episode: _Episode, is_last: bool) -> None:
        try:
            episode.write(is_durable=is_last)
            self._has_failed = False
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            log.error("the log %s cannot be written: %r; the robot goes on without", self._folder, error)
        self._has_failed = True


class _Episode:
    """The rows of one file."""

    def __init__(self, folder: Path, reads: ObsSpec | None):
        self._folder, self._path = folder, None
        self._meta = _metadata(reads)
        self._columns: dict[str, _Column] = {}
        self._layout: dict[str, Any] = {}
        self._rows = self._written = 0

    def takes(self, episode: int, step: int, row: list[tuple[str, np.ndarray]]) -> bool:
        """Whether this is a further row of this file, whose columns but those of chunks have a value in each row."""
        is_next = episode == self._episode and step >= self._step and self._rows < MOST_ROWS
        layout = {name: value.shape for name, value in row}
        is_alike = layout.keys() - CHUNK_COLUMNS == self._layout.keys() - CHUNK_COLUMNS
        return is_next and is_alike and all(self._layout.get(name, shape) == shape for name, shape in layout.items())

    def add(self, episode: int, step: int, row: list[tuple[str, np.ndarray]]) -> None:
        """Append a row."""
        self._episode, self._step = episode, step
        for name, value in row:
            self._layout[name] = value.shape
            self._append(name, value)
            if name == "chunk":
                self._append("chunk_row", np.int64(self._rows))
        self._rows += 1

    def _append(self, name: str, value: np.ndarray) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(value)
        self._columns[name].append(value)

    def write(self, is_durable: bool) -> None:
        """Replace the file by one with all rows so far.

        Raises:
            OSError: of the disk.
        """
        if self._written == self._rows and not is_durable:
            return
        temporary = self._folder / f".{os.getpid()}_{id(self)}.part"
        try:
            with open(temporary, "wb") as file:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                    archive.writestr(META, json.dumps(self._meta))
                    for name, column in self._columns.items():
                        _store(archive, name, column.rows)
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            self._path = self._path or _claimed(self._folder)
            os.replace(temporary, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._written = self._rows


class _Column:
    """An array that grows by a row at a time."""

    def __init__(self, row: Any):
        first = np.asarray(row)
        self._array, self._count = np.empty((64, *first.shape), first.dtype), 0

    def append(self, row: Any) -> None:
        """Append a row."""
        if self._count == len(self._array):
            larger = np.empty((2 * self._count, *self._array.shape[1:]), self._array.dtype)
            larger[: self._count] = self._array
            self._array = larger
        self._array[self._count] = row
        self._count += 1

    @property
    def rows(self) -> np.ndarray:
        """(rows, *shape) so far."""
        return self._array[: self._count]


def _row(tick: Tick) -> list[tuple[str, np.ndarray]]:
    """The columns of a tick; none refers to an array of the observations."""
    row = [
        ("time", np.float64(tick.time)),
        ("episode", np.int64(tick.episode)),
        ("step", np.int64(tick.step)),
        ("action", np.array(tick.action, np.float32)),
        ("late_s", np.float32(tick.late_s)),
        ("limits", _bits(tick)),
        ("is_dry", np.bool_(tick.is_dry)),
    ]
    for key, value in tick.obs.items():
        if value.dtype.kind in "biuf" and value.size <= MOST_NUMBERS:
            row.append((f"obs.{key}", value.astype(np.float32).reshape(-1)))
        else:
            row.append((f"crc32.{key}", np.uint32(checksum(value))))
    if tick.chunk is not None:
        row.append(("chunk", np.array(tick.chunk, np.float32)))
        row.append(("chunk_start", np.int64(tick.chunk_start)))
    return row


def checksum(value: np.ndarray) -> int:
    """CRC-32 of an observation; of a large one only every nth row counts, since the robot's computer has more to do."""
    stride = max(value.nbytes // MOST_SUMMED, 1)
    rows = value[::stride] if value.ndim > 1 else value
    return zlib.crc32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))


def _bits(tick: Tick) -> np.ndarray:
    """(action_dim,) uint8, see `LIMITS`."""
    bits = np.full(len(tick.action), REFUSED if tick.is_refused else 0, np.uint8)
    for kind, number in tick.problems:
        bits[number] |= LIMITS[kind]
    return bits


def _metadata(reads: ObsSpec | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"format": FORMAT}
    if reads is not None:
        names = {f"obs.{key}": list(entry.names) for key, entry in reads.observations.items() if entry.names}
        action = () if reads.action is None else reads.action.names
        metadata["names"] = {**names, **({"action": list(action)} if action else {})}
        metadata["fps"] = reads.fps
        if reads.action is not None and reads.action.motion is not None:
            answers = reads.action.motion.answers
            metadata["answers"] = [None if place is None else [f"obs.{place[0]}", place[1]] for place in answers]
    return metadata


def _claimed(folder: Path) -> Path:
    """A new file with the next free number."""
    numbers = [path.stem.rpartition("_")[2] for path in folder.glob("episode_*.npz")]
    number = max([int(text) for text in numbers if text.isdecimal()], default=-1) + 1
    while True:
        path = folder / f"episode_{number:06}.npz"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:  # of another process
            number += 1
        else:
            return path


def _store(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    header = {"descr": npy_format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        npy_format.write_array_header_1_0(stream, header)
        stream.write(array.reshape(-1).view(np.uint8).data)  # zipfile of Python 3.8 takes len() for the bytes
