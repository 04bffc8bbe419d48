"""What the test of a message asks of it: values, place and remedy, in whatever sentence they stand."""

import errno
import os
import re
from collections.abc import Iterable

_SYSTEM = {os.strerror(code) for code in errno.errorcode} | {"most recent call first"}
_QUOTED = re.compile(r"(?<!\w)(['\"`]).*?\1")
_PROSE = re.compile(r"(?<![\w.-])[a-z]+(?: [a-z]+){2,}(?![.-]?\w)")


def naming(*parts: object) -> str:
    """A regex for `match=` that finds every part in a message, in any order.

    A part stands literally for itself and is whole: 1 is not found in 12, -1 or 0.1, nor `lr` in `lr_decay` or `--lr`.

    Raises:
        ValueError: a part is prose, which may be rewritten.
    """
    if not parts or "" in (texts := [str(part) for part in parts]):
        raise ValueError(f"{parts} name nothing; pass the value, the place or the remedy of the message")
    if said := [text for text in texts if prose(text)]:
        raise ValueError(f"{said} are prose; pass the value, the place or the remedy of the message")
    return r"(?s)\A" + "".join(f"(?=.*?{_whole(text)})" for text in texts)


def told(output: str, *parts: object) -> bool:
    """Whether one line of printed output, or a message with its indented lines, names every part, see `naming`."""
    return any(re.search(naming(*parts), message) for message in re.split(r"\n(?! )", output))


def told_each(messages: Iterable[str], *expected: object) -> bool:
    """Whether there are as many messages as expected, of which each in its turn names its part or tuple of parts."""
    found = [*messages]
    return len(found) == len(expected) and all(map(_names, found, expected))


def _names(message: str, parts: object) -> bool:
    return bool(re.search(naming(*(parts if isinstance(parts, tuple) else (parts,))), message))


def prose(text: str) -> str | None:
    """The first three or more plain words in a row, unless they are quoted or said by the system or Python."""
    if text in _SYSTEM:
        return None
    found = _PROSE.search(_QUOTED.sub('"', text))
    return found and found[0]


def _whole(text: str) -> str:
    """A regex for the text where it is no piece of a longer word, number or dotted name; quotes are of either kind."""
    before = r"(?<![\w.-])" if re.match(r"\w", text) else ""
    after = r"(?![.-]?\w|,\d)" if re.search(r"\w\Z", text) else ""
    return before + re.sub("['\"]", "['\"]", re.escape(text)) + after
