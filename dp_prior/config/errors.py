"""The errors of records, and how their messages name things."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

MOST_PROBLEMS = 50
"""A report shows at most this many problems and counts the rest."""


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` holds one line per fault, at most `MOST_PROBLEMS` lines."""

    def __init__(self, source: str, problems: list[str], more: int = 0, advice: str = ""):
        """
        Args:
            more: number of faults beyond `problems`.
            advice: the remedy; last line of the message.
        """
        self._given = source, problems, more, advice
        total = len(problems) + more
        self.source = source
        self.problems = problems[:MOST_PROBLEMS]
        if total > len(self.problems):
            self.problems.append(f"and {total - len(self.problems)} more")
        count = f"{total} problem" + ("s" if total != 1 else "")
        lines = [*self.problems, advice] if advice else self.problems
        super().__init__("\n".join([f"{source}: {count}", *(f"  {line}" for line in lines)]))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, from a worker process."""
        return type(self), self._given


@contextlib.contextmanager
def errors_of(source: str, *error_types: type[Exception]) -> Iterator[None]:
    """Inside, a ValueError becomes the `ConfigError` of a source, such as a setting; a `ConfigError` stays as it is.

    Args:
        error_types: further types of errors.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, *error_types) as error:
        raise ConfigError(source, [str(error)]) from None


class PartError(TypeError):
    """A record that cannot be a member of a family; the message is one line."""


def an(name: str) -> str:
    """A name with its indefinite article, for messages: an image, a policy."""
    return f"{'an' if name[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {name}"


def short(value: Any) -> str:
    """The text of a value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} ... ({len(text)} characters)"


def key_text(part: str | int) -> str:
    """A part of a JSON path for a message."""
    text = str(part)
    return text if 0 < len(text) <= 80 else '""' if not text else short(text)
