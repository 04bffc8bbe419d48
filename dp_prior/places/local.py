"""Copies of checkpoints on this machine, and where on this machine a run goes on from.

A copy appears whole or not at all, under a name made from a template. Nothing is ever replaced or deleted but copies
of our own, recognised by their manifest and by holding nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import string
import threading
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dp_prior.clock import Progress
from dp_prior.config import Config
from dp_prior.durable import exchange, is_alive, is_temporary, owner_of, seal, sync_directory, temporary_beside, unseal
from dp_prior.places.saver import Durable

MANIFEST = "manifest.json"
MODEL_FILES = ("model.safetensors", "config.json", "spec.json")  # what is needed to act
FIELDS = ("step", "samples_seen", "metric")


class LocalSaverConfig(Config):
    """Copies the latest or best checkpoint to a place of its own, where retention does not reach it."""

    type: Literal["local"] = "local"

    save_latest_to: str | None = None
    """Directory for each checkpoint, as a template: its last part may hold {step}, {samples_seen} and {metric}, with a
    format such as {step:08d}. Relative to the run directory. Without such a field each replaces the one before."""

    save_best_to: str | None = None
    """The same for each new best."""

    save_type: Literal["checkpoint", "model"] = "checkpoint"
    """`checkpoint` copies everything needed to continue, `model` only what is needed to act."""

    keep: int | None = Field(default=None, ge=1)
    """Copies kept per template with fields, newest first; null keeps all of them."""

    @field_validator("save_latest_to", "save_best_to")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        if template is not None:
            check_template(template)
        return template

    @model_validator(mode="after")
    def _does_something(self) -> LocalSaverConfig:
        if self.save_latest_to is None and self.save_best_to is None:
            raise ValueError("a local saver needs save_latest_to or save_best_to; the run keeps its own checkpoints")
        if self.save_latest_to == self.save_best_to:
            raise ValueError(f"save_latest_to and save_best_to are both {self.save_latest_to!r}; they need two places")
        return self

    def create(self, directory: Path, monitor: str | None) -> LocalSaver:
        """A saver for the run in `directory` whose `{metric}` is `monitor`."""
        return LocalSaver(**self.arguments(), directory=directory, monitor=monitor)


class LocalLoaderConfig(Config):
    """A run goes on from its own newest checkpoint; before it has one, from another path if one is given."""

    type: Literal["local"] = "local"

    path: str | None = None
    """A run or checkpoint to go on from as long as this run has no checkpoint of its own; null for none."""

    choose: Literal["latest", "best"] = "latest"
    """Which checkpoint of the run at `path`."""

    @field_validator("path")
    @classmethod
    def _is_here(cls, path: str | None) -> str | None:
        if path is not None and "://" in path:
            raise ValueError(f"{path!r} is remote; use the loader {{'type': 'remote', 'reference': {path!r}}}")
        return path

    def create(self, directory: Path) -> LocalLoader:
        """A loader for the run in `directory`."""
        return LocalLoader(**self.arguments(), directory=directory)


class LocalLoader:
    """Answers with references; see `LocalLoaderConfig`."""

    def __init__(self, *, path: str | None, choose: str, directory: Path):
        self._path = None if path is None else Path(path).expanduser()
        self._choose = choose
        self._directory = directory

    def can_recall(self) -> bool:
        """Whether `recall` has an answer. Only looks for manifests; whether they are good shows when they are read."""
        return self.recall() is not None

    def recall(self) -> str | None:
        """A path with `@latest` or `@best`, the path of one checkpoint, or None."""
        if _holds_checkpoints(self._directory):
            return f"{self._directory}@latest"
        if self._path is None:
            return None
        if (self._path / MANIFEST).is_file():
            return str(self._path)
        return f"{self._path}@{self._choose}" if _holds_checkpoints(self._path) else None


def _holds_checkpoints(path: Path) -> bool:
    patterns = (f"checkpoints/step_*/{MANIFEST}", f"step_*/{MANIFEST}")
    return any(True for pattern in patterns for _ in path.glob(pattern))


class LocalSaver:
    """Copies checkpoints; see `LocalSaverConfig`."""

    name = "local"
    patience_s = 0.0

    def __init__(
        self,
        *,
        save_latest_to: str | None,
        save_best_to: str | None,
        save_type: str,
        keep: int | None,
        directory: Path,
        monitor: str | None,
    ):
        self._templates = {"latest": save_latest_to, "best": save_best_to}
        self._is_model = save_type == "model"
        self._keep = keep
        self._directory = directory
        self._monitor = monitor
        for template in filter(None, self._templates.values()):
            if monitor is None and "metric" in _fields(template):
                raise ValueError(f"template {template!r} mentions {{metric}}, but this run monitors none")

    def save(self, durable: Durable) -> None:
        """Copy to the places that want it."""
        wanted = {"latest": durable.is_latest, "best": durable.is_best}
        for kind, template in self._templates.items():
            if template is not None and wanted[kind]:
                target = self._directory / Path(fill(template, durable.progress, self._metric(durable))).expanduser()
                copy_checkpoint(durable.directory, target, MODEL_FILES if self._is_model else None)
                if self._keep is not None and _fields(template):
                    self._prune(target, template)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """A copy is already what it will be."""

    def close(self, leave: threading.Event) -> None:
        """Nothing is left open."""

    def _metric(self, durable: Durable) -> float | None:
        return None if self._monitor is None else durable.metrics.get(self._monitor)

    def _prune(self, target: Path, template: str) -> None:
        """Delete the oldest of our copies under the same template."""
        pattern = _pattern(template)
        copies = [(path, _own_manifest(path)) for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
        copies = [(path, manifest) for path, manifest in copies if manifest is not None]
        copies.sort(key=lambda copy: (copy[1]["sequence"], copy[0] == target))
        for path, _ in copies[: -self._keep]:
            _delete(path)


def check_template(template: str) -> None:
    """Refuse a template that cannot be filled or leads out of where it seems to point."""
    parts = Path(template).parts
    if not parts or ".." in parts or Path(template).name in ("", "/", "~"):
        raise ValueError(f"template {template!r} must name a directory, without '..'")
    if any("{" in part or "}" in part for part in parts[:-1]):
        raise ValueError(f"template {template!r}: fields are allowed in its last part only")
    try:
        found = list(string.Formatter().parse(parts[-1]))
        for _, name, spec, conversion in found:
            if name is None:
                continue
            if name not in FIELDS or conversion:
                raise ValueError(f"unknown field {{{name}}}; known are {', '.join(f'{{{n}}}' for n in FIELDS)}")
            format(0.5 if name == "metric" else 1, spec)
    except ValueError as error:
        raise ValueError(f"template {template!r}: {error}") from None


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def fill(template: str, progress: Progress, metric: float | None) -> str:
    """The template with numbers in it. A metric that was not measured reads `none`."""
    values = {"step": progress.global_step, "samples_seen": progress.samples_seen, "metric": metric}
    text = ""
    for literal, name, spec, _ in string.Formatter().parse(template):
        text += literal
        if name is not None:
            value = values[name]
            text += "none" if value is None else re.sub(r"[^A-Za-z0-9.+-]", "_", format(value, spec))
    return text


def _pattern(template: str) -> re.Pattern[str]:
    """Matches the last part of every name that `fill` can make."""
    found = string.Formatter().parse(Path(template).name)
    return re.compile(
        "".join(re.escape(text) + ("" if name is None else "[A-Za-z0-9.+_-]+") for text, name, _, _ in found)
    )


def copy_checkpoint(source: Path, target: Path, files: tuple[str, ...] | None = None) -> None:
    """Copy a checkpoint, or those of `files` it has, comparing hashes on the way; replace an earlier copy.

    Raises:
        ValueError: the source is damaged.
        FileExistsError: something that is not a copy of ours is in the way.
    """
    manifest = unseal((source / MANIFEST).read_bytes())
    entries = {name: entry for name, entry in manifest["files"].items() if files is None or name in files}
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target) and _own_manifest(target) is None:
        raise FileExistsError(
            f"{target} exists and is not a checkpoint alone; it is left as it is, choose another place"
        )
    _remove_stale(target)
    temporary = temporary_beside(target)
    temporary.mkdir()
    try:
        for name, entry in entries.items():
            _copy_file(source / name, temporary / name, entry)
        with open(temporary / MANIFEST, "xb") as file:
            file.write(seal({**manifest, "files": entries}))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(temporary)
        if target.is_dir():
            exchange(temporary, target)
        else:
            os.rename(temporary, target)
        sync_directory(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the half-made copy, or the one it took the place of


def _copy_file(source: Path, target: Path, entry: dict[str, Any]) -> None:
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target, "xb") as writer:
        while piece := reader.read(16 << 20):
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if digest.hexdigest() != entry["sha256"]:
        raise ValueError(f"{source} does not have the SHA-256 of its manifest; it was not copied")


def _own_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint directory that holds nothing else; None for everything else."""
    try:
        manifest = unseal((path / MANIFEST).read_bytes())
        names = {child.name for child in path.iterdir()}
        is_own = not path.is_symlink() and names <= {MANIFEST, *manifest["files"]}
        return manifest if is_own else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove_stale(target: Path) -> None:
    """Remove what dead processes left of copies to this very place."""
    for path in target.parent.iterdir():
        if is_temporary(path) and path.name.endswith(f"_{target.name}") and is_alive(*owner_of(path)) is False:
            shutil.rmtree(path, ignore_errors=True)


def _delete(path: Path) -> None:
    doomed = temporary_beside(path)
    os.rename(path, doomed)
    sync_directory(path.parent)
    (doomed / MANIFEST).unlink()
    shutil.rmtree(doomed)
