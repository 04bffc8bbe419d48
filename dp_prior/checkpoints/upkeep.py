"""Looking after the checkpoints of a run by hand: what is there, is it sound, what may go, what can be mended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dp_prior.checkpoints.format import CheckpointError, DamagedError, Manifest, read_manifest, unused, verify
from dp_prior.checkpoints.retention import RetentionConfig, ranked
from dp_prior.checkpoints.store import STEP, CheckpointStore, scan
from dp_prior.durable import is_temporary, sync_directory

CONFIG = "config.json"
SET_ASIDE = "damaged_"
QUARANTINE = "quarantine_"


@dataclass(frozen=True)
class Found:
    """Something in the directory of checkpoints.

    Attributes:
        kind: `damaged` has not been noticed by a run yet; `set aside` has.
        manifest: None where it cannot be read.
        roles: `latest` and `best`, of a good one.
        remark: what is wrong with it.
    """

    path: Path
    kind: Literal["good", "damaged", "set aside", "quarantine", "leftover"]
    manifest: Manifest | None = None
    roles: tuple[str, ...] = ()
    remark: str = ""

    @property
    def value(self) -> float | None:
        """The monitored metric when it was saved."""
        return None if self.manifest is None else self.manifest.metrics.get(self.manifest.monitor or "")


def root_of(run: Path) -> Path:
    """The directory of checkpoints that a path means: a run's, or that directory itself.

    Raises:
        FileNotFoundError: there is none.
    """
    for path in (run / "checkpoints", run):
        if path.is_dir() and (path.name == "checkpoints" or any(map(STEP.fullmatch, os.listdir(path)))):
            return path
    raise FileNotFoundError(f"no checkpoints at {run}: expected the directory of a run, which holds checkpoints/")


def take_stock(root: Path, *, compare_hashes: bool) -> Iterator[Found]:
    """Everything there, good checkpoints first and newest first. Changes nothing, needs no lock.

    Args:
        compare_hashes: read every byte; otherwise only sizes are compared.
    """
    stored, damages = scan(root)
    monitor, mode = (stored[0].manifest.monitor, stored[0].manifest.mode) if stored else (None, "min")
    best = ranked([one.record(monitor) for one in stored], mode)[:1]
    for one in stored:
        roles = ("latest",) * (one is stored[0]) + ("best",) * (one.manifest.sequence in [b.sequence for b in best])
        found = Found(one.path, "good", one.manifest, roles)
        if compare_hashes:
            try:
                verify(one.path, one.manifest)
            except DamagedError as damage:
                found = Found(one.path, "damaged", one.manifest, remark=damage.problem)
        yield found
    for damage in damages:
        yield Found(damage.path, "damaged", remark=damage.problem)
    for path in sorted(root.iterdir()):
        manifest, remark = _manifest_of(path)
        if path.name.startswith(SET_ASIDE):
            yield Found(path, "set aside", manifest, remark=remark)
        elif path.name.startswith(QUARANTINE):
            named = [] if manifest is None else manifest.nonfinite
            yield Found(path, "quarantine", manifest, remark=remark or f"not finite: {', '.join(named)}")
        elif is_temporary(path):
            yield Found(path, "leftover")


def store_of(root: Path, **changes: Any) -> CheckpointStore:
    """The store of a run, with the retention of its configuration.

    Args:
        changes: fields of `RetentionConfig` that replace those of the configuration.

    Raises:
        CheckpointError: the configuration of the run cannot be read.
    """
    path, retention = root.parent / CONFIG, {}
    if path.exists():
        try:
            retention = json.loads(path.read_bytes()).get("checkpoints", {})
            RetentionConfig(**retention)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            problem = str(error).splitlines()[0]
            raise CheckpointError(f"{path} does not say which checkpoints are kept: {problem}") from None
    stored, _ = scan(root)
    monitor, mode = (stored[0].manifest.monitor, stored[0].manifest.mode) if stored else (None, "min")
    return CheckpointStore(root, RetentionConfig(**{**retention, **changes}), monitor=monitor, mode=mode)


def superfluous(store: CheckpointStore) -> list[Path]:
    """What `prune` would delete, as far as sizes tell."""
    stored, _ = scan(store.root)
    kept = store.retention.kept([one.record(store.monitor) for one in stored], store.mode)
    return [one.path for one in stored if one.manifest.sequence not in kept]


def repair(store: CheckpointStore) -> list[str]:
    """Bring a locked store in order: bring back what is sound again, set aside what is damaged, write the index anew.

    Nothing is deleted but leftovers of dead processes, which locking does.

    Returns:
        One line for everything that was changed.
    """
    done = []
    for path in sorted(store.root.iterdir()):
        manifest, remark = _manifest_of(path)
        if not path.name.startswith(SET_ASIDE) or manifest is None or manifest.nonfinite:
            continue
        try:
            verify(path, manifest)
        except DamagedError as damage:
            done.append(f"{path.name} is still damaged: {damage.problem}")
            continue
        back = unused(store.root / f"step_{manifest.step:08d}")
        os.rename(path, back)
        sync_directory(store.root)
        done.append(f"{path.name} is sound again: {back.name}")
    before = {path.name for path in store.root.iterdir()}
    newest = [stored.path.name for stored in store.good()]
    store.write_index()
    done += [f"{name} was set aside" for name in sorted(before - {path.name for path in store.root.iterdir()})]
    return [*done, f"{len(newest)} good checkpoints" + (f", the newest is {newest[0]}" if newest else "")]


def _manifest_of(path: Path) -> tuple[Manifest | None, str]:
    """The manifest, or None and what is wrong."""
    try:
        return read_manifest(path), ""
    except DamagedError as damage:
        return None, damage.problem
    except CheckpointError as error:
        return None, str(error)
