"""Copies of checkpoints on this machine, under names made from a template.

A copy appears by a rename. Only our own copies are ever replaced or deleted: directories with a manifest and no file
besides the listed ones. Nothing is written or deleted through a symbolic link.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import string
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import (
    MANIFEST,
    MODEL_FILES,
    CheckpointError,
    DamagedError,
    Manifest,
    delete_checkpoint,
    parse_manifest,
    read_manifest,
)
from dp_prior.checkpoints.store import INDEX, Saved
from dp_prior.files.durable import replace_file, sync_directory, temporary_directory, try_writing
from dp_prior.files.regular_files import expanded, read_object, read_small
from dp_prior.files.temporary import temporary_beside
from dp_prior.places.saver import PROBLEM, Saver, SaverRecord
from dp_prior.places.source import is_intact

NAME_FIELDS = ("step", "samples_seen", "metric")

_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # file systems and kernels without RENAME_EXCHANGE


def _check_fields(template: str) -> None:
    """Raises ValueError unless the name of a directory can be made of a template."""
    for _, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if name not in NAME_FIELDS or conversion:
            known_fields = ", ".join(f"{{{field}}}" for field in NAME_FIELDS)
            raise ValueError(f"unknown field {{{name}}}; known are {known_fields}")
        if re.search(r"[1-9]\d\d", spec):  # a width of a billion would make a name of that length
            raise ValueError(f"format {spec!r} has a number above 99")
        format(0.5 if name == "metric" else 1, spec)


class LocalSaverConfig(SaverRecord):
    """Copies the latest or best checkpoint to a directory that retention leaves alone."""

    type: Literal["local"] = "local"

    save_latest_to: str | None = None
    """Directory for each checkpoint, as a template: its last part may hold {step}, {samples_seen} and {metric}, with a
    format such as {step:08d}. Relative to the run directory. Without a field each copy replaces the previous copy."""

    save_best_to: str | None = None
    """Directory for each new best checkpoint, a template like `save_latest_to`."""

    save_type: Literal["checkpoint", "model"] = "checkpoint"
    """`checkpoint` copies everything needed to resume, `model` only the files for inference."""

    keep: int | None = Field(default=None, ge=1)
    """Newest copies of this run kept per template with fields; null keeps all copies."""

    @field_validator("save_latest_to", "save_best_to")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        """Refuse a template that cannot be filled, or that leads to another directory than its text suggests."""
        if template is None:
            return None
        parts = Path(template).parts
        if not parts or ".." in parts or "\0" in template or Path(template).name in ("", "/", "~"):
            raise ValueError(f"template {template!r} must name a directory, without '..'")
        if "://" in template:
            raise ValueError(f"template {template!r} is a URL; use {{'type': 'fsspec', 'url': {template!r}}}")
        if parts[0] == "checkpoints":
            raise ValueError(f"template {template!r}: the run keeps its own checkpoints there; take another directory")
        if any("{" in part or "}" in part for part in parts[:-1]):
            raise ValueError(f"template {template!r}: fields are allowed in its last part only")
        try:
            _check_fields(parts[-1])
        except ValueError as error:
            raise ValueError(f"template {template!r}: {error}") from None
        return template

    @property
    def templates(self) -> list[str]:
        """The templates that are set."""
        return [template for template in (self.save_latest_to, self.save_best_to) if template is not None]

    @property
    def copies_to(self) -> list[Path]:
        """Expanded target paths, comparable for equality."""
        return list(map(expanded, self.templates))

    def faults(self) -> Iterator[str]:
        if not self.templates:
            yield "a local saver needs save_latest_to or save_best_to; the run keeps its own checkpoints"
        elif len({*self.copies_to}) < len(self.templates):
            yield f"save_latest_to and save_best_to are both {self.save_latest_to!r}; they need two places"

    def check_places(self, directory: Path) -> list[str]:
        lines = []
        for template in self.templates:
            try:
                try_writing((directory / expanded(template)).parent)
                lines.append(f"{template} can be written to")
            except OSError as error:
                lines.append(f"{PROBLEM}{template} cannot be written to: {error.strerror} ({error.filename})")
        return lines

    def create(self, directory: Path, monitor: str | None) -> LocalSaver:
        """Create the saver for the run in `directory`, with `monitor` for `{metric}`."""
        return LocalSaver(self, directory, monitor)


class LocalSaver(Saver):
    """Copies checkpoints; see `LocalSaverConfig`."""

    name = "local"

    def __init__(self, record: LocalSaverConfig, directory: Path, monitor: str | None):
        self._record = record
        self._directory = directory
        self._monitor = monitor
        for template in record.templates:
            if monitor is None and "metric" in _fields(template):
                raise ValueError(f"template {template!r} mentions {{metric}}, but this run monitors none")

    def save(self, saved: Saved) -> None:
        """Copy to the configured directories."""
        with contextlib.ExitStack() as copies:  # if one place fails, the other still gets its copy
            if saved.is_best:
                copies.callback(self._copy, saved.path, self._record.save_best_to)
            if saved.is_latest:
                copies.callback(self._copy, saved.path, self._record.save_latest_to)

    def complete(self, directory: Path, media: dict[str, Path], scores: dict[str, float]) -> None:
        """Copy the best checkpoint; `save` did not see a checkpoint that another machine saved."""
        self._copy(directory, self._record.save_best_to)

    def _copy(self, source: Path, template: str | None) -> None:
        record = self._record
        if template is None:
            return
        target = self._directory / expanded(fill(template, read_manifest(source), self._monitor))
        self._refuse_links(target)
        copy_checkpoint(source, target, MODEL_FILES if record.save_type == "model" else None)
        if record.keep is not None and _fields(template):
            self._prune(target, template, record.keep)

    def _refuse_links(self, target: Path) -> None:
        """Refuse to write through a symbolic link below the run directory; elsewhere links are the user's choice."""
        for parent in target.parents:
            if parent.is_relative_to(self._directory) and parent != self._directory and parent.is_symlink():
                raise FileExistsError(f"{parent} is a symbolic link; no copy is made behind it, choose another place")

    def _prune(self, target: Path, template: str, keep: int) -> None:
        """Delete this run's oldest copies under the same template, recognised by their names; `target` stays."""
        manifests, run = {path: _own_manifest(path) for path in target.parent.iterdir()}, _run_of(target)
        ages = {}
        for path, manifest in manifests.items():
            if manifest is None or path.name != Path(fill(template, manifest, self._monitor)).name:
                continue
            if _run_of(path) == run:
                ages[path] = (path == target, manifest.saved_at, manifest.sequence)
        for path in sorted(ages, key=ages.get)[:-keep]:
            delete_checkpoint(path)


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


