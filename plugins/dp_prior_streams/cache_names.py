"""Names of the files that a cache keeps for observations: every disk accepts them and keeps them apart."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from dp_prior.files.file_names import folded, is_portable

LONGEST = 80
"""Most bytes of such a name."""

_DIGEST = re.compile("-[0-9a-f]{12}", re.IGNORECASE)


def file_names(keys: Iterable[str]) -> dict[str, str]:
    """Choose the name of a file for each observation: the observation's name, with a hash where a disk might refuse the
    name or take two names for one."""
    keys = {*keys}
    counts = Counter(map(folded, keys))
    return {key: key if counts[folded(key)] == 1 and _is_plain(key) else _hashed(key) for key in keys}


def _is_plain(key: str) -> bool:
    """Whether a name can be a file by itself, and no `_hashed` name is equal."""
    return is_portable(key) and len(key.encode()) <= LONGEST and _DIGEST.fullmatch(key[-13:]) is None


def _hashed(key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{re.sub('[^A-Za-z0-9_-]+', '_', key)[: LONGEST - 13]}-{digest}"
