"""The checkpoints of one run: saves, verifies and deletes them, and finds the newest and the best.

The source of truth is a `scan`; `index.json` is only a summary for people. Damaged checkpoints are renamed, never
deleted; symbolic links, and directories that contain one, are archived checkpoints and only read. Only the holder of
the run's lock changes the directory, so the holder scans once and caches the result.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.errors import CheckpointError, DamagedError, GoneError
from dp_prior.checkpoints.format import Manifest, delete_checkpoint, read_manifest, unused, verify, write_checkpoint
from dp_prior.checkpoints.reading import holds_links
from dp_prior.checkpoints.retention import MonitorMode, RetentionConfig, ranked
from dp_prior.checkpoints.run_lock import RunLock
from dp_prior.checkpoints.scan import STEP, StoredCheckpoint, names_in, scan
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.config.record import digest_of
from dp_prior.files.durable import replace_file, sync_directory
from dp_prior.files.json_text import encode_document, finite
from dp_prior.files.temporary import is_alive, remove_leftovers

INDEX = "index.json"
SET_ASIDE = "damaged_"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has just become durable.

    Attributes:
        is_latest: False only if a tensor holds NaN or infinity; the run never resumes from such a checkpoint.
        is_best: whether the run measured its best value here.
        took_s: seconds from the copy of the snapshot until the checkpoint was durable; 0 without a `CheckpointWriter`.
    """

    path: Path
    progress: Progress
    metrics: dict[str, float]
    is_latest: bool
    is_best: bool
    took_s: float = 0.0


