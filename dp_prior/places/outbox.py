"""The upload queue on disk: checkpoints that wait in RUN/outbox/PLACE and survive a kill or a power cut.

An entry holds hard links to the immutable files of a checkpoint: the links cost no space, and retention may delete the
checkpoint meanwhile. An entry appears by a rename. Only the newest entry of each kind (`latest`, `best`) waits, besides
an entry that is being sent.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.format import MANIFEST, CheckpointError, DamagedError, delete_checkpoint, parse_manifest
from dp_prior.checkpoints.scan import STEP
from dp_prior.files.durable import link_or_copy, replace_file, sync_directory, temporary_directory
from dp_prior.files.json_text import seal, unseal
from dp_prior.files.locks import FileLock
from dp_prior.files.regular_files import read_small
from dp_prior.files.temporary import remove_leftovers
from dp_prior.places.parcel import CARD_FACTS, INTENT, Parcel

OUTBOX = "outbox"
_STATE = "state.json"
_LOCK = "outbox.lock"
_ENTRY_NAME = re.compile(r"\d{8,20}_(latest|best)")


class Outbox:
    """The queue for one destination. Any thread may put; one process at a time sends, see `exclusively`."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._lock = threading.Lock()
        self._sending: frozenset[Path] = frozenset()

    def put(
        self,
        kind: str,
        source: Path,
        *,
        files: tuple[str, ...] | None = None,
        media: dict[str, Path] | None = None,
        scores: dict[str, float] | None = None,
    ) -> None:
        """Add a durable checkpoint. When this returns, the entry is durable.

        Args:
            files: names of the files to send; None for all files of the manifest.
            media: pictures and pages for the model card by file name; copied.
            scores: metrics of the final test, for the model card.
        """
        manifest = parse_manifest(read_small(source / MANIFEST), source).only(files)
        name = source.name if STEP.fullmatch(source.name) else manifest.folder
        with self._lock:
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory)
            number = max((int(path.name.partition("_")[0]) for path in self._paths()), default=0) + 1
            target = self.directory / f"{number:08d}_{kind}"
            with temporary_directory(target) as temporary:
                for file in manifest.files:
                    link_or_copy(source / file, temporary / file)
                if media:
                    (temporary / CARD_FACTS).mkdir()
                    for file, path in media.items():
                        replace_file(temporary / CARD_FACTS / file, path.read_bytes())
                replace_file(temporary / MANIFEST, manifest.encode())
                intent = {"name": name, "step": manifest.step, "scores": scores or {}}
                replace_file(temporary / INTENT, seal(intent))
                os.rename(temporary, target)
            sync_directory(self.directory)
            self._coalesce(target)

    def waiting(self) -> list[Parcel]:
        """The newest entry of each kind, older first; damaged entries are removed."""
        with self._lock:
            newest: dict[str, Parcel] = {}
            for path in self._paths():
                kind = _kind(path)
                try:
                    newest[kind] = Parcel.of(path, (kind,))
                except (FileNotFoundError, ValueError, KeyError, DamagedError):
                    _delete(path)
                except (OSError, CheckpointError):  # too many open files, or of a newer version: perhaps later
                    continue
            return sorted(newest.values(), key=lambda parcel: parcel.directory.name)

    @contextlib.contextmanager
    def sending(self, parcels: list[Parcel]) -> Iterator[None]:
        """A context in which newer entries do not replace `parcels`."""
        with self._lock:
            self._sending = frozenset(parcel.directory for parcel in parcels)
        try:
            yield
        finally:
            with self._lock:
                self._sending = frozenset()

    def remove(self, parcels: list[Parcel]) -> None:
        """Delete delivered entries, and older entries of the same kind."""
        with self._lock:
            for parcel in parcels:
                self._coalesce(parcel.directory)
                _delete(parcel.directory)

    def exclusively(self) -> FileLock | None:
        """The exclusive right to send, until released; None while another process holds the lock.

        Raises:
            OSError: the outbox cannot be written, or its file system does not support flock.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        return FileLock.take(self.directory / _LOCK)

    def read_state(self) -> dict[str, Any]:
        """The state that the sender wrote last; {} if unreadable."""
        try:
            return unseal(read_small(self.directory / _STATE))
        except (OSError, ValueError):
            return {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Store the state for the next sender; on a full disk the state is lost."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            replace_file(self.directory / _STATE, seal(state))

    def _paths(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if _ENTRY_NAME.fullmatch(path.name))

    def _coalesce(self, newest: Path) -> None:
        """Delete entries of the same kind that are older than `newest`."""
        for path in self._paths():
            if path.name < newest.name and _kind(path) == _kind(newest) and path not in self._sending:
                _delete(path)


def _kind(path: Path) -> str:
    return path.name.rpartition("_")[2]


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process that sends was faster
        delete_checkpoint(path)
