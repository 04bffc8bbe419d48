"""The checkpoints of one run: what is good, what is newest, what is best, what may go.

Truth is the scan of directories with a sound manifest; `index.json` repeats it for human readers and is only a hint.
Damaged checkpoints are renamed and named, never deleted. Whoever changes anything here holds the run's lock.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dp_prior.checkpoints.format import (
    MANIFEST,
    CheckpointError,
    DamagedError,
    Manifest,
    read_checkpoint,
    read_manifest,
    unused,
    verify,
    write_checkpoint,
)
from dp_prior.checkpoints.lock import RunLock
from dp_prior.checkpoints.retention import Mode, Record, RetentionConfig, ranked
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.clock import Progress
from dp_prior.durable import (
    encode_document,
    is_alive,
    is_temporary,
    owner_of,
    replace_file,
    sync_directory,
    temporary_beside,
)

INDEX = "index.json"
STEP = re.compile(r"step_(\d{8,})(_\d+)?")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """A checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def progress(self) -> Progress:
        """The clock when it was saved."""
        return Progress(self.manifest.samples_seen, self.manifest.step)

    def record(self, monitor: str | None) -> Record:
        """What retention knows of it."""
        value = None if monitor is None else self.manifest.metrics.get(monitor)
        return Record(self.manifest.sequence, self.manifest.step, value)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has just become durable.

    Attributes:
        is_latest: False only for one that holds NaN or infinity, which is kept for inspection and never resumed from.
        is_best: whether the run measured its best value here.
    """

    path: Path
    progress: Progress
    metrics: dict[str, float]
    is_latest: bool
    is_best: bool
    nonfinite: list[str]


class CheckpointStore:
    """Saves and finds the checkpoints of one run, in `root`; the run directory around it is what gets locked."""

    def __init__(
        self,
        root: Path,
        retention: RetentionConfig,
        *,
        monitor: str | None = None,
        mode: Mode = "min",
        world_size: int = 1,
    ):
        """
        Args:
            root: `RUN/checkpoints`; created by `lock`.
            monitor: name of the metric that selects the best, None for no best.
            mode: whether small or large values of it are good.
            world_size: ranks that train, for the record.
        """
        self.root = Path(root)
        self.retention = retention
        self.monitor = monitor
        self.mode = mode
        self.world_size = world_size
        self._lock: RunLock | None = None
        self._verified: set[Path] = set()
        self._sequence: int | None = None  # of the last save

    def lock(self, wait_s: float = 10.0) -> RunLock:
        """Take the run directory for this process, try that it can be written, and clear what dead processes left.

        Raises:
            LockedError: another run works there.
            CheckpointError: the directory cannot be written.
        """
        self._lock, self._sequence = RunLock(self.root.parent, wait_s), None
        try:
            self.root.mkdir(exist_ok=True)
            for created in (self.root.parent, self.root.parent.parent):
                sync_directory(created)
            self.write_index()
        except OSError as error:
            self._lock.release()
            raise CheckpointError(
                f"cannot write in {self.root}: {error.strerror}. No checkpoint could be saved; "
                "make it writable, free space, or choose another directory."
            ) from None
        self._remove_stale()
        return self._lock

    @property
    def _is_locked(self) -> bool:
        return self._lock is not None and self._lock.is_held

    def good(self) -> Iterator[Stored]:
        """Checkpoints from newest to oldest, each with all its hashes compared just before it is given out."""
        for stored in self._scan():
            if self._is_sound(stored):
                yield stored

    def latest(self) -> Path | None:
        """The newest good checkpoint."""
        return next((stored.path for stored in self.good()), None)

    def best(self) -> Path | None:
        """The good checkpoint with the best value of the monitored metric; of equal ones the older."""
        return next((stored.path for stored in self._by_rank(self._scan()) if self._is_sound(stored)), None)

    def recover(self) -> tuple[Path, Snapshot] | None:
        """The newest good checkpoint and its content, read and compared in one go; None if there is none."""
        for stored in self._scan():
            try:
                snapshot = read_checkpoint(stored.path)
            except DamagedError as damage:
                self._set_aside(damage)
                continue
            self._verified.add(stored.path)
            return stored.path, snapshot
        return None

    def write(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool = False) -> Saved:
        """Save a snapshot that does not change meanwhile; then apply retention. When this returns it is durable.

        Args:
            metrics: what was measured at this very step; a value carried over from an earlier one would be ranked anew.
            is_best: passed on to whoever is told; the best by rank is found from the metrics.

        Raises:
            CheckpointError: it could not be saved. Older checkpoints are as they were.
        """
        if not self._is_locked:
            raise RuntimeError("the run directory is not locked; call lock() before write()")
        manifest = Manifest(
            sequence=self._next_sequence(),
            step=progress.global_step,
            samples_seen=progress.samples_seen,
            world_size=self.world_size,
            config_hash=_config_hash(snapshot),
            metrics={name: _finite_or_none(value) for name, value in metrics.items()},
            monitor=self.monitor,
            mode=self.mode,
            saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        path, manifest = self._write(snapshot, manifest)
        self._verified.add(path)
        if manifest.nonfinite:
            log.warning(
                "checkpoint %s holds NaN or infinity in %s; it is kept for inspection and is never latest or best",
                path,
                _some(manifest.nonfinite),
            )
            return Saved(path, progress, metrics, is_latest=False, is_best=False, nonfinite=manifest.nonfinite)
        self.prune()
        return Saved(path, progress, metrics, is_latest=True, is_best=is_best, nonfinite=[])

    def _write(self, snapshot: Snapshot, manifest: Manifest) -> tuple[Path, Manifest]:
        """Write under a name not yet used. After an I/O error all is written anew: a failed sync may drop pages."""
        name = f"step_{manifest.step:08d}"
        needed = snapshot.nbytes
        for is_last_attempt in (False, True):
            try:
                free = _free_bytes(self.root)
                if free is not None and free < needed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
                return write_checkpoint(unused(self.root / name), snapshot, manifest)
            except OSError as error:
                if error.errno != errno.EIO or is_last_attempt:
                    raise CheckpointError(self._failure(name, error, needed)) from error
                log.warning("writing %s failed with an I/O error; writing it anew", self.root / name)
        raise AssertionError("the last attempt returns or raises")

    def _failure(self, name: str, error: OSError, needed: int) -> str:
        free = _free_bytes(self.root)
        newest = next(iter(self._scan()), None)
        rest = f"the newest is {newest.path.name}" if newest is not None else "there are none yet"
        return (
            f"cannot save checkpoint {name} in {self.root}: {error.strerror} ({error.filename}); it needs "
            f"{_size(needed)} and {'an unknown amount' if free is None else _size(free)} is free. "
            f"Older checkpoints are intact; {rest}. Free space or repair the disk, then start the same command again."
        )

    def prune(self) -> list[Path]:
        """Update the pointers, then delete what retention drops. Only checkpoints known to be good count as kept.

        Returns:
            What was deleted.
        """
        while True:
            stored = self._scan()
            records = [one.record(self.monitor) for one in stored]
            kept = self.retention.kept(records, self.mode)
            if all([self._is_sound(one) for one in stored if one.manifest.sequence in kept]):
                break
        try:
            self.write_index([one for one in stored if one.manifest.sequence in kept])
        except OSError as error:  # the new checkpoint is durable, and the index only repeats what a scan finds
            log.warning("%s cannot be updated: %s", self.root / INDEX, error)
        dropped = [one.path for one in stored if one.manifest.sequence not in kept]
        return [path for path in dropped if self._delete(path)]

    def write_index(self, stored: list[Stored] | None = None) -> None:
        """Repeat in `index.json` what a scan finds, or has found."""
        stored = self._scan() if stored is None else stored
        best = next(iter(self._by_rank(stored)), None)
        index = {
            "latest": stored[0].path.name if stored else None,
            "best": best.path.name if best is not None else None,
            "monitor": self.monitor,
            "mode": self.mode,
            "kept": [
                {"name": one.path.name, "step": one.manifest.step, "value": one.record(self.monitor).value}
                for one in stored
            ],
        }
        replace_file(self.root / INDEX, encode_document(index))

    def _scan(self) -> list[Stored]:
        """Checkpoints whose manifest and sizes are right, newest first; the others are set aside."""
        found, damages = scan(self.root)
        for damage in damages:
            self._set_aside(damage)
        return found

    def _by_rank(self, stored: list[Stored]) -> list[Stored]:
        by_sequence = {one.manifest.sequence: one for one in stored}
        return [by_sequence[r.sequence] for r in ranked([one.record(self.monitor) for one in stored], self.mode)]

    def _is_sound(self, stored: Stored) -> bool:
        """Compare all hashes, once in the life of this process; set the checkpoint aside if they differ."""
        if stored.path in self._verified:
            return True
        try:
            verify(stored.path, stored.manifest)
        except DamagedError as damage:
            self._set_aside(damage)
            return False
        self._verified.add(stored.path)
        return True

    def _set_aside(self, damage: DamagedError) -> None:
        if not self._is_locked:
            log.warning("skipping checkpoint %s: %s", damage.path, damage.problem)
            return
        aside = unused(damage.path.with_name(f"damaged_{damage.path.name}"))
        try:
            os.rename(damage.path, aside)
            sync_directory(self.root)
        except OSError as error:
            raise CheckpointError(f"{damage} It cannot be renamed: {error.strerror}.") from None
        log.warning("checkpoint %s is damaged: %s; it was set aside as %s", damage.path, damage.problem, aside.name)

    def _delete(self, path: Path) -> bool:
        """First out of sight, then the manifest, then the rest: at no time does half a checkpoint look whole."""
        doomed = temporary_beside(path)
        try:
            os.rename(path, doomed)
            sync_directory(self.root)
            (doomed / MANIFEST).unlink()
            shutil.rmtree(doomed)
        except OSError as error:
            log.warning("checkpoint %s is no longer needed but cannot be deleted: %s", path, error)
            return False
        return True

    def _remove_stale(self) -> None:
        for path in [*self.root.iterdir(), *self.root.parent.iterdir()]:
            if not is_temporary(path):
                continue
            host, pid = owner_of(path)
            lives = is_alive(host, pid) and pid != os.getpid()  # our own id: an earlier process that had it
            if lives is None:
                log.warning("%s was left by process %s on host %s; delete it if that is over", path, pid, host)
            elif not lives:
                try:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                except OSError as error:
                    log.warning("%s was left by a dead process and cannot be deleted: %s", path, error)

    def _next_sequence(self) -> int:
        """Looked up once: while the directory is locked nobody else adds to it."""
        if self._sequence is None:
            self._sequence = max((one.manifest.sequence for one in self._scan()), default=0)
        self._sequence += 1
        return self._sequence


def scan(root: Path) -> tuple[list[Stored], list[DamagedError]]:
    """Checkpoints with a sound manifest and files of the right sizes, newest first; and the others. Read-only."""
    found, damages = [], []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        name = STEP.fullmatch(path.name)
        if name is None or not path.is_dir():
            continue
        try:
            manifest = read_manifest(path)
            if manifest.step != int(name[1]):
                raise DamagedError(path, f"{MANIFEST} is that of step {manifest.step}")
            found.append(Stored(path, manifest))
        except DamagedError as damage:
            damages.append(damage)
    found.sort(key=lambda stored: stored.manifest.sequence, reverse=True)
    return found, damages


def _config_hash(snapshot: Snapshot) -> str | None:
    """As `Config.digest`: independent of the order of keys."""
    if "config.json" not in snapshot.documents:
        return None
    text = json.dumps(snapshot.documents["config.json"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _finite_or_none(value: float) -> float | None:
    value = float(value)
    return value if value - value == 0.0 else None


def _free_bytes(path: Path) -> int | None:
    """Bytes that may still be written, None where the file system does not tell."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
