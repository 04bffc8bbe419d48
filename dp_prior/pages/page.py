"""A page: what its template shows, and the file."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dp_prior.durable import replace_file

Table = tuple[str, tuple[str, ...], list[tuple[Any, ...]]]
"""Title, names of the columns, rows."""


class Markup(str):
    """Text that is HTML already, which the template does not escape."""

    def __html__(self) -> str:
        return self


@dataclass(frozen=True)
class Page:
    """What a page shows, in this order; empty parts are left out.

    Attributes:
        headline: (name, value, interval) of the numbers that count.
        films: text, source (an address that holds the film, or None) and file of each.
        summaries, tables: before and after the charts.
        strips: (text, address of a picture), in full width.
        sections: title and SVG charts by name of each.
        details: tables that are folded.
        commands: blocks of text to copy.
        gaps: what is not shown, a line each.
    """

    title: str
    state: str = ""
    description: str = ""
    headline: list[tuple[str, str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    films: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[Table] = field(default_factory=list)
    strips: list[tuple[str, str]] = field(default_factory=list)
    sections: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def joined(self, other: Page) -> Page:
        """This page with every list and fact of another one behind its own."""
        merged: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                merged[name] = {**value, **vars(other)[name]}
            elif isinstance(value, list):
                merged[name] = [*value, *vars(other)[name]]
        return replace(self, **merged)

    def render(self) -> str:
        """The page as HTML."""
        return template(Path(__file__).parent / "page.html").render(**vars(self))

    def write(self, output: Path) -> Path:
        """Write the page as one file.

        Raises:
            OSError: it cannot be written.
        """
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, self.render().encode(errors="replace"))  # names of files may not be UTF-8
        return output


@functools.cache
def template(path: Path) -> Any:
    """A template of HTML, which escapes every value and may include the style sheet of pages."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    return Environment(loader=FileSystemLoader([path.parent, Path(__file__).parent]), **options).get_template(path.name)
