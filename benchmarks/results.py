"""`python -m benchmarks.results`: write the tables of docs/results.md, comparing.md, metaworld.md, data.md and
libero.md from docs/results.json.

The JSON has a record for each row: what was measured, with its interval, seeds, samples, machine and command. A table
shows some of these as columns; `shared` holds what all its rows have in common.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGES = (
    Path("docs/results.md"),
    Path("docs/comparing.md"),
    Path("docs/metaworld.md"),
    Path("docs/data.md"),
    Path("docs/libero.md"),
)
RECORDS = Path("docs/results.json")
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str, records: dict[str, Any]) -> str:
    """The text of the page with each marked place filled from the records of its name."""
    return MARKED.sub(lambda match: f"{match[1]}{table(records[match[2]])}\n{match[3]}", text)


def table(record: dict[str, Any]) -> str:
    """Markdown of one question: a line for each row."""
    columns = record["columns"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in record["rows"]:
        cells = [cell(row.get(column)) for column in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A number with its interval, a count with commas, or the text; scores are floats, shares whole percents."""
    match value:
        case None:
            return ""
        case {"score": score, "interval": [low, high]}:
            return f"{score:.3f} {within(f'{low:.3f}', f'{high:.3f}')}"
        case {"percent": percent, "interval": [low, high]}:
            return f"{percent} {within(low, high)}"
        case {"percent": percent}:
            return str(percent)
        case float():
            return f"{value:.3f}"
        case int():
            return f"{value:,}"
    return value


def within(low: object, high: object) -> str:
    """An interval that stays on one line of a narrow cell."""
    return f"({low} to {high})".replace(" ", "\N{NO-BREAK SPACE}")


if __name__ == "__main__":
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), records), encoding="utf-8")
