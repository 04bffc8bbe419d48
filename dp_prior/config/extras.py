"""Optional packages: imported where they are used, or refused with the extra that brings them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needing(extra: str, reason: str) -> Iterator[None]:
    """Inside, packages are imported that an extra of dp_prior brings.

    Args:
        reason: what needs which package, for the error.

    Raises:
        ImportError: one of them is missing; the message names the extra.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{reason} ({error}): pip install "dp_prior[{extra}]"') from error
