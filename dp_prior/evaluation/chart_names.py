"""Names in charts. Users, sweeps and instructions make them as long as they like, so they are broken into lines."""

from __future__ import annotations

import textwrap

LINE = 0.17
"""Inches of a line of a legend, or beside a bar, in letters of 8 points."""

MOST_LINES = 8
"""Lines of a name; a longer name ends with an ellipsis."""

BESIDE_BAR, IN_LEGEND = 30, 56
"""Characters of a line beside bars and of a legend, in a chart of 4.6 or 5 inches."""


def in_lines(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken at spaces where there are any; equal if it is short."""
    if len(name) <= width:
        return name
    lines = textwrap.wrap(name, width, break_on_hyphens=False, max_lines=MOST_LINES, placeholder="…")
    return "\n".join(lines)


def count_lines(names: list[str]) -> int:
    """Lines of all names together."""
    return sum(1 + name.count("\n") for name in names)
