"""Counts the words of the pages: prose, without code, tables, comments and pages that a command writes whole.

    python -m tests.prose

`tests/test_prose.py` holds the ceilings, which may only fall.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = {
    f"docs/{name}.md" for name in ("config", "metrics", "findings", "coming_from", "reliability", "benchmarks")
}
"""Pages that a command writes."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PICTURE = re.compile(r"!\[[^]]*\]\([^)]*\)")


def pages() -> list[str]:
    """The paths of the pages that people write: README.md, CONTRIBUTING.md and those of docs."""
    written = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    return [page for page in written if page not in GENERATED]


def prose(text: str) -> str:
    """The lines of Markdown without fenced and indented code, tables, comments and pictures."""
    for pattern in (_FENCE, _COMMENT, _PICTURE):
        text = pattern.sub("", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))


def words(text: str) -> int:
    """Words of the prose of a page, headings included."""
    return len(prose(text).split())


def counts() -> dict[str, int]:
    """Words of prose by page."""
    return {page: words((ROOT / page).read_text(encoding="utf-8")) for page in pages()}


if __name__ == "__main__":
    by_page = counts()
    for page, count in sorted(by_page.items(), key=lambda item: item[1]):
        print(f"{count:7,}  {page}")
    print(f"{sum(by_page.values()):7,}  in all")
    print(f"{len((ROOT / 'CHANGELOG.md').read_text(encoding='utf-8').split()):7,}  CHANGELOG.md, all words")
