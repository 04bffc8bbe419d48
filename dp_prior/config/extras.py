"""Optional packages: imported where they are used, or refused with the extra that brings them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# The first Python for which an extra installs nothing, since one of its packages has no wheels there; as in setup.py.
TOO_NEW = {"aloha": (3, 13), "metaworld": (3, 14), "robosuite": (3, 14)}


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
