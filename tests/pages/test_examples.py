"""The example pages stand alone, are small, and tell of nothing but their runs and data."""

import re
from pathlib import Path

import pytest

from tests.pages.test_report import Outline

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.html"))


def test_there_is_one_of_each():
    assert [path.stem for path in EXAMPLES] == ["comparison", "data", "run"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_stands_alone_and_names_no_machine(path):
    page = path.read_text(encoding="utf-8")
    outline = Outline(page)
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert path.stat().st_size < 3 << 19 and "<script" not in page
    assert not re.search(r"/(?:work|home|tmp|root|Users)/", " ".join(outline.texts))
