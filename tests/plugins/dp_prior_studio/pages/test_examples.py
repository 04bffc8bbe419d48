"""The example pages stand alone, are small, and tell of nothing but their runs and data."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_prior_studio.pages.page import Page
from tests.plugins.dp_prior_studio.pages.test_report import Outline

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.html"))
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "plugins" / "dp_prior_studio").rglob("*")
    if path.suffix in (".py", ".html", ".css")
)


def test_there_is_one_of_each():
    assert [path.stem for path in EXAMPLES] == ["comparison", "data", "run"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_stands_alone_and_names_no_machine(path):
    page = path.read_text(encoding="utf-8")
    outline = Outline(page)
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert path.stat().st_size < 3 << 19 and "<script" not in page
    assert not re.search(r"/(?:work|home|tmp|root|Users)/", " ".join(outline.texts))


def style_faults(page: str) -> Iterator[str]:
    """What a page has that the code does not draw today."""
    drawn = Page("A title").render()
    for name, pattern in (("head", r"\A.*?<title>"), ("stylesheet", r"<style>.*?</style>")):
        if [*re.findall(pattern, page, re.DOTALL)] != [*re.findall(pattern, drawn, re.DOTALL)]:
            yield f"another {name}"
    words = {html.unescape(word) for pair in re.findall(r"<dt>(.*?)</dt>|<h2>([\w ]+)</h2>", page) for word in pair}
    words |= {name for names in re.findall(r'class="([^"]*)"', page) for name in names.split()}
    yield from (f"{word!r} is in no source" for word in sorted(words) if word not in SOURCES)
    yield from (f"a time {time}" for time in re.findall(r"\d\d-\d\dT\d\d:\d\d:\d\d[^<]*", page))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_the_style_that_the_code_draws_today(path):
    faults = [*style_faults(path.read_text(encoding="utf-8"))]
    assert not faults, f"make it again by scripts/examples.sh: {faults}"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("h1 { font-size: 1.5rem;", "h1 { font-size: 1.6rem;", "stylesheet"),
        ("initial-scale=1", "initial-scale=2", "head"),
        ("<dt>steps</dt>", "<dt>strides</dt>", "strides"),
        ('class="chip"', 'class="badge"', "badge"),
        ("12:00 UTC", "2026-11-30T00:01:00+00:00", "time"),
    ],
)
def test_a_change_of_style_is_noticed(old, new, fault):
    page = Page("A title", state="done", facts={"steps": 3, "last start": "12:00 UTC"}).render()
    assert not [*style_faults(page)] and old in page
    [line] = style_faults(page.replace(old, new))
    assert fault in line


def test_the_run_has_the_description_of_its_configuration_and_the_score_that_it_states():
    page = (ROOT / "docs/examples/run.html").read_text(encoding="utf-8")
    said = json.loads((ROOT / "configs/policy/pusht_state.json").read_text(encoding="utf-8"))["description"]
    assert html.escape(said, quote=False) in page, "run: scripts/examples.sh"
    shown = re.search(r"test: score<strong>([\d.]+)</strong><span[^>]*>([\d.]+) to ([\d.]+)<", page).groups()
    stated = re.search(r"Score: ([\d.]+) \(([\d.]+) to ([\d.]+)\)", said).groups()
    score, low, high = map(float, shown)
    assert (score, low, min(high, 1.0)) == tuple(map(float, stated))


def test_differences_of_the_comparison_are_those_of_its_scores():
    page = (ROOT / "docs/examples/comparison.html").read_text(encoding="utf-8")
    interval = r" \([+\d.-]+ to [+\d.-]+\)</td>"
    page = re.sub(r"<td [^>]*>", "<td>", page)
    scores = dict(re.findall(rf"<td>(\S+)</td><td>finished</td><td>[\d,]+</td><td>([\d.]+){interval}", page))
    pairs = re.findall(rf"<td>(\S+)</td><td>(\S+)</td><td>test/score</td><td>\d+</td><td>([+\d.-]+){interval}", page)
    assert len(scores) == 3 and len(pairs) == 2
    for run, against, difference in pairs:
        assert float(difference) == pytest.approx(float(scores[run]) - float(scores[against]), abs=1.5e-3)
