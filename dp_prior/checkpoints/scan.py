"""Finds the checkpoints in a directory. Compares manifests and file sizes, not hashes; changes nothing."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from dp_prior.checkpoints.errors import DamagedError, GoneError, UnreadableCheckpointError
from dp_prior.checkpoints.format import MANIFEST, Manifest, try_manifest, verify
from dp_prior.checkpoints.reading import Patience, holds_links, told_apart

STEP = re.compile(r"step_([0-9]{8,19})(_[0-9]+)?")
_SCAN_ATTEMPTS = 5  # attempts if the directory is replaced during each


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint on disk.

    Attributes:
        is_linked: whether the directory is or contains a symbolic link; a linked checkpoint is only read.
    """

    path: Path
    manifest: Manifest
    is_linked: bool = False

    def value(self, monitor: str | None) -> float | None:
        """A metric; None if it was not measured."""
        return None if monitor is None else self.manifest.metrics.get(monitor)


def scan(root: Path) -> tuple[list[StoredCheckpoint], list[DamagedError]]:
    """Checkpoints with a valid manifest and files of the right size, newest first; and the damaged ones. Read-only.

    Raises:
        UnreadableCheckpointError: the directory or a checkpoint in it cannot be read.
    """
    checkpoints, problems = scan_all(root)
    for problem in problems:
        if isinstance(problem, UnreadableCheckpointError):
            raise problem
    return checkpoints, problems


def scan_all(root: Path) -> tuple[list[StoredCheckpoint], list[DamagedError | UnreadableCheckpointError]]:
    """The checkpoints of `scan`, newest first, and the errors of all others in order of their names."""
    patience = Patience()
    names = patience(lambda: names_in(root))
    entries = [checkpoint_at(root / name, patience) for name in names if STEP.fullmatch(name)]
    checkpoints = [entry for entry in entries if isinstance(entry, StoredCheckpoint)]
    checkpoints.sort(key=lambda stored: stored.manifest.sequence, reverse=True)
    return checkpoints, [entry for entry in entries if isinstance(entry, (DamagedError, UnreadableCheckpointError))]


def checkpoint_at(
    path: Path, patience: Patience, *, compare_hashes: bool = False
) -> StoredCheckpoint | DamagedError | UnreadableCheckpointError | None:
    """The checkpoint at a path, or its error. None if `path` is not a directory or was deleted meanwhile."""
    for _ in range(_SCAN_ATTEMPTS):
        try:
            stored = patience(lambda: _checkpoint_at(path))
            if stored is not None and compare_hashes:
                verify(path, stored.manifest, patience)
            return stored
        except GoneError:
            continue
        except (DamagedError, UnreadableCheckpointError) as problem:
            return problem
    return None


def names_in(root: Path) -> list[str]:
    """Names of all entries, sorted; an empty list for a directory that does not exist."""
    try:
        return sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnreadableCheckpointError(root, f"its directory cannot be listed: {error.strerror}") from None


def _checkpoint_at(path: Path) -> StoredCheckpoint | None:
    name = STEP.fullmatch(path.name)
    assert name is not None, path
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return None
    except FileNotFoundError:
        if os.path.islink(path):
            raise DamagedError(path, f"it is a link to {os.readlink(path)}, which does not exist") from None
        return None
    except OSError as error:
        raise UnreadableCheckpointError(path, error.strerror) from None
    manifest = try_manifest(path)
    if manifest.step != int(name[1]):
        raise DamagedError(path, f"{MANIFEST} is that of step {manifest.step}")
    with told_apart(path, "its directory"):
        return StoredCheckpoint(path, manifest, holds_links(path))
