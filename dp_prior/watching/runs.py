"""The runs below a directory: found, and read again when their files have changed.

Nothing outside the directory is read: links to folders are not followed, and a run one of whose files is a link that
leads out is shown as unreadable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.pages.run_page import run_page
from dp_prior.pages.story import read_story
from dp_prior.run_files.exit_file import EXIT
from dp_prior.run_files.scores import MEDIA, PAGE, RESULT
from dp_prior.tracking.identity import IDENTITY
from dp_prior.tracking.jsonl import EVENTS, ROWS
from dp_prior.watching.summary import Summary, summarise

PAGES_KEPT = 16
"""Pages in memory; one with films has up to 8 MB."""

SHARE = 0.05
"""Most of its time that the server spends searching for runs."""

_FILES = (CONFIG, EXIT, IDENTITY, ROWS, EVENTS, RESULT, MEDIA)

Version = tuple[tuple[str, int, int, int], ...]
"""Names, inodes, sizes and times of the files of a run; another one when a file has changed."""


class _Page(NamedTuple):
    """The page of a run: when its drawing began, and what the run was then."""

    begun: float
    state: tuple[Version, str]
    html: str


class Runs:
    """Safe to call from several threads.

    A run is named by its place: its path below the directory, with `/`, and empty for the directory itself.
    """

    def __init__(self, root: Path):
        """Args: root: the directory."""
        self.root = root.resolve()
        self._lock, self._drawing = threading.Lock(), threading.Lock()  # of summaries, and of pages
        self._places: tuple[str, ...] = ()
        self._next_search = 0.0
        self._known: dict[str, tuple[Version | None, Summary]] = {}
        self._pages: dict[str, _Page] = {}  # the least recently opened first

    def summaries(self) -> dict[str, Summary]:
        """The summary of every run, by place."""
        with self._lock:
            self._search()
            self._known = {place: found for place in self._places if (found := self._read(place)) is not None}
            return {place: summary for place, (_, summary) in self._known.items()}

    def one(self, place: str) -> tuple[Version | None, Summary]:
        """The version of the files of a run, None if they are not read, and its summary.

        Raises:
            FileNotFoundError: there is no such run.
        """
        with self._lock:
            if place not in self._places:
                self._search()
            found = self._read(place) if place in self._places else None
            if found is None:
                raise FileNotFoundError(f"there is no run {place!r} below {self.root}")
            self._known[place] = found
            return found

    def page(self, place: str) -> str:
        """The page of a run, as HTML.

        Raises:
            FileNotFoundError: there is no such run.
            PermissionError: it is not read.
            Exception: whatever else damaged files raise.
        """
        asked = time.monotonic()
        with self._drawing:
            begun, state = time.monotonic(), self._allowed(place)
            known = self._pages.pop(place, None)
            was_made_meanwhile = known is not None and known.begun >= asked
            if known is None or not (known.state == state or was_made_meanwhile):
                run = self.root / place
                known = _Page(begun, state, run_page(read_story(run), run / PAGE).render())
            self._pages[place] = known
            if len(self._pages) > PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
            return known.html

    def media(self, place: str, name: str) -> Path:
        """The path of a film or picture of a run.

        Raises:
            FileNotFoundError: there is no such run or file.
            PermissionError: the run is not read.
        """
        self._allowed(place)
        folder = self.root / place / MEDIA
        if name not in os.listdir(folder):  # no separator and no `..` is the name of a file
            raise FileNotFoundError(f"there is no film or picture {name!r} of the run {place!r}")
        return folder / name

    def _allowed(self, place: str) -> tuple[Version, str]:
        """The version and the state of a run that may be read."""
        version, summary = self.one(place)
        if version is None:
            raise PermissionError(summary.problem)
        return version, summary.state

    def _search(self) -> None:
        """Find the places of all runs, unless that was done a moment ago."""
        begin = time.monotonic()
        if begin >= self._next_search:
            self._places = tuple(self._find())
            end = time.monotonic()
            self._next_search = end + (end - begin) / SHARE

    def _find(self) -> Iterator[str]:
        """Runs are not searched for others, nor are hidden folders."""
        for folder, inside, files in os.walk(self.root):
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            if ROWS in files or EXIT in files:
                inside.clear()
                yield "" if Path(folder) == self.root else Path(folder).relative_to(self.root).as_posix()

    def _read(self, place: str) -> tuple[Version | None, Summary] | None:
        """As `one`; None if the run is gone."""
        name = (self.root / place).name
        try:
            version = self._version(place)
        except PermissionError as error:
            return None, Summary(name, problem=str(error))
        except OSError:
            return None
        known = self._known.get(place)
        if known is not None and known[0] == version:
            return known
        try:
            return version, summarise(read_story(self.root / place))
        except Exception as error:  # files of a run may hold anything; the others are shown nevertheless
            return version, Summary(name, problem=f"{type(error).__name__}: {error}")

    def _version(self, place: str) -> Version:
        """
        Raises:
            PermissionError: a file is a link that leads out of the directory, or may not be read.
            OSError: the run is gone.
        """
        run, found = self.root / place, []
        if os.path.realpath(run) != str(run):  # since it was found
            raise PermissionError(f"{place} is a link; the run is not read")
        with os.scandir(run) as entries:
            for entry in entries:
                if entry.name in _FILES:
                    self._check_link(entry)
                    told = entry.stat(follow_symlinks=False)
                    found.append((entry.name, told.st_ino, told.st_size, told.st_mtime_ns))
        if (run / MEDIA).is_dir():
            with os.scandir(run / MEDIA) as entries:
                for entry in entries:
                    self._check_link(entry)
        return tuple(sorted(found))

    def _check_link(self, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(self.root):
            where = Path(entry.path).relative_to(self.root)
            raise PermissionError(f"{where} is a link that leads out of {self.root}; the run is not read")
