"""The pages become a site: strictly, and without a request to another host."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extras import needs

for package in ("sphinx", "myst_parser", "furo"):
    needs(package, "docs")

DOCS = Path(__file__).parent.parent / "docs"
LOADED = re.compile(r'<(?:script|link|img|iframe|video|source)\b[^>]*?\b(?:src|href)="([^"]*)"')
STYLED = re.compile(r"(?:@import|url\()\s*[\"']?([^\"')\s]+)")


def build(pages: Path, site: Path) -> tuple[int, list[str]]:
    """(exit status, warnings) of the command that CONTRIBUTING.md gives."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(pages), str(site)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, [line for line in done.stderr.splitlines() if "WARNING" in line or "ERROR" in line]


def found(site: Path, words: str) -> set[str]:
    """Names of the pages that a search for all these words finds."""
    from sphinx.search.en import SearchEnglish

    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = [set(index["docnames"])]
    for stem in map(SearchEnglish({}).stem, words.lower().split()):
        places = [index[part].get(stem, []) for part in ("terms", "titleterms")]
        numbers = {number for place in places for number in (place if isinstance(place, list) else [place])}
        pages.append({index["docnames"][number] for number in numbers})
    return set.intersection(*pages)


@pytest.mark.slow
def test_all_pages_become_a_site_that_asks_no_other_host(tmp_path):
    assert build(DOCS, tmp_path) == (0, [])
    assert {path.stem for path in DOCS.glob("*.md")} < {path.stem for path in tmp_path.glob("*.html")}
    search = (tmp_path / "search.html").read_text(encoding="utf-8")
    assert '<script src="searchindex.js"' in search, "an index that is fetched is not read from file://"
    assert search.index("documentation_options.js") < search.index("SHOW_SEARCH_SUMMARY = location.protocol")
    assert "processes" in found(tmp_path, "multi GPU") and "results" in found(tmp_path, "coverage")
    for query in ("early stopping", "running time", "memory GPU", "shell completion", "message cause remedy"):
        assert "troubleshooting" in found(tmp_path, query), query
    pages = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.html"))
    styles = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    loaded = {*LOADED.findall(pages), *STYLED.findall(pages + styles)}
    assert {"_images/pusht.gif", "_static/scripts/furo.js"} <= {address.partition("?")[0] for address in loaded}
    assert not [address for address in loaded if "//" in address and not address.startswith("data:")]


@pytest.mark.slow
def test_every_fault_of_a_page_fails_the_build(tmp_path):
    pages = tmp_path / "docs"
    pages.mkdir()
    shutil.copy(DOCS / "conf.py", pages)
    (tmp_path / "NOTES.md").write_text("# Notes")
    (pages / "index.md").write_text("# Site\n\n## First\n\n- [Label](one.md): see [notes](../NOTES.md)\n")
    (pages / "one.md").write_text("# One\n\n## Two `words`\n\n[same](#two-words), [page](one.md#two-words)\n")
    faults = {
        "[a](none.md)": "not found: 'none.md'",
        "[b](one.md#nowhere)": "not found in doc 'one': 'nowhere'",
        "[c](#nowhere)": "not found: 'nowhere'",
        "![d](none.png)": "none.png",
        "[e](../NONE.md)": "NONE.md",
        "# In no list": "isn't included in any toctree",
    }
    (pages / "lost.md").write_text("\n\n".join(reversed(faults)))
    status, warnings = build(pages, tmp_path / "bad")
    assert status != 0 and len(warnings) == len(faults), warnings
    assert all(any(expected in warning for warning in warnings) for expected in faults.values()), warnings
