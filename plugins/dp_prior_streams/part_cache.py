"""Folders of a cache within a budget of bytes, the least recently used removed first, shared by processes.

A folder appears when its content is complete. Its maker reserves the bytes first, so the disk never holds more than the
budget.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError, UnreadableError, UnwritableError
from dp_prior.data.files import Verify
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.files.durable import FULL, publish, replace_file, try_writing
from dp_prior.files.locks import POLL_S
from dp_prior.files.temporary import is_temporary, remove_leftovers, temporary_beside
from dp_prior_streams.sealed_folder import SealedFolder, seal_folder
from dp_prior_streams.shared_budget import announce_budget, largest_other_budget

log = logging.getLogger(__name__)

RESERVED = "reserved"
"""File in a folder that is being made: the number of its bytes when complete."""

SPARSE = ".sparse"
"""Ending of a file that takes less of the disk than its size."""

TOUCH_EVERY_S = 1.0

OTHER_FOLDER = "name a folder in data.episodes.cache that this user may write"

FULL_BELOW = 1 << 20
"""Free bytes below which a disk counts as full, where a failed write has no other reason."""


class NoRoomError(ConfigError):
    """The contents that stay leave no room in the budget for another content; the message names the content with its
    bytes, the budget, and the budget that would do."""


class PartCache:
    """Complete folders by name.

    Attributes:
        folder: holds the folders, and every other file that counts against the budget.
        verify: how a complete folder is checked at its first use; see `SealedFolder.fault`.
        look: called while another process is waited for; its error ends the wait.
    """

    def __init__(self, folder: Path, budget: int):
        """Args: budget: bytes of everything below `folder`.

        Raises:
            UnwritableError: the folder cannot be written.
        """
        self.folder, self._budget = folder, budget
        self._parts = folder / "parts"
        self._locks = folder / "locks"
        for path in (self._parts, self._locks):
            prepare_folder(path)
        self._touched: dict[str, float] = {}
        self._sealed: dict[str, SealedFolder] = {}
        self.verify: Verify = "sizes"
        self.look: Callable[[], object] = lambda: None
        remove_leftovers(self._parts)
        with self._locked("budget.lock"):
            announce_budget(self._locks, budget)

    def path(self, name: str) -> Path:
        """The folder of this name, complete or absent."""
        return self._parts / name

    def has(self, name: str, file: str | None = None) -> bool:
        """Whether a folder is complete and its content the one that was written; counts as a use of the folder.

        Args:
            file: the only file to compare if all were compared before.
        """
        sealed = self.sealed(name)
        if (file is None or not sealed.is_current(file)) and sealed.fault(self.verify) is not None:
            return False
        if time.monotonic() - self._touched.get(name, -TOUCH_EVERY_S) >= TOUCH_EVERY_S:
            with contextlib.suppress(OSError):  # another process has just made room
                os.utime(self.path(name))
            self._touched[name] = time.monotonic()
        return True

    def sealed(self, name: str) -> SealedFolder:
        """The folder of this name, and the checks of its content."""
        sealed = self._sealed.get(name)
        return sealed or self._sealed.setdefault(name, SealedFolder(self.path(name), name))  # one for all threads

    def make(
        self, name: str, n_bytes: int, fill: Callable[[Path], None], needed: Collection[str], *, waits: bool = True
    ) -> Path:
        """Make the folder of a name unless the folder is complete; one process works while the others wait.

        Args:
            n_bytes: the most that the folder takes, while it is filled and afterwards.
            fill: writes the content into an empty folder.
            needed: names that are not removed to make room.
            waits: for room that other folders take only while they are made.

        Raises:
            NoRoomError: the other needed folders leave no room.
        """
        if self.has(name):
            return self.path(name)
        with self._locked(f"{name}.lock"):
            if self.has(name):
                return self.path(name)
            if self.path(name).exists():
                log.warning("%s is made again: %s", self.path(name), self.sealed(name).fault(self.verify))
                _remove(self.path(name))  # first, since the budget may have no room for both
            with self.borrowed(name, n_bytes, needed, waits=waits) as temporary, written_here(temporary):
                fill(temporary)
                (temporary / RESERVED).unlink()
                seal_folder(temporary, name)
                publish(temporary, self.path(name))
        return self.path(name)

    @contextlib.contextmanager
    def borrowed(
        self, name: str, n_bytes: int, needed: Collection[str], *, waits: bool = True, called: str = ""
    ) -> Iterator[Path]:
        """Open an empty folder with room for `n_bytes`, which is removed at the end; see `make`. Args: called: name for
        messages; empty for `name`."""
        temporary = temporary_beside(self.path(name))
        try:
            while not self._reserve(temporary, called or name, n_bytes, needed):
                if not waits:
                    raise self._no_room(called or name, n_bytes)
                self.look()
                time.sleep(POLL_S)
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def trim(self) -> None:
        """Remove folders, the least recently used first, until the rest is within the budget.

        While another process with a larger budget reads the cache, that budget holds.
        """
        with self._locked("budget.lock"):
            remove_leftovers(self._parts)
            entries, other = sorted(self._entries()), largest_other_budget(self._locks)
            if other > self._budget:
                here, there = (f"{n_bytes / 1e9:g}" for n_bytes in (self._budget, other))
                log.warning(
                    "disk_gb is %s, but another process reads %s with %s until it ends", here, self.folder, there
                )
            excess = self.permanent_bytes() + sum(size for _, _, size in entries) - max(self._budget, other)
            _remove_first({path: size for _, path, size in entries if not is_temporary(path)}, excess)

    def used(self) -> int:
        """Bytes of everything below the folder, with what is reserved."""
        with self._locked("budget.lock"):
            return sum(size for _, _, size in self._entries()) + self.permanent_bytes()

    def keep(self, name: str, content: bytes) -> None:
        """Write a file below the folder that stays there, and make room for it."""
        with self.borrowed("kept", len(content), (), called=name):
            (self.folder / name).parent.mkdir(exist_ok=True)
            replace_file(self.folder / name, content)

    def _no_room(self, called: str, n_bytes: int, least: int | None = None) -> NoRoomError:
        """The error of a content without room. Args: least: bytes of the smallest budget, if known."""
        reason = f"{called} takes {n_bytes:,} bytes beside what must stay in {self.folder}"
        return too_small(self._budget / 1e9, reason, least, NoRoomError)

    def _reserve(self, temporary: Path, called: str, n_bytes: int, needed: Collection[str]) -> bool:
        """Create a folder with room for its content; False if only folders that are being made leave no room."""
        with self._locked("budget.lock"):
            remove_leftovers(self._parts)
            entries = sorted(self._entries())  # the least recently used first
            budget = max(self._budget, largest_other_budget(self._locks))
            missing = n_bytes + self.permanent_bytes() + sum(size for _, _, size in entries) - budget
            in_progress = [size for _, path, size in entries if is_temporary(path)]
            removable = {}
            for _, path, size in entries:
                if path.name not in needed and not is_temporary(path):
                    removable[path] = size
            if missing > sum(removable.values()):
                if not sum(in_progress):
                    raise self._no_room(called, n_bytes, budget + missing - sum(removable.values()))
                return False
            _remove_first(removable, missing)
            temporary.mkdir()
            (temporary / RESERVED).write_text(str(n_bytes))
            return True

    def _entries(self) -> list[tuple[float, Path, int]]:
        """Last use, path and bytes of each folder."""
        entries = []
        for path in self._parts.iterdir():
            with contextlib.suppress(OSError, ValueError):  # of a folder that appears or goes meanwhile
                if not path.is_dir():
                    continue
                size, reserved = _size_of(path), path / RESERVED
                size = max(size, int(reserved.read_text())) if reserved.exists() else size
                entries.append((path.stat().st_mtime, path, size))
        return entries

    def permanent_bytes(self) -> int:
        """Bytes of what is never removed: metadata, manifest, statistics."""
        return sum(_size_of(path) for path in self.folder.iterdir() if path != self._parts)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with cache_lock(self._locks / name, lambda: self.look()):
            yield


@contextlib.contextmanager
def cache_lock(path: Path, look: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a file of a cache. Args: look: called while another process holds the lock.

    Raises:
        UnwritableError: the file cannot be created or locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(build_lock(path, lambda line: None, lambda: "", look))
        except DataError as error:
            finding = error.problems[0].partition(";")[0]
            raise UnwritableError(f"{path} {finding}; {OTHER_FOLDER}") from None
        yield


def prepare_folder(path: Path) -> None:
    """Create a folder of a cache, and check that files can be written there.

    Raises:
        UnwritableError: they cannot.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        try_writing(path)


