"""`Page`: the content of a page, which a template renders to one HTML file."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dp_prior.files.durable import replace_file
from dp_prior.files.regular_files import open_regular

Table = tuple[str, tuple[str, ...], list[tuple[Any, ...]]]
"""Title, names of the columns, rows."""


class Markup(str):
    """Text that is already HTML, so the template does not escape it."""

    def __html__(self) -> str:
        return self


@dataclass(frozen=True)
class Page:
    """The parts of a page, in the order shown; empty parts are left out.

    Attributes:
        headline: (name, value, interval) of the main numbers.
        films: for each film `text`, `source` (a data address, or None) and `file`.
        summaries, tables: before and after the charts.
        strips: (text, address of a picture), in full width.
        sections: (title, charts); each chart is a name and an SVG.
        details: further tables, last.
        opened: titles of the parts that are open at first; all others but films are folded.
        episodes: (name, [(name of a number, its curve as SVG)]) of episodes, of which a reader opens one at a time.
        commands: blocks of text to copy.
        gaps: one line for each thing that is not shown.
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
    opened: list[str] = field(default_factory=list)
    episodes: list[tuple[str, list[tuple[str, Markup]]]] = field(default_factory=list)

    def joined(self, other: Page) -> Page:
        """This page, with the lists and facts of another page appended."""
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
        """Write the page as one file, in place of an older page.

        Raises:
            OSError: the file cannot be written, or is not a page.
        """
        check_page_place(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, self.render().encode(errors="replace"))  # file names may not be UTF-8
        return output


def check_page_place(output: Path) -> None:
    """Check that a page may be written to `output`; a command calls it before long work that ends with the page.

    Raises:
        FileExistsError: a file other than a page, or a folder, has this name.
        OSError: the file cannot be read.
    """
    if output.exists() and not _is_page(output):
        raise FileExistsError(f"{output} exists and is no page; name another file for the page")


def _is_page(path: Path) -> bool:
    """Whether a file begins as HTML does."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(100).lstrip().lower().startswith(b"<!doctype html")


@functools.cache
def template(path: Path) -> Any:
    """An HTML template that escapes every value and may include the style sheet of pages."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    return Environment(loader=FileSystemLoader([path.parent, Path(__file__).parent]), **options).get_template(path.name)
