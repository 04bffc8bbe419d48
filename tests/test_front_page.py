"""What a visitor sees first: README.md begins with an installation, and CITATION.cff can be read by who cites."""

import datetime
import re
from pathlib import Path

import yaml

from dp_prior import __version__

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = 25
"""Lines of README.md that a browser shows before scrolling."""


def test_the_first_screen_installs_trains_rolls_out_and_then_tries_a_clone():
    first = "\n".join(README.splitlines()[:FIRST_SCREEN])
    recorded, cloned = re.findall(r"^```bash\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)
    words = [line.split()[:2] for line in recorded.splitlines()]
    assert words[0] == ["pip", "install"]
    assert [command[1] for command in words[1:4]] == ["inspect", "train", "export"]
    assert words[4][0] == "lerobot-rollout"
    assert [line.split()[0] for line in cloned.splitlines()] == ["./demo", "./runtests"]


def test_the_citation_has_what_the_citation_file_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    required = {"cff-version": "1.2.0", "type": "software", "license": "MIT", "version": __version__}
    assert {key: citation[key] for key in required} == required
    assert citation["message"] and isinstance(citation["date-released"], datetime.date)
    sources = [citation, *citation["references"]]
    for source in sources:
        assert source["title"] and source["type"]
        assert all({"name"} == author.keys() or "family-names" in author for author in source["authors"])
    known = {"abstract", "authors", "cff-version", "date-released", "keywords", "license", "message", "references"}
    assert citation.keys() <= known | {"title", "type", "version", "url", "repository-code", "doi"}


def test_the_citation_of_the_front_page_is_that_of_the_file():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entry = dict(re.findall(r"^  (\w+) = \{+(.*?)\}+,?$", README.partition("```bibtex")[2], re.MULTILINE))
    assert entry["title"] == citation["title"]
    assert entry["author"] == citation["authors"][0]["name"]
    assert entry["license"] == citation["license"]
    assert entry["year"] == str(citation["date-released"].year)
