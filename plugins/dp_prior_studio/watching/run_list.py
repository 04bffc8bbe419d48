"""Finds the runs below a directory, and reads a run again when its files have changed.

Nothing outside the directory is read: links to folders are not followed, and a run with a link that leads out of the
directory is shown as unreadable.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.run.exit_file import EXIT
from dp_prior.run.scores import MEDIA, PAGE, RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import EVENTS, ROWS
from dp_prior.tracking.row_log import MOST_ROWS, RowLog
from dp_prior_studio.pages.run_page import run_page
from dp_prior_studio.pages.story import read_story
from dp_prior_studio.watching.summary import Summary, summarise

ROWS_KEPT = 16 * MOST_ROWS
"""Rows of all logs that are kept in memory, so that only new lines are read: of 16 long logs, of more long ones fewer
rows each, or of many short ones."""

FEWEST_ROWS = 1000
"""Rows of a long log that are kept beside however many others; a chart has no more points across."""

LONGEST_WAIT_S = 90.0
"""Seconds that a request waits for other pages to be drawn."""

PAGES_KEPT = 16
"""Pages kept in memory; a page with films takes up to 8 MB."""

REREAD_S = 10.0
"""Seconds after which a run that the system refused to read is read again, though no file has changed."""

SHARE = 0.05
"""Largest share of the server's time spent searching for runs."""

_WATCHED_FILES = (CONFIG, EXIT, IDENTITY, ROWS, EVENTS, RESULT, MEDIA)

Version = tuple[tuple[str, int, int, int], ...]
"""Names, inodes, sizes and times of the files of a run; differs once a file has changed."""


class _Page(NamedTuple):
    """A rendered page, with the time at which rendering began and the run's state at this time."""

    begun: float
    state: tuple[Version, str, str | None]
    html: str


class _Reading(NamedTuple):
    """The newest reading of a run.

    Attributes:
        version: of the files; None if they may not be read.
        end: time after which the run is read again though its files have not changed.
    """

    version: Version | None
    summary: Summary
    end: float = math.inf

    def is_current(self, version: Version) -> bool:
        """Whether it still holds, for a version of the files."""
        return self.version == version and time.monotonic() < self.end


class BusyError(RuntimeError):
    """Other pages take too long to draw."""