def _remove_first(sizes: dict[Path, int], n_bytes: int) -> None:
    """Remove folders, from the first on, until `n_bytes` are free."""
    for path, size in sizes.items():
        if n_bytes <= 0:
            break
        _remove(path)
        n_bytes -= size


@contextlib.contextmanager
def written_here(path: Path) -> Iterator[None]:
    """Name the place of a file that does not fit the disk of this machine.

    Raises:
        UnwritableError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        # NumPy gives no number of the error
        is_full = error.errno in FULL or (error.errno is None and shutil.disk_usage(path.parent).free < FULL_BELOW)
        if isinstance(error, (UnreadableError, UnwritableError)) or not is_full:
            raise
        finding = f"{path} cannot be written ({os.strerror(error.errno or errno.ENOSPC)})"
        raise UnwritableError(f"{finding}; make room, or name another folder in data.episodes.cache") from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name a file or a folder in every error of the system while it is written.

    Raises:
        UnwritableError: it cannot be written.
    """
    try:
        with written_here(path):
            yield
    except UnwritableError:
        raise
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written ({os.strerror(error.errno)}); {OTHER_FOLDER}") from None


def empty_folder(folder: Path) -> None:
    """Remove what was written into a folder that is being made."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != RESERVED:
            path.unlink()


def _remove(folder: Path) -> None:
    """Remove a folder that other processes may be about to open."""
    doomed = temporary_beside(folder)
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


def budget_bytes(disk_gb: float) -> int:
    """Bytes of a budget in GB of 10^9 bytes."""
    return int(disk_gb * 1e9)


def too_small(
    disk_gb: float, reason: str, least_bytes: int | None = None, error: type[ConfigError] = ConfigError
) -> ConfigError:
    """The error of a budget that training cannot work with. Args: least_bytes: of the smallest budget, if known."""
    remedy = "raise it" if least_bytes is None else f"set it to {_rounded_up(least_bytes)} or more"
    return error("data.episodes", [f"disk_gb is {disk_gb:g}, but {reason}; {remedy}"])


def _rounded_up(n_bytes: int) -> str:
    """GB with three digits, and no fewer."""
    step = 10.0 ** (math.floor(math.log10(n_bytes)) - 2)
    return f"{math.ceil(n_bytes / step) * step / 1e9:.3g}"


def _size_of(path: Path) -> int:
    if not path.is_dir():
        with contextlib.suppress(OSError):
            status = path.stat()
            return min(status.st_size, status.st_blocks * 512) if path.suffix == SPARSE else status.st_size
        return 0
    return sum(_size_of(child) for child in path.iterdir())