class _Filling(string.Formatter):
    def format_field(self, value: float | None, spec: str) -> str:
        return "none" if value is None else re.sub(r"[^A-Za-z0-9.+-]", "_", format(value, spec))


def fill(template: str, manifest: Manifest, monitor: str | None) -> str:
    """Fill the template with the fields of a checkpoint; `none` for a metric that was not measured."""
    metric = manifest.metrics.get(monitor)
    values = {"step": manifest.step, "samples_seen": manifest.samples_seen, "metric": metric}
    return _Filling().vformat(template, (), values)


def copy_checkpoint(source: Path, target: Path, files: Container[str] | None = None) -> None:
    """Copy a checkpoint, or only the files named in `files`, comparing hashes; replace an earlier copy.

    Raises:
        DamagedError: the source is damaged; nothing was copied.
        FileExistsError: `target` exists and is not a copy made by this function.
    """
    manifest = read_manifest(source).only(files)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target) and _own_manifest(target) is None:
        raise FileExistsError(
            f"{target} exists and holds more than a checkpoint, so it is not replaced; choose another place"
        )
    if target.exists() and (target.parent.name == "checkpoints" or (target.parent / INDEX).exists()):
        raise FileExistsError(f"{target} is a run's own checkpoint, so it is not replaced; choose another place")
    with temporary_directory(target) as temporary:  # after `exchange` the old copy has this name and is deleted
        for name, entry in manifest.files.items():
            shutil.copyfile(source / name, temporary / name)
            if not is_intact(temporary / name, entry):
                raise DamagedError(source, f"{name} does not have the SHA-256 of the manifest")
        replace_file(temporary / MANIFEST, manifest.encode())
        if target.is_dir():
            exchange(temporary, target)
        else:
            os.rename(temporary, target)
        sync_directory(target.parent)


def _own_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint directory without further files; None for another path."""
    if path.is_symlink():
        return None
    try:
        manifest = parse_manifest(read_small(path / MANIFEST), path)
        names = {child.name for child in path.iterdir()}
    except (OSError, ValueError, CheckpointError):
        return None
    return manifest if names <= {MANIFEST, *manifest.files} else None


def _run_of(copy: Path) -> str | None:
    """The run directory that the configuration in a copy names; None for a configuration without one."""
    tracker = read_object(copy / CONFIG).get("tracker")
    return tracker.get("data_path") if isinstance(tracker, dict) else None


def exchange(first: Path, second: Path) -> None:
    """Swap two names in one file system: atomically where supported, otherwise with a moment without `second`.

    Raises:
        OSError: the swap failed, and both names are unchanged.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        at_cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h
        if libc.renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), swap) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), str(first), None, str(second))
    spare = temporary_beside(second)
    os.rename(second, spare)
    try:
        os.rename(first, second)
    except OSError:
        os.rename(spare, second)
        raise
    os.rename(spare, first)