class CheckpointStore:
    """Saves and finds the checkpoints of one run, in `root`; locks the run directory, the parent of `root`."""

    def __init__(
        self,
        root: Path,
        retention: RetentionConfig,
        *,
        monitor: str | None = None,
        mode: MonitorMode = "min",
        world_size: int = 1,
    ):
        """
        Args:
            root: `RUN/checkpoints`; created by `lock`.
            monitor: name of the metric that selects the best checkpoint; None for no best.
            mode: whether small or large values of `monitor` are good.
            world_size: number of ranks that train, for the manifest.
        """
        self.root = Path(root)
        self.retention = retention
        self.monitor = monitor
        self.mode = mode
        self.world_size = world_size
        self._lock: RunLock | None = None
        self._verified: set[Path] = set()
        self._known: list[StoredCheckpoint] | None = None  # newest first, while locked; None: to be scanned
        self._sequence = 0  # of the last save

    def lock(self, wait_s: float = 10.0) -> RunLock:
        """Lock the run directory, check that it is writable, and delete leftovers of other processes.

        Raises:
            LockedError: another run uses the directory.
            CheckpointError: the directory cannot be read or written.
        """
        self._lock, self._known, self._sequence = RunLock(self.root.parent, wait_s), None, 0
        try:
            self.root.mkdir(exist_ok=True)
            sync_directory(self.root.parent)
            with contextlib.suppress(PermissionError):  # a writable directory may be unreadable
                sync_directory(self.root.parent.parent)
            # First, to free space. Only the lock holder writes in `root`, so every temporary file there is stale, also
            # one with another host's name: a container gets a new host name at each start. In the run directory other
            # live processes of this host may be writing; a leftover with our own id is of an earlier process.
            remove_leftovers(self.root, is_stale=lambda host, pid: True)
            remove_leftovers(self.root.parent, is_stale=lambda host, pid: pid == os.getpid() or not is_alive(host, pid))
            self.write_index()
        except BaseException as error:
            self._lock.release()
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(
                f"cannot write in {self.root}: {error.strerror} ({error.filename}). No checkpoint could be saved; "
                "make it writable, free space, or choose another directory."
            ) from None
        return self._lock

    @property
    def _is_locked(self) -> bool:
        return self._lock is not None and self._lock.is_held

    def check(self) -> None:
        """Raise a CheckpointError if the locked run directory was moved or deleted since."""
        if self._lock is not None:
            self._lock.check()

    def good(self) -> Iterator[StoredCheckpoint]:
        """Checkpoints from newest to oldest; compares all hashes of a checkpoint just before yielding it.

        Raises:
            UnreadableCheckpointError: a checkpoint cannot be read, so its state is unknown.
        """
        for stored in self._scan():
            if self._is_sound(stored):
                yield stored

    def latest(self) -> Path | None:
        """The newest good checkpoint; None if the run has no checkpoints.

        Raises:
            UnreadableCheckpointError: see `good`.
            CheckpointError: no existing checkpoint can be used; a silent fresh start would hide the damage.
        """
        newest = next((stored.path for stored in self.good()), None)
        names = [name for name in names_in(self.root) if STEP.fullmatch(name.removeprefix(SET_ASIDE))]
        if newest is None and names:
            run = self.root.parent
            raise CheckpointError(
                f"{self.root} holds checkpoints, but none of them can be used: {_some(names)}. A fresh start is "
                f"refused. Repair the files and run `dp-prior checkpoints repair {run}`, which restores those that "
                "verify again; or start in another directory (--resume never --set tracker.data_path=...), or here "
                "after moving them away."
            )
        return newest

    def best(self) -> Path | None:
        """The good checkpoint with the best value of the monitored metric, the older on a tie; None without any value.

        Raises:
            UnreadableCheckpointError: see `good`.
        """
        ranking = ranked(self._scan(), self.monitor, self.mode)
        return next((stored.path for stored in ranking if self._is_sound(stored)), None)

    def write(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool = False) -> Saved:
        """Save a snapshot durably, then apply retention. The snapshot must not change during the call.

        Args:
            metrics: measured at this step; a value carried over from an earlier step would be ranked twice.
            is_best: passed on in the result; `best` ranks by the metrics instead.

        Raises:
            CheckpointError: the save failed. Older checkpoints are unchanged.
        """
        if not self._is_locked:
            raise RuntimeError("the run directory is not locked; call lock() before write()")
        self.check()
        stored = self._remembered()
        self._sequence = max(self._sequence, stored[0].manifest.sequence if stored else 0) + 1
        manifest = Manifest(
            sequence=self._sequence,
            step=progress.global_step,
            samples_seen=progress.samples_seen,
            world_size=self.world_size,
            config_hash=digest_of(snapshot.documents[CONFIG]) if CONFIG in snapshot.documents else None,
            metrics=finite({name: float(value) for name, value in metrics.items()}),
            monitor=self.monitor,
            mode=self.mode,
            saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        try:
            path, manifest = self._write(snapshot, manifest)
        except CheckpointError:
            self._known = None  # the cached scan may be wrong
            self.check()  # raises a clearer error if the run directory is gone
            raise
        if manifest.nonfinite:
            log.warning(
                "checkpoint %s holds NaN or infinity in %s; it is kept for inspection and is never latest or best",
                path,
                _some(manifest.nonfinite),
            )
            return Saved(path, progress, metrics, is_latest=False, is_best=False)
        self._verified.add(path)
        stored.insert(0, StoredCheckpoint(path, manifest))
        try:
            self._retain()
        except CheckpointError as error:  # the new checkpoint is durable, and nothing is deleted
            log.warning("retention was not applied after %s: %s", path.name, error)
        return Saved(path, progress, metrics, is_latest=True, is_best=is_best)

    def _write(self, snapshot: Snapshot, manifest: Manifest) -> tuple[Path, Manifest]:
        """Write under an unused name. After an I/O error, write every file again: a failed sync may drop pages."""
        path = self.root / manifest.folder
        try:
            if (free := _free_bytes(self.root)) is not None and free < snapshot.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
            try:
                return write_checkpoint(unused(path), snapshot, manifest)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                log.warning("writing %s failed with an I/O error; writing it again", path)
                return write_checkpoint(unused(path), snapshot, manifest)
        except OSError as error:
            raise CheckpointError(self._failure(path.name, error, snapshot.nbytes)) from error

    def _failure(self, name: str, error: OSError, needed: int) -> str:
        free = _free_bytes(self.root)
        rest = f"the newest is {self._known[0].path.name}" if self._known else "there are none yet"
        is_limited = error.errno == errno.EFBIG
        remedy = "Raise the limit of file sizes (ulimit -f)" if is_limited else "Free space or repair the disk"
        return (
            f"cannot save checkpoint {name} in {self.root}: {error.strerror} ({error.filename}); it needs "
            f"{_size(needed)} and {'an unknown amount' if free is None else _size(free)} is free. "
            f"Older checkpoints are intact; {rest}. {remedy}, then start the same command again."
        )

    def prune(self) -> list[Path]:
        """Update `index.json`, then delete the checkpoints that retention drops. Only good checkpoints count as kept.

        Returns:
            The deleted directories.

        Raises:
            CheckpointError: a checkpoint cannot be read; nothing was deleted.
        """
        self._scan()
        return self._retain()

    def _retain(self) -> list[Path]:
        """Prune from the cached scan; verifies only checkpoints that are kept in preference to a deleted one."""
        while True:
            stored = self._remembered()
            dropped, preferred = self.retention.decide(stored, self.monitor, self.mode)
            if all([self._is_sound(checkpoint, again=True) for checkpoint in preferred]):
                break
        try:
            self.write_index([checkpoint for checkpoint in stored if checkpoint not in dropped])
        except OSError as error:  # the new checkpoint is durable, and the index only repeats what a scan finds
            log.warning("%s cannot be updated: %s", self.root / INDEX, error)
        return [checkpoint.path for checkpoint in dropped if self._delete(checkpoint.path)]

    def write_index(self, stored: list[StoredCheckpoint] | None = None) -> None:
        """Write `index.json` from `stored`, newest first, or from a scan."""
        stored = self._scan() if stored is None else stored
        best = next(iter(ranked(stored, self.monitor, self.mode)), None)
        index = {
            "latest": stored[0].path.name if stored else None,
            "best": best.path.name if best is not None else None,
            "monitor": self.monitor,
            "mode": self.mode,
            "kept": [self._index_entry(checkpoint) for checkpoint in stored],
        }
        replace_file(self.root / INDEX, encode_document(index))

    def _index_entry(self, checkpoint: StoredCheckpoint) -> dict[str, Any]:
        step, value = checkpoint.manifest.step, checkpoint.value(self.monitor)
        return {"name": checkpoint.path.name, "step": step, "value": value}

    def _scan(self) -> list[StoredCheckpoint]:
        """Checkpoints with a valid manifest and files of the right size, newest first; damaged ones are set aside.

        Raises:
            UnreadableCheckpointError: a checkpoint cannot be read, so the order is unknown.
        """
        stored, damages = scan(self.root)
        self._known = list(stored) if self._is_locked else None
        for damage in damages:
            self._set_aside(damage)
        return stored

    def _remembered(self) -> list[StoredCheckpoint]:
        """All checkpoints, newest first. While the directory is locked only this process changes it."""
        if self._known is None:
            self._scan()
        assert self._known is not None
        return self._known

    def _forget(self, path: Path) -> None:
        self._verified.discard(path)
        if self._known is not None:
            self._known[:] = [checkpoint for checkpoint in self._known if checkpoint.path != path]

    def _is_sound(self, stored: StoredCheckpoint, again: bool = False) -> bool:
        """Compare all hashes, once per process; set a damaged checkpoint aside.

        Args:
            again: compare at least the sizes if the hashes were compared before.
        """
        try:
            if stored.path not in self._verified:
                verify(stored.path, stored.manifest)
            elif again:
                read_manifest(stored.path)
        except DamagedError as damage:
            self._set_aside(damage)
            return False
        except GoneError:
            self._forget(stored.path)
            return False
        self._verified.add(stored.path)
        return True

    def _set_aside(self, damage: DamagedError) -> None:
        """Rename a damaged checkpoint; only log it if this process holds no lock or the checkpoint is archived."""
        path = Path(damage.path)
        self._forget(path)
        try:
            if not self._is_locked or holds_links(path):
                log.warning("skipping checkpoint %s: %s", path, damage.problem)
                return
            aside = unused(path.with_name(f"{SET_ASIDE}{path.name}"))
            os.rename(path, aside)
            sync_directory(self.root)
        except OSError as error:
            remedy = f"cannot be set aside ({error.strerror}); rename or delete it"
            raise CheckpointError(f"checkpoint {path} is damaged: {damage.problem}; it {remedy}") from None
        log.warning("checkpoint %s is damaged: %s; it was set aside as %s", path, damage.problem, aside.name)

    def _delete(self, path: Path) -> bool:
        try:
            if holds_links(path):  # archived since the scan
                return False
            delete_checkpoint(path)
        except OSError as error:
            log.warning("checkpoint %s is no longer needed but cannot be deleted: %s", path, error)
            self._known = None  # the directory may be gone or not
            return False
        self._forget(path)
        return True


def _free_bytes(path: Path) -> int | None:
    """Free bytes for this user; None if the file system does not report a size."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(path)
        return usage.free if usage.total else None
    return None


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
