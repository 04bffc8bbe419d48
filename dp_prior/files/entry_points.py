"""Other packages: plug-ins, which join by entry points and are imported when a name is used, and optional packages."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

PREFIX = "dp_prior."
"""Prefix of the groups of entry points."""

HOOKS = ("commands", "compilers", "data_sets", "hints", "reports", "rollouts", "runtimes", "salvagers", "writers")
"""Groups of entry points that belong to no family of records."""

# The first Python for which an extra installs nothing, since one of its packages has no wheels there; as in setup.py.
TOO_NEW = {"aloha": (3, 13), "metaworld": (3, 14), "robosuite": (3, 14)}


class EntryPoint(NamedTuple):
    """A name in the metadata of a package, and the object that it stands for."""

    name: str
    value: str
    """Place of the object, as `module:object`, or a module."""

    group: str

    @property
    def module(self) -> str:
        """Name of the module that holds the object."""
        return self.value.partition("[")[0].partition(":")[0].strip()

    def load(self) -> Any:
        """Import the object."""
        attributes = self.value.partition("[")[0].partition(":")[2]
        loaded_object = importlib.import_module(self.module)
        for attribute in filter(None, attributes.strip().split(".")):
            loaded_object = getattr(loaded_object, attribute)
        return loaded_object


def imported(place: str) -> Any:
    """The object at a place `module:name`, whose module this imports."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def entry_points(group: str, **criteria: str) -> list[EntryPoint]:
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


def source_of(entry: EntryPoint) -> str:
    """Name an entry point in an error."""
    return f"entry point {entry.name!r} of group {entry.group!r} ({entry.value})"


def loaded(entry: EntryPoint) -> Any:
    """The object that an entry point names.

    Raises:
        ImportError: it cannot be imported.
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise ImportError(f"{source_of(entry)} cannot be imported: {error!r}. Repair or uninstall it") from error


def ask(question: str, *facts: Any) -> Any:
    """Ask every module of the group `hints` and return the first answer, such as `hint` for an unknown key.

    Args:
        question: name of the function to call; a module may lack the function, and None means no answer.
    """
    functions = (getattr(loaded(entry), question, None) for entry in entry_points("hints"))
    answers = (function(*facts) for function in functions if function is not None)
    return next((answer for answer in answers if answer is not None), None)


def misplaced(path: Any, expected: str) -> str:
    """Suggest another path, where there is no `configuration` or `checkpoint` at one: a sentence after a full stop and
    a space, or an empty text."""
    advice = ask("misplaced", path, expected)
    return f". {advice}" if advice else ""


def listeners(event: str) -> list[Callable[..., Any]]:
    """The functions that installed packages declare for an event, as entry points of group `dp_prior.<event>`.

    The call of a function imports its module, and raises ImportError if that fails.
    """
    entries = {entry.value: entry for entry in entry_points(event)}
    return [functools.partial(_call, entry) for entry in entries.values()]


def _call(entry: EntryPoint, *arguments: Any) -> Any:
    return loaded(entry)(*arguments)


class InstalledPoints:
    """The entry points of all installed packages in groups of dp_prior, read without importlib.metadata, whose import
    and reading take a third of the time of `dp-prior --help`."""

    def __init__(self, points: list[EntryPoint]):
        self._points = points

    @property
    def groups(self) -> set[str]:
        """The groups that have an entry point."""
        return {point.group for point in self._points}

    def select(self, **criteria: str) -> list[EntryPoint]:
        """The entry points with these fields."""
        return [point for point in self._points if all(getattr(point, key) == criteria[key] for key in criteria)]


@functools.cache
def _installed() -> InstalledPoints:
    folders = [os.fspath(name) or "." for name in dict.fromkeys(sys.path) if isinstance(name, (str, os.PathLike))]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if finders != [PathFinder] or any(os.path.isfile(name) or name.lower().endswith(".egg") for name in folders):
        import importlib.metadata

        return importlib.metadata.entry_points()  # knows archives, eggs and packages of other importers
    points: list[EntryPoint] = []
    packages: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # it is missing, unreadable, or no name of a folder
            for name in filter(_is_metadata, os.listdir(folder)):
                package = re.sub(r"[-_.]+", "_", os.path.splitext(name.lower())[0].partition("-")[0])
                if package not in packages:  # the first on the path counts
                    packages.add(package)
                    points += _points_in(f"{folder}/{name}/entry_points.txt")
    return InstalledPoints(points)


def _is_metadata(name: str) -> bool:
    return name.lower().endswith((".dist-info", ".egg-info"))


def _points_in(path: str) -> Iterator[EntryPoint]:
    """The entry points that a file of a package declares in groups of dp_prior."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:  # a package without entry points
        return
    text = content.decode(errors="replace") if PREFIX.encode() in content else ""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group.startswith(PREFIX) and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip(), group)


@contextlib.contextmanager
def needing(extra: str, reason: str) -> Iterator[None]:
    """Inside, packages are imported that an extra of dp_prior brings.

    Args:
        reason: what needs which package, for the error.

    Raises:
        ImportError: one of them is missing; the message names the extra, or the Python that the extra needs.
    """
    try:
        yield
    except ImportError as error:
        here, too_new = sys.version_info[:2], TOO_NEW.get(extra)
        if too_new is None or here < too_new:
            raise ImportError(f'{reason} ({error}): pip install "dp_prior[{extra}]"') from error
        raise ImportError(
            f"{reason} ({error}). The extra installs nothing for Python {here[0]}.{here[1]}, expected one before "
            f'{too_new[0]}.{too_new[1]}: make an environment with it, and there pip install "dp_prior[{extra}]"'
        ) from error
