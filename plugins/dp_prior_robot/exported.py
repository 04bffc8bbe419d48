"""`dp-prior export`: copy a checkpoint, or write a policy as graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.format import MANIFEST, MODEL_FILES, read_manifest
from dp_prior.config import ConfigError, an, errors_of
from dp_prior.places.local import copy_checkpoint
from dp_prior.places.reference import resolve
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior_robot.export.graph_options import DEFAULT_OPTIONS, Format, GraphOptions
from dp_prior_robot.export.write import write_export
from dp_prior_robot.stored_task import read_stored


def export_checkpoint(reference: str, directory: Path, *, whole: bool) -> tuple[Path, str]:
    """Copy a checkpoint to a directory that `load_policy` reads.

    Args:
        whole: include what is needed to continue training.

    Returns:
        The directory that was copied, and the SHA-256 of the copy's manifest.

    Raises:
        FileExistsError: `directory` exists and is not such a copy of the same policy.
    """
    source = resolve(reference, whole=whole)
    _refuse_other(source, directory)
    copy_checkpoint(source, directory, None if whole else MODEL_FILES)
    return source, hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()


def stored_policy(directory: Path, overrides: Iterable[str], purpose: str) -> tuple[DiffusionPolicy, Any]:
    """The policy of a checkpoint, and its task with overrides.

    Args:
        purpose: policies alone do, for the error.

    Raises:
        ConfigError: it is no policy, or cannot be loaded.
    """
    task = read_stored(directory, overrides, with_data=False).task
    if task.kind != "policy":
        raise ConfigError(str(directory), [f"holds {an(task.type)}, but only policies {purpose}"])
    with errors_of(str(directory)):
        return DiffusionPolicy.from_pretrained(directory), task


def _refuse_other(source: Path, directory: Path) -> None:
    """Raise FileExistsError if a directory holds the weights of another checkpoint, which a copy would replace."""
    if not (directory / MANIFEST).is_file():
        return
    here, there = (read_manifest(place).files["model.safetensors"] for place in (source, directory))
    if here != there:
        finding = f"{directory} holds the weights of another checkpoint, and nothing is overwritten"
        raise FileExistsError(f"{finding}; name another folder, or delete this one first")


def export_policy(
    reference: str,
    directory: Path,
    layout: Format,
    overrides: tuple[str, ...] = (),
    options: GraphOptions = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Export a policy as graphs; see `write_export`.

    Args:
        overrides: changes to `task.sampler` of the configuration.

    Raises:
        ConfigError: it is no policy, or an override changes something else.
    """
    source = resolve(reference, whole=False)
    if not all(override.startswith("task.sampler") for override in overrides):
        raise ConfigError("--set", ["only task.sampler can be changed in an export; the rest is trained"])
    advice = "become graphs; leave --format out to copy the checkpoint, or draw from it by dp-prior sample"
    policy, task = stored_policy(source, overrides, advice)
    return write_export(policy, directory, layout, source=str(source), sampler=task.sampler, options=options)
