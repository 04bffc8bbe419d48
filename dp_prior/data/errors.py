"""What is wrong with a data set, all of it in one report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_PROBLEMS_SHOWN = 20


class DataError(ValueError):
    """A data set that cannot be trained on; `problems` holds one line per fault, the message the first twenty."""

    def __init__(self, source: str, problems: list[str]):
        self.source = source
        self.problems = problems
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        shown = [f"  {problem}" for problem in problems[:MOST_PROBLEMS_SHOWN]]
        if len(problems) > MOST_PROBLEMS_SHOWN:
            shown.append(f"  ... and {len(problems) - MOST_PROBLEMS_SHOWN} more")
        super().__init__("\n".join([f"{source}: {count}", *shown]))


def nearest_name(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not there: the closest known one, and the whole list while it is short."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    parts = [f"Did you mean {close[0]!r}?"] if close else []
    if names:
        parts.append("It has: " + ", ".join(names[:20]) + (", ..." if len(names) > 20 else ""))
    else:
        parts.append("It has none.")
    return " ".join(parts)
