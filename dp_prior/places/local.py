"""Copies of checkpoints on this machine, under names made from a template.

A copy appears by a rename. Nothing is replaced or deleted but our own copies, recognised by their manifest and by
holding nothing else, and nothing is written or deleted through a symbolic link.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import string
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from dp_prior.checkpoints.format import (
    MANIFEST,
    MODEL_FILES,
    CheckpointError,
    DamagedError,
    FileEntry,
    Manifest,
    parse_manifest,
    read_manifest,
)
from dp_prior.clock import Progress
from dp_prior.config import Config
from dp_prior.durable import exchange, is_alive, is_temporary, owner_of, replace_file, sync_directory, temporary_beside
from dp_prior.places.saver import Durable, Saver
from dp_prior.regular_files import read_small

FIELDS = ("step", "samples_seen", "metric")
_COPIED_AT_ONCE = 16 << 20  # bytes


class LocalSaverConfig(Config):
    """Copies the latest or best checkpoint to a directory that retention does not delete from."""

    type: Literal["local"] = "local"

    save_latest_to: str | None = None
    """Directory for each checkpoint, as a template: its last part may hold {step}, {samples_seen} and {metric}, with a
    format such as {step:08d}. Relative to the run directory. Without a field each copy replaces the one before."""

    save_best_to: str | None = None
    """The same for each new best."""

    save_type: Literal["checkpoint", "model"] = "checkpoint"
    """`checkpoint` copies everything needed to resume, `model` only the files for inference."""

    keep: int | None = Field(default=None, ge=1)
    """Copies kept per template with fields, newest first; null keeps all of them."""

    @field_validator("save_latest_to", "save_best_to")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        if template is not None:
            check_template(template)
        return template

    def faults(self) -> Iterator[str]:
        if self.save_latest_to is None and self.save_best_to is None:
            yield "a local saver needs save_latest_to or save_best_to; the run keeps its own checkpoints"
        elif self.save_latest_to == self.save_best_to:
            yield f"save_latest_to and save_best_to are both {self.save_latest_to!r}; they need two places"

    def create(self, directory: Path, monitor: str | None) -> LocalSaver:
        """A saver for the run in `directory` whose `{metric}` is `monitor`."""
        return LocalSaver(**self.arguments(), directory=directory, monitor=monitor)


class LocalSaver(Saver):
    """Copies checkpoints; see `LocalSaverConfig`."""

    name = "local"

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
        """Copy to the directories that are configured."""
        wanted = {"latest": durable.is_latest, "best": durable.is_best}
        for kind, template in self._templates.items():
            if template is not None and wanted[kind]:
                target = self._directory / Path(fill(template, durable.progress, self._metric(durable))).expanduser()
                self._refuse_links(target)
                copy_checkpoint(durable.directory, target, MODEL_FILES if self._is_model else None)
                if self._keep is not None and _fields(template):
                    self._prune(target, template)

    def _refuse_links(self, target: Path) -> None:
        """Refuse to write through a symbolic link below the run directory; elsewhere links are the user's choice."""
        for parent in target.parents if target.is_relative_to(self._directory) else ():
            if parent == self._directory:
                break
            if parent.is_symlink():
                raise FileExistsError(f"{parent} is a symbolic link; no copy is made behind it, choose another place")

    def _metric(self, durable: Durable) -> float | None:
        return None if self._monitor is None else durable.metrics.get(self._monitor)

    def _prune(self, target: Path, template: str) -> None:
        """Delete the oldest of our copies under the same template."""
        pattern = _pattern(template)
        copies = [(path, _own_manifest(path)) for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
        copies = [(path, manifest) for path, manifest in copies if manifest is not None]
        copies.sort(key=lambda copy: (copy[1].sequence, copy[0] == target))
        for path, _ in copies[: -self._keep]:
            _delete(path)


def check_template(template: str) -> None:
    """Refuse a template that cannot be filled, or names another directory than it seems to.

    Raises:
        ValueError: it is such a template.
    """
    parts = Path(template).parts
    if not parts or ".." in parts or "\0" in template or Path(template).name in ("", "/", "~"):
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
            if re.search(r"[1-9]\d\d", spec):  # a width of a billion would make a name of that length
                raise ValueError(f"format {spec!r} has a number above 99")
            format(0.5 if name == "metric" else 1, spec)
    except ValueError as error:
        raise ValueError(f"template {template!r}: {error}") from None


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def fill(template: str, progress: Progress, metric: float | None) -> str:
    """The template with its fields filled in. A metric that was not measured reads `none`."""
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


def copy_checkpoint(source: Path, target: Path, files: Container[str] | None = None) -> None:
    """Copy a checkpoint, or those of `files` it has, comparing hashes on the way; replace an earlier copy.

    Raises:
        DamagedError: the source is damaged; nothing was copied.
        FileExistsError: `target` exists and is not a copy made by this function.
    """
    manifest = read_manifest(source)
    manifest = manifest if files is None else manifest.only(files)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target) and _own_manifest(target) is None:
        raise FileExistsError(
            f"{target} exists and holds more than a checkpoint, so it is not replaced; choose another place"
        )
    _remove_stale(target)
    temporary = temporary_beside(target)
    temporary.mkdir()
    try:
        for name, entry in manifest.files.items():
            _copy_file(source, name, temporary / name, entry)
        replace_file(temporary / MANIFEST, manifest.encode())
        if target.is_dir():
            exchange(temporary, target)
        else:
            os.rename(temporary, target)
        sync_directory(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the incomplete copy, or the one that was replaced


def _copy_file(source: Path, name: str, target: Path, entry: FileEntry) -> None:
    digest = hashlib.sha256()
    with open(source / name, "rb") as reader, open(target, "xb") as writer:
        while piece := reader.read(_COPIED_AT_ONCE):
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if digest.hexdigest() != entry.sha256:
        raise DamagedError(source, f"{name} does not have the SHA-256 of the manifest")


def _own_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint directory that holds nothing else; None for everything else."""
    if path.is_symlink():
        return None
    try:
        manifest = parse_manifest(read_small(path / MANIFEST), path)
        return manifest if {child.name for child in path.iterdir()} <= {MANIFEST, *manifest.files} else None
    except (OSError, ValueError, CheckpointError):
        return None


def _remove_stale(target: Path) -> None:
    """Remove what dead processes left of copies to this path."""
    for path in target.parent.iterdir():
        if is_temporary(path) and path.name.endswith(f"_{target.name}") and is_alive(*owner_of(path)) is False:
            shutil.rmtree(path, ignore_errors=True)


def _delete(path: Path) -> None:
    doomed = temporary_beside(path)
    os.rename(path, doomed)
    sync_directory(path.parent)
    (doomed / MANIFEST).unlink()
    shutil.rmtree(doomed)