class Runs:
    """The runs below a directory. Safe to call from several threads.

    A run is named by its place: the path relative to the directory, with `/`; empty for the directory itself.
    """

    def __init__(self, root: Path):
        """Args: root: the directory."""
        self.root = root.resolve()
        self._lock = threading.Lock()  # of the dictionaries below; held for moments
        self._drawing = threading.Lock()  # matplotlib draws one page at a time
        self._reading: dict[str, threading.Lock] = {}  # one for each run, so that a slow one delays no other
        self._logs: dict[str, RowLog] = {}  # the least recently read first
        self._places: tuple[str, ...] = ()
        self._next_search = 0.0
        self._known: dict[str, _Reading] = {}
        self._pages: dict[str, _Page] = {}  # the least recently opened first

    def summaries(self) -> dict[str, Summary]:
        """The summary of every run, by place."""
        with self._lock:
            self._search()
            places = self._places
        readings = {place: self._read(place) for place in places}
        known_runs = {place: reading for place, reading in readings.items() if reading is not None}
        with self._lock:
            self._known = known_runs
        return {place: reading.summary for place, reading in known_runs.items()}

    def one(self, place: str) -> tuple[Version | None, Summary]:
        """The version of a run's files, None if the run may not be read; and the run's summary.

        Raises:
            FileNotFoundError: there is no such run.
        """
        with self._lock:
            if place not in self._places:
                self._search()
            is_known = place in self._places
        reading = self._read(place) if is_known else None
        if reading is None:
            raise FileNotFoundError(f"there is no run {place!r} below {self.root}")
        return reading.version, reading.summary

    def page(self, place: str) -> str:
        """The page of a run, as HTML.

        Raises:
            FileNotFoundError: there is no such run.
            PermissionError: the run may not be read.
            BusyError: other pages took too long.
            Exception: any error that damaged files cause.
        """
        asked, state, page = time.monotonic(), self._allowed(place), self._pages.get(place)
        if page is not None and page.state == state:  # a page that is there waits for no other
            with self._lock:
                self._pages[place] = self._pages.pop(place, page)
            return page.html
        if not self._drawing.acquire(timeout=LONGEST_WAIT_S):
            raise BusyError(f"other pages took {LONGEST_WAIT_S:g} s to draw; load this one again")
        try:
            begun, state = time.monotonic(), self._allowed(place)
            page = self._pages.pop(place, None)
            was_made_meanwhile = page is not None and page.begun >= asked
            if page is None or not (page.state == state or was_made_meanwhile):
                run = self.root / place
                page = _Page(begun, state, run_page(read_story(run, self._log(place)), run / PAGE).render())
            with self._lock:
                self._pages[place] = page
                if len(self._pages) > PAGES_KEPT:
                    del self._pages[next(iter(self._pages))]
            return page.html
        finally:
            self._drawing.release()

    def media(self, place: str, name: str) -> Path:
        """The path of a film or picture of a run.

        Raises:
            FileNotFoundError: the run or the file does not exist.
            PermissionError: the run may not be read.
        """
        self._allowed(place)
        folder = self.root / place / MEDIA
        if name not in os.listdir(folder):  # refuses names with a separator, and `..`
            raise FileNotFoundError(f"there is no film or picture {name!r} of the run {place!r}")
        return folder / name

    def _allowed(self, place: str) -> tuple[Version, str, str | None]:
        """The version, the state and the problem of a run.

        Raises:
            PermissionError: the run may not be read.
        """
        version, summary = self.one(place)
        if version is None:
            raise PermissionError(summary.problem)
        return version, summary.state, summary.problem

    def _search(self) -> None:
        """Find the places of all runs; at most `SHARE` of the time is spent here."""
        begin = time.monotonic()
        if begin >= self._next_search:
            self._places = tuple(self._find())
            end = time.monotonic()
            self._next_search = end + (end - begin) / SHARE

    def _find(self) -> Iterator[str]:
        """The places of all runs; does not search inside runs or hidden folders."""
        for folder, inside, files in os.walk(self.root):
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            if ROWS in files or EXIT in files:
                inside.clear()
                yield "" if Path(folder) == self.root else Path(folder).relative_to(self.root).as_posix()

    def _log(self, place: str) -> RowLog:
        """The log of a run, whose rows are kept."""
        with self._lock:
            log = self._logs[place] = self._logs.pop(place, None) or RowLog(self.root / place / ROWS)
            log.most = min(log.most, max(FEWEST_ROWS, ROWS_KEPT // max(1, len(self._places))))
            while len(self._logs) > 1 and sum(run_log.n_kept for run_log in self._logs.values()) > ROWS_KEPT:
                del self._logs[next(iter(self._logs))]
            return log

    def _read(self, place: str) -> _Reading | None:
        """Read a run unless its last reading is current; None if the run is gone."""
        with self._lock:
            turn = self._reading.setdefault(place, threading.Lock())
        with turn:
            reading = self._read_anew(place)
            if reading is not None:
                self._known[place] = reading
            return reading

    def _read_anew(self, place: str) -> _Reading | None:
        name, end = (self.root / place).name, math.inf
        try:
            version = self._version(place)
        except PermissionError as error:
            return _Reading(None, Summary(name, problem=str(error)))
        except OSError:
            return None
        newest = self._known.get(place)
        if newest is not None and newest.is_current(version):
            return newest
        try:
            summary = summarise(read_story(self.root / place, self._log(place)))
        except Exception as error:  # files of a run may hold anything; other runs are still shown
            summary = Summary(name, problem=f"{type(error).__name__}: {error}")
            if isinstance(error, (OSError, MemoryError)):  # of the system, which may read the same files later
                end = time.monotonic() + REREAD_S
        return _Reading(version, summary, end)

    def _version(self, place: str) -> Version:
        """The present version of a run's files.

        Raises:
            PermissionError: a file is a link that leads out of the directory, or may not be read.
            OSError: the run is gone.
        """
        run, files = self.root / place, []
        if os.path.realpath(run) != str(run):  # replaced by a link since the search
            raise PermissionError(f"{place} is a link; the run is not read")
        with os.scandir(run) as entries:
            for entry in entries:
                if entry.name in _WATCHED_FILES:
                    self._check_link(entry)
                    status = entry.stat(follow_symlinks=False)
                    files.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
        if (run / MEDIA).is_dir():
            with os.scandir(run / MEDIA) as entries:
                for entry in entries:
                    self._check_link(entry)
        return tuple(sorted(files))

    def _check_link(self, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(self.root):
            where = Path(entry.path).relative_to(self.root)
            raise PermissionError(f"{where} is a link that leads out of {self.root}; the run is not read")
