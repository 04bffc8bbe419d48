"""Text of strangers as it may reach a terminal or a log: names, keys and messages can hold escape sequences."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # ends of lines, and changes of direction
    "\ud800-\udfff]"  # bytes of names that are no text
)


def printable(text: str) -> str:
    """`text` with each control character shown as an escape, such as \\x1b; equal where there is none."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def as_unicode(text: str) -> str:
    """`text`, such as a path, with each byte that is no text shown as an escape, such as \\udcff; equal where there is
    none. JSON and pydantic take no other."""
    return text.encode(errors="backslashreplace").decode()
