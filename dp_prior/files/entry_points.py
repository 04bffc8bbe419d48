"""Entry points: other packages join by names in their metadata, and are imported when one of their names is used."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

PREFIX = "dp_prior."
"""Prefix of the groups of entry points."""

HOOKS = ("commands", "compilers", "hints", "reports", "runtimes")
"""Groups of entry points that belong to no family of records."""


def entry_points(group: str, **criteria: str) -> list[importlib.metadata.EntryPoint]:
    """The entry points of a group, without the prefix, in the order of their names.

    Args:
        criteria: such as `name`.
    """
    return sorted(_installed().select(group=PREFIX + group, **criteria))


def families() -> list[str]:
    """The groups that add records to families, without the prefix, in order."""
    groups = [group.removeprefix(PREFIX) for group in _installed().groups if group.startswith(PREFIX)]
    return sorted({*groups} - {*HOOKS})


def missing_plugins() -> str:
    """The remedy if the installed metadata lack the plug-ins, as in a clone installed before the plug-ins existed; an
    empty text otherwise."""
    if entry_points("commands", name="export"):
        return ""
    return "The installation is older than this code and lacks its plug-ins: run `pip install -e .` in the clone"


def source_of(entry: importlib.metadata.EntryPoint) -> str:
    """What an error calls an entry point."""
    return f"entry point {entry.name!r} of group {entry.group!r} ({entry.value})"


def loaded(entry: importlib.metadata.EntryPoint) -> Any:
    """The object that an entry point names.

    Raises:
        ImportError: it cannot be imported.
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise ImportError(
            f"{source_of(entry)} cannot be imported: {error!r}. Repair or uninstall the package"
        ) from error


def ask(question: str, *facts: Any) -> Any:
    """Ask every module of the group `hints` and return the first answer, such as `hint` for an unknown key.

    Args:
        question: name of the function to call; a module may lack the function, and None means no answer.
    """
    functions = (getattr(loaded(entry), question, None) for entry in entry_points("hints"))
    answers = (function(*facts) for function in functions if function is not None)
    return next((answer for answer in answers if answer is not None), None)


def misplaced(path: Any, expected: str) -> str:
    """What to name instead of a path at which there is no `configuration` or `checkpoint`: a sentence after a full stop
    and a space, or an empty text."""
    advice = ask("misplaced", path, expected)
    return f". {advice}" if advice else ""


def listeners(event: str) -> list[Callable[..., Any]]:
    """The functions that installed packages declare for an event, as entry points of group `dp_prior.<event>`.

    The call of a function imports its module, and raises ImportError if that fails.
    """
    entries = {entry.value: entry for entry in entry_points(event)}
    return [functools.partial(_call, entry) for entry in entries.values()]


def _call(entry: importlib.metadata.EntryPoint, *arguments: Any) -> Any:
    return loaded(entry)(*arguments)


@functools.cache  # reading the metadata of all installed packages takes 10 ms
def _installed() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points()
