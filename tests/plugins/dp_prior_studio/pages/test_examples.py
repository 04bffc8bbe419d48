"""The example pages stand alone, are small, and tell of nothing but their runs and data."""

import html
import json
import re
from pathlib import Path

import pytest

from tests.plugins.dp_prior_studio.pages.test_report import Outline

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.html"))


def test_there_is_one_of_each():
    assert [path.stem for path in EXAMPLES] == ["comparison", "data", "run"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_stands_alone_and_names_no_machine(path):
    page = path.read_text(encoding="utf-8")
    outline = Outline(page)
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert path.stat().st_size < 3 << 19 and "<script" not in page
    assert not re.search(r"/(?:work|home|tmp|root|Users)/", " ".join(outline.texts))


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
