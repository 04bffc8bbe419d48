"""The check of an object that a part of another package made, which no type checker of ours has seen."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from dp_prior.config.errors import PartError, short

T = TypeVar("T")
_SHOWN = 4
"""A message names at most so many missing attributes."""


def made(maker: object, method: str, found: T, like: type, may_lack: Collection[str] = ()) -> T:
    """The object that a method returned. It need not extend `like`, but has the public attributes of this class.

    Args:
        maker, method: such as a record and `create`, for the message.
        like: a base class or a protocol.
        may_lack: attributes that it may do without.

    Raises:
        PartError: an attribute is missing.
    """
    names = {name for kind in (vars(like), like.__annotations__) for name in kind if not name.startswith("_")}
    missing = sorted(name for name in names.difference(may_lack) if not hasattr(found, name))
    if not missing:
        return found
    more = f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
    lacks = "" if found is None else f", which has no {', no '.join(missing[:_SHOWN])}{more}"
    remedy = "end the method with `return`" if found is None else "extend this class, or write what is missing"
    raise PartError(
        f"{type(maker).__module__}.{type(maker).__qualname__}.{method} returned {short(found)}{lacks}; expected an "
        f"object like {like.__module__}.{like.__qualname__}; {remedy}"
    )
