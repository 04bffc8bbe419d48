"""Parts of other packages: their origins, so that a written configuration names the packages required to read it, and
the check of an object that such a part made."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Collection
from typing import Any, TypeVar

from dp_prior.config.annotations import Record
from dp_prior.config.errors import PartError, short

ORIGINS = "$parts"
"""Key of a written record: package, version and module of each `type` that another package adds. Used only in error
messages and comparisons; a file never causes an import."""

T = TypeVar("T")
_MOST_LACKING = 4
"""Most missing attributes that a message names."""


def own_version() -> str:
    """The version of this package; its root is imported before any module below."""
    return vars(sys.modules[__package__.partition(".")[0]])["__version__"]


def origins_of(value: Any) -> dict[str, str]:
    """Package, version and module of every record of another package in a value, by type."""
    if isinstance(value, Record):
        inside, record = value.arguments(), type(value)
        top = record.__module__.partition(".")[0]
        is_foreign = top not in own_packages() and "type" in record.model_fields
        origins = {value.type: _origin(record, top)} if is_foreign else {}
    elif isinstance(value, (dict, list, tuple)):
        inside, origins = value if isinstance(value, dict) else dict(enumerate(value)), {}
    else:
        return {}
    for part in inside.values():
        origins |= origins_of(part)
    return origins


@functools.cache
def own_packages() -> frozenset[str]:
    """The packages that are installed together with this one."""
    root = __package__.partition(".")[0]
    try:
        names = importlib.metadata.distribution(root).read_text("top_level.txt")
    except importlib.metadata.PackageNotFoundError:  # a clone that is not installed
        names = None
    return frozenset({root, *(names or "").split()})


@functools.cache  # reading the metadata of all installed packages takes 100 ms
def _origin(record: type[Record], top: str) -> str:
    """Args: top: the first part of the record's module."""
    for package in importlib.metadata.packages_distributions().get(top, ()):
        return f"{package} {importlib.metadata.version(package)}, module {record.__module__}"
    version = vars(sys.modules[top]).get("__version__", "without __version__")
    return f"{top} {version}, module {record.__module__}"


def changed_code(origins: Any) -> str:
    """A hint for an error about tensors that do not fit: asks whether the code of other packages has changed.

    Args:
        origins: the value of `ORIGINS` in the checkpoint's configuration.
    """
    if not isinstance(origins, dict) or not origins:
        return ""
    return f" Has the code of {' or of '.join(sorted({short(origin) for origin in origins.values()}))} changed since?"


def unknown_type(kind: Any, origins: dict[str, str]) -> str | None:
    """The remedy for an unknown type that the file's `ORIGINS` attributes to another package; None if not listed."""
    if not isinstance(kind, str) or kind not in origins:
        return None
    return (
        f"{short(kind)} is of another package: {short(origins[kind])}. Install that, or import that module first: "
        f"--import MODULE or DP_PRIOR_IMPORT on the command line, `import MODULE` in Python. Nothing that a file names "
        f"is imported by itself"
    )


def made(maker: object, method: str, instance: T, like: type, may_lack: Collection[str] = ()) -> T:
    """The object that a method returned. It need not extend `like`, but has the public attributes of this class.

    Args:
        maker, method: such as a record and `create`, for the message.
        like: a base class or a protocol.
        may_lack: attributes that it may do without.

    Raises:
        PartError: an attribute is missing.
    """
    names = {name for kind in (vars(like), like.__annotations__) for name in kind if not name.startswith("_")}
    missing = sorted(name for name in names.difference(may_lack) if not hasattr(instance, name))
    if not missing:
        return instance
    omitted = f" and {len(missing) - _MOST_LACKING} more" if missing[_MOST_LACKING:] else ""
    lacks = "" if instance is None else f", which has no {', no '.join(missing[:_MOST_LACKING])}{omitted}"
    remedy = "end the method with `return`" if instance is None else "extend this class, or write what is missing"
    raise PartError(
        f"{type(maker).__module__}.{type(maker).__qualname__}.{method} returned {short(instance)}{lacks}; expected an "
        f"object like {like.__module__}.{like.__qualname__}; {remedy}"
    )
