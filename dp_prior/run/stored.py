"""Checkpoints in commands: only files that the user named, and data with the classes of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.config.outside import check_named
from dp_prior.places.reference import is_downloaded
from dp_prior.tensors.batch import Spec

COPY = "copy the checkpoint here by `dp-prior export --whole`, and read its configuration"
REPEAT = f"Repeat the setting by --set, or {COPY}"


def check_origin(reference: str, parts: Mapping[str, Any], overrides: Iterable[str] = (), remedy: str = REPEAT) -> None:
    """Refuse files and machines in a configuration from another machine unless the user names them as well.

    Args:
        reference: of the checkpoint.
        parts: of its configuration that a command uses, by their paths in the file.
        overrides: of the user, KEY=VALUE, already in `parts`.
        remedy: one or two sentences.

    Raises:
        ConfigError: lists these files and machines.
    """
    if is_downloaded(reference):
        check_named(reference, parts, overrides, remedy)


def check_classes(trained: Spec, measured: Spec) -> None:
    """Compare the classes of a model with the classes of the data that measure the model.

    A label is a number, the place of its name. A model with numbers for names, as of improved-diffusion, takes any
    names if they are as many.

    Args:
        trained: the shapes of the model.
        measured: those of the data.

    Raises:
        ConfigError: the data have other classes, so that their labels would stand for other names.
    """
    for key, names in trained.classes.items():
        measured_names = measured.classes.get(key, ())
        is_numbered = names == tuple(map(str, range(len(names)))) and len(measured_names) == len(names)
        if measured_names == names or is_numbered:
            continue
        odd = [name for name in (*names, *measured_names) if (name in names) != (name in measured_names)]
        listed = f"{', '.join(map(repr, odd[:5]))}{' and more' if len(odd) > 5 else ''}" if odd else "their order"
        counts = f"{len(measured_names):,} classes, but the model was trained on {len(names):,}"
        problem = f"{key!r} has {counts}, apart in {listed}"
        raise ConfigError("data", [f"{problem}. Labels are numbers in their order; name data with the same classes"])
