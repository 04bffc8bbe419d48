"""Text that is safe to show: without escape sequences in a terminal or a log, without secrets, and escaped in HTML.

Names, keys and messages of strangers can hold escape sequences. Clients quote URLs and headers in their errors, and a
URL may hold a password; a false positive costs a few letters of a message, a false negative leaks a token.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any

_UNPRINTABLE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # ends of lines, and changes of direction
    "\ud800-\udfff]"  # bytes of names that are no text
)

HIDDEN = "[hidden]"
SECRET_NAME = r"(?:api[_-]?key|access[_-]?key|token|secret|passwd|password|credential|authorization|cookie)s?"
_SECRETS = [  # compiled by the first message, since the list of commands needs none
    (r"(?<=://)[^/\s@]+(?=@)", HIDDEN),  # user:password@host
    (r"\b(?:hf_|api_org_|wandb_v1_|sk-|ghp_|github_pat_|glpat-|xox[a-z]-|AKIA)[A-Za-z0-9_-]{8,}", HIDDEN),
    (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", HIDDEN),  # JSON web tokens
    (r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])", HIDDEN),  # keys of W&B until 2025
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", rf"\1 {HIDDEN}"),
    (
        rf"(?i)([A-Za-z0-9_-]*{SECRET_NAME}[\"']?\s*[=:]\s*[\"']?)(?!\s*(?:bearer|basic)\b)[^\s\"'&,;)}}]+",
        rf"\1{HIDDEN}",
    ),
]


def printable(text: str) -> str:
    """Escape control characters (\\x1b); other text is returned unchanged."""
    return re.sub(_UNPRINTABLE, lambda match: ascii(match[0])[1:-1], text)


def wrapped(text: str, columns: int) -> str:
    """Break lines between words, and continue a row of a table below its text; long words and commands stay whole."""
    lines: list[str] = []
    for line in text.split("\n"):
        row = re.match(r" *(\S+( \S+)?  +)?", line)[0]
        options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * max(2, len(row))}
        lines += [line] if re.match(r" +(dp-prior|python) ", line) else textwrap.wrap(line, columns, **options) or [""]
    return "\n".join(lines)


def as_unicode(text: str) -> str:
    """Escape bytes that are no text (\\udcff), as in paths; other text is returned unchanged. JSON and pydantic refuse
    such bytes."""
    return text.encode(errors="backslashreplace").decode()


def redact(text: str) -> str:
    """The text with `[hidden]` for tokens, keys, passwords in URLs, and values of fields named like secrets."""
    for pattern, replacement in _SECRETS:
        text = re.sub(pattern, replacement, text)
    return text


def without_password(url: str) -> str:
    """Refuse a URL that holds a password; returns other URLs unchanged.

    Raises:
        ValueError: the text holds a secret.
    """
    if re.search(r"://[^/\s@]*:[^/\s@]+@", url):
        raise ValueError(
            f"{redact(url)} would be saved with the run and shown with its password; leave it out, and give it to the "
            f"file system itself: by its environment variables, its keys, or a file in ~/.config/fsspec"
        )
    return url


def is_secret_name(name: str) -> bool:
    """Whether the name of a field suggests a secret."""
    return re.search(rf"(?i){SECRET_NAME}$", name) is not None


def duration(seconds: float) -> str:
    """A time for people, of two units at most: `45 s`, `12 min`, `3 h 20 min`, `2 d 3 h`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """HTML that a notebook shows in place of a `repr`: a title above a table of names and values, both escaped."""
    from html import escape

    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<strong>{escape(title)}</strong><table>{rows}</table>"
