"""HTML that a notebook shows in place of a `repr`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """A title above a table of names and values; both are escaped."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<strong>{escape(title)}</strong><table>{rows}</table>"
