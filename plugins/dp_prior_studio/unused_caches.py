"""Frame caches that no configuration uses any more: found by name, removed individually."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dp_prior.data.errors import DataError
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.layout import CACHE_FILE, JOURNAL
from dp_prior.files.json_text import unseal

_CACHE_NAME = re.compile("(numbers-)?[0-9a-f]{32}")


@dataclass(frozen=True)
class UnusedCache:
    """A cache in a directory of caches."""

    directory: Path
    n_bytes: int
    """Room that it takes on the disk."""

    source: str
    """The data set that it was made from, or why that is not known."""

    def __str__(self) -> str:
        return f"{self.directory}  {self.n_bytes / 1e9:.3f} GB  {self.source}"

    def remove(self) -> None:
        """Delete the cache; a run that is reading its frames goes on.

        Raises:
            DataError: a process builds it.
        """

        def refuse() -> None:
            raise DataError(str(self.directory), ["is being built by another process; it was not removed"])

        lock = self.directory.with_name(f"{self.directory.name}.lock")
        with build_lock(lock, lambda line: None, lambda: "", refuse):
            for name in (CACHE_FILE, JOURNAL):  # first, so that nothing trusts what is half deleted
                (self.directory / name).unlink(missing_ok=True)
            shutil.rmtree(self.directory)
            lock.unlink(missing_ok=True)


def unused_caches(used: Collection[Path]) -> list[UnusedCache]:
    """The caches beside those at `used`, largest first."""
    caches = []
    for root in sorted({path.parent for path in used}):
        for path in sorted(root.iterdir()) if root.is_dir() else []:
            is_cache = _CACHE_NAME.fullmatch(path.name) and any(
                (path / name).is_file() for name in (CACHE_FILE, JOURNAL)
            )
            if is_cache and path not in used:
                caches.append(UnusedCache(path, _room(path), _source(path)))
    return sorted(caches, key=lambda cache: -cache.n_bytes)


def _room(directory: Path) -> int:
    room = 0
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            room += file.stat().st_blocks * 512
    return room


def _source(directory: Path) -> str:
    try:
        return f"from {unseal((directory / CACHE_FILE).read_bytes())['source']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "not complete"
