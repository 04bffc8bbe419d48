"""Names of files and folders that every disk accepts and keeps apart.

Disks of Windows and macOS, and shares by SMB, ignore case; macOS ignores how an accent is composed. Windows also drops
dots and spaces at the end, refuses some characters, and keeps the names of devices for itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_REFUSED = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\ud800-\udfff]|[. ]\Z')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *([.].*)?", re.IGNORECASE | re.DOTALL)


def folded(path: str) -> str:
    """Fold a name, or each part of a path: where results are equal, some disks have one file for both."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
    return re.sub(r"(?<=[^/. ])[. ]+(?=/|\Z)", "", text)


def alike(paths: Iterable[str]) -> tuple[str, str] | None:
    """Search for two different names or paths that are equal when `folded`; None if all stay apart."""
    first: dict[str, str] = {}
    for path in paths:
        if (other := first.setdefault(folded(path), path)) != path:
            return other, path
    return None


def is_portable(name: str) -> bool:
    """Whether every disk accepts a file of this name, and lists the name as it is."""
    is_refused = _REFUSED.search(name) is not None or _DEVICE.fullmatch(name) is not None
    return bool(name) and not is_refused and unicodedata.is_normalized("NFC", name)
