"""The budgets of the processes that read a cache now: the largest of these holds, so that a process with a small budget
removes nothing that a process with a larger budget is about to read.

Each process holds the lock of a file whose name begins with the budget; the system frees the lock when the process
ends.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from dp_prior.files.locks import FileLock

SUFFIX = ".budget"

_announced: dict[Path, tuple[Path, FileLock]] = {}
"""File and lock of this process for each folder of locks."""


def announce_budget(folder: Path, n_bytes: int) -> None:
    """Announce the budget of this process, in place of the budget that it announced before; called by one process at a
    time. Args: folder: of the locks."""
    withdraw_budget(folder)
    path = folder / f"{n_bytes}-{uuid.uuid4().hex[:8]}{SUFFIX}"
    lock = FileLock.take(path)
    assert lock is not None, path
    _announced[folder] = path, lock


def withdraw_budget(folder: Path) -> None:
    """Withdraw the budget that this process announced, if it did."""
    if folder in _announced:
        path, lock = _announced.pop(folder)
        with lock:
            path.unlink(missing_ok=True)


def largest_other_budget(folder: Path) -> int:
    """The largest budget of other processes that run, 0 without such a process; called by one process at a time."""
    largest = 0
    own_path, _ = _announced.get(folder, (None, None))
    for path in folder.glob(f"*{SUFFIX}"):
        size = path.name.partition("-")[0]
        if path == own_path or not size.isdecimal():
            continue
        try:
            lock = FileLock.take(path)
        except OSError:  # of another user, whose process may run
            lock = None
        if lock is None:
            largest = max(largest, int(size))
            continue
        with lock:
            path.unlink(missing_ok=True)
    return largest
