"""Maintenance of a run's checkpoints by hand: list, verify, prune and repair."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.errors import CheckpointError, DamagedError, GoneError, UnreadableCheckpointError
from dp_prior.checkpoints.format import QUARANTINE, Manifest, read_manifest, unused, verify
from dp_prior.checkpoints.reading import Patience, holds_links
from dp_prior.checkpoints.retention import RetentionConfig, monitored, ranked
from dp_prior.checkpoints.scan import STEP, StoredCheckpoint, checkpoint_at, scan, scan_all
from dp_prior.checkpoints.store import SET_ASIDE, CheckpointStore
from dp_prior.files.durable import sync_directory
from dp_prior.files.entry_points import misplaced
from dp_prior.files.regular_files import read_small
from dp_prior.files.temporary import is_alive, is_temporary, owner_of


@dataclass(frozen=True)
class Entry:
    """An entry of the directory of checkpoints.

    Attributes:
        kind: `damaged` is not renamed yet, `set aside` is renamed damage; `unreadable` may be damaged or good.
        manifest: None if unreadable.
        roles: `latest` and `best`; only good checkpoints have roles.
        remark: the problem; empty for a good checkpoint.
    """

    path: Path
    kind: Literal["good", "damaged", "unreadable", "set aside", "quarantine", "leftover"]
    manifest: Manifest | None = None
    roles: tuple[str, ...] = ()
    remark: str = ""


def _root_of(run: Path) -> Path:
    """The directory of checkpoints of a run."""
    for path in (run / "checkpoints", run):
        if path.is_dir() and (path.name == "checkpoints" or any(map(STEP.fullmatch, os.listdir(path)))):
            return path
    finding = f"no checkpoints at {run}: expected the directory of a run, which holds checkpoints/"
    raise FileNotFoundError(f"{finding}{misplaced(run, 'checkpoint')}")


def take_stock(run: Path, *, compare_hashes: bool) -> Iterator[Entry]:
    """All entries, good checkpoints first, newest first. Changes nothing and needs no lock.

    A run may be writing; its unfinished and just deleted checkpoints are left out.

    Args:
        run: its directory, or the directory of its checkpoints.
        compare_hashes: read every byte; otherwise only sizes are compared.

    Raises:
        FileNotFoundError: `run` is neither.
        UnreadableCheckpointError: a checkpoint cannot be read; raised after all entries, only with `compare_hashes`.
    """
    root = _root_of(run)
    stored, problems = scan_all(root)
    best = ranked(stored, *monitored(stored))[:1]
    unreadable = [checkpoint for checkpoint in problems if isinstance(checkpoint, UnreadableCheckpointError)]
    for checkpoint in stored:
        roles = ("latest",) * (checkpoint is stored[0]) + ("best",) * (checkpoint in best)
        checked = checkpoint_at(checkpoint.path, Patience(), compare_hashes=True) if compare_hashes else checkpoint
        if isinstance(checked, StoredCheckpoint):
            yield Entry(checked.path, "good", checked.manifest, roles)
        elif checked is not None:
            unreadable += [checked] if isinstance(checked, UnreadableCheckpointError) else []
            yield _faulty_entry(checked, checkpoint.manifest)
    for problem in problems:
        yield _faulty_entry(problem)
    for path in sorted(root.iterdir()):
        if path.name.startswith((SET_ASIDE, QUARANTINE)):
            try:
                manifest, remark = _manifest_of(path)
            except GoneError:
                continue
            if manifest is not None and manifest.nonfinite:
                remark = f"not finite: {', '.join(manifest.nonfinite)}"
            yield Entry(path, "set aside" if path.name.startswith(SET_ASIDE) else "quarantine", manifest, remark=remark)
        elif is_temporary(path) and not is_alive(*owner_of(path)):
            yield Entry(path, "leftover", remark="of process {1} on host {0}".format(*owner_of(path)))
    if compare_hashes and unreadable:
        raise unreadable[0]


def _faulty_entry(problem: DamagedError | UnreadableCheckpointError, manifest: Manifest | None = None) -> Entry:
    kind: Literal["damaged", "unreadable"] = "damaged" if isinstance(problem, DamagedError) else "unreadable"
    return Entry(Path(problem.path), kind, manifest, remark=problem.problem)


def store_of(run: Path, **changes: Any) -> CheckpointStore:
    """The store of a run, with the retention settings of its configuration.

    Args:
        run: its directory, or the directory of its checkpoints.
        changes: fields of `RetentionConfig` that override the configuration.

    Raises:
        FileNotFoundError: `run` is neither.
        CheckpointError: the configuration of the run cannot be read.
    """
    root = _root_of(run)
    path, retention = root.parent / CONFIG, {}
    if path.exists():
        try:
            retention = json.loads(read_small(path)).get("checkpoints", {})
            RetentionConfig(**retention)
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{path} does not say which checkpoints are kept: {problem}") from None
    stored, _ = scan(root)
    monitor, mode = monitored(stored)
    return CheckpointStore(root, RetentionConfig(**{**retention, **changes}), monitor=monitor, mode=mode)


def superfluous(store: CheckpointStore) -> list[Path]:
    """The checkpoints that `prune` would delete; compares sizes, not hashes."""
    dropped, _ = store.retention.decide(scan(store.root)[0], store.monitor, store.mode)
    return [checkpoint.path for checkpoint in reversed(dropped)]


def repair(store: CheckpointStore) -> list[str]:
    """Repair a locked store: restore checkpoints that verify again, set damaged ones aside, rewrite the index.

    Deletes nothing; locking has deleted leftovers of other processes. Archived checkpoints are not touched.

    Returns:
        One line for each change.
    """
    done = []
    for path in sorted(store.root.iterdir()):
        if not path.name.startswith(SET_ASIDE):
            continue
        manifest, _ = _manifest_of(path)
        if manifest is None or manifest.nonfinite or holds_links(path):
            continue
        try:
            verify(path, manifest)
        except DamagedError as damage:
            done.append(f"{path.name} is still damaged: {damage.problem}")
            continue
        back = unused(store.root / manifest.folder)
        os.rename(path, back)
        sync_directory(store.root)
        done.append(f"{path.name} is sound again: {back.name}")
    before = {path.name for path in store.root.iterdir()}
    newest = [stored.path.name for stored in store.good()]
    store.write_index()
    set_aside = before - {path.name for path in store.root.iterdir()}
    done += [f"{name} was set aside" for name in sorted(set_aside)]
    return [*done, f"{len(newest)} good checkpoints" + (f", the newest is {newest[0]}" if newest else "")]


def _manifest_of(path: Path) -> tuple[Manifest | None, str]:
    """The manifest and no problem, or None and the problem."""
    try:
        return read_manifest(path), ""
    except GoneError:
        raise
    except (DamagedError, UnreadableCheckpointError) as problem:
        return None, problem.problem
