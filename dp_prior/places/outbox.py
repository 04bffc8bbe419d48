"""Checkpoints that wait to leave this machine, as directories under RUN/outbox; they survive a kill and a power cut.

An entry is made of hard links to the files of a checkpoint, which never change, so it costs no space and retention may
delete the checkpoint meanwhile. It appears whole, by a rename. Of each kind (`latest`, `best`) only the newest waits,
besides one that is just being sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_prior.durable import (
    is_alive,
    is_temporary,
    owner_of,
    replace_file,
    seal,
    sync_directory,
    temporary_beside,
    unseal,
)

OUTBOX = "outbox"
INTENT = "intent.json"
CARD = "card"  # pictures for the model card, within an entry
MANIFEST = "manifest.json"
_STATE = "state.json"
_LOCK = "outbox.lock"
_NAME = re.compile(r"(\d{8,})_(latest|best)")


@dataclass(frozen=True)
class Entry:
    """One checkpoint that waits.

    Attributes:
        directory: the files of the checkpoint, its manifest, the intent, and perhaps a `card` directory.
        kind: `latest` or `best`: what it becomes at its destination.
        name: of its folder there, `step_00012000`.
        digest: SHA-256 of its manifest.
    """

    directory: Path
    kind: str
    name: str
    step: int
    digest: str


class Outbox:
    """The entries for one destination. Any thread may put; one process at a time sends, see `exclusively`."""

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
        """Add a durable checkpoint. When this returns, it will be sent, whatever is killed meanwhile.

        Args:
            files: those of the checkpoint that are sent; None for all of its manifest.
            media: pictures for the model card by file name; copied.
            scores: what the final test measured, for the model card.
        """
        manifest = unseal((source / MANIFEST).read_bytes())
        entries = {name: entry for name, entry in manifest["files"].items() if files is None or name in files}
        sealed = seal({**manifest, "files": entries})
        name = source.name if re.fullmatch(r"step_\d{8,}(_\d+)?", source.name) else f"step_{manifest['step']:08d}"
        intent = {"name": name, "step": manifest["step"], "scores": scores or {}}
        with self._lock:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            number = max((int(_NAME.fullmatch(path.name)[1]) for path in self._paths()), default=0) + 1
            target = self.directory / f"{number:08d}_{kind}"
            temporary = temporary_beside(target)
            temporary.mkdir()
            try:
                for file in entries:
                    _link(source / file, temporary / file)
                if media:
                    (temporary / CARD).mkdir()
                    for file, path in media.items():
                        shutil.copyfile(path, temporary / CARD / file)
                replace_file(temporary / MANIFEST, sealed)
                replace_file(temporary / INTENT, seal(intent))
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_directory(self.directory)
            self._coalesce(kind, target)

    def waiting(self) -> list[Entry]:
        """The newest entry of each kind, older first; damaged entries are removed."""
        with self._lock:
            newest: dict[str, Entry] = {}
            for path in self._paths():
                try:
                    intent = unseal((path / INTENT).read_bytes())
                    manifest = (path / MANIFEST).read_bytes()
                    unseal(manifest)
                except (OSError, ValueError):
                    _delete(path)
                    continue
                kind, digest = _NAME.fullmatch(path.name)[2], hashlib.sha256(manifest).hexdigest()
                newest[kind] = Entry(path, kind, intent["name"], intent["step"], digest)
            return sorted(newest.values(), key=lambda entry: entry.directory.name)

    @contextlib.contextmanager
    def sending(self, entries: list[Entry]) -> Iterator[None]:
        """While inside, these entries stay even if newer ones come."""
        with self._lock:
            self._sending = frozenset(entry.directory for entry in entries)
        try:
            yield
        finally:
            with self._lock:
                self._sending = frozenset()

    def remove(self, entries: list[Entry]) -> None:
        """These entries have arrived, and with each of them whatever is older and of its kind."""
        with self._lock:
            for entry in entries:
                self._coalesce(entry.kind, entry.directory)
                _delete(entry.directory)

    def exclusively(self) -> contextlib.ExitStack | None:
        """The right to send, until the result is closed; None while another process has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        stack = contextlib.ExitStack()
        file = stack.enter_context((self.directory / _LOCK).open("ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stack.close()
            return None
        return stack

    def read_state(self) -> dict[str, Any]:
        """What the sender wrote last; empty if that cannot be read."""
        try:
            return unseal((self.directory / _STATE).read_bytes())
        except (OSError, ValueError):
            return {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Keep what the next sender has to know; a full disk only makes it forget."""
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            replace_file(self.directory / _STATE, seal(state))

    def _paths(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))

    def _coalesce(self, kind: str, newest: Path) -> None:
        for path in self._paths():
            is_older = path.name < newest.name and _NAME.fullmatch(path.name)[2] == kind
            if is_older and path not in self._sending:
                _delete(path)

    def _remove_stale(self) -> None:
        for path in self.directory.iterdir():
            if is_temporary(path) and is_alive(*owner_of(path)) is False:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())


def _delete(path: Path) -> None:
    doomed = temporary_beside(path)
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)
