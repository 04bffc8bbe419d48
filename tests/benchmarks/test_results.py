"""The tables of pages are made of the records of results."""

import json
from pathlib import Path

import pytest

from benchmarks.results import MARKED, PAGES, cell, with_tables
from benchmarks.results import RECORDS as FILE

ROOT = Path(__file__).parents[2]
TEXTS = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
RECORDS = json.loads((ROOT / FILE).read_text(encoding="utf-8"))


def test_the_tables_in_the_repository_are_current():
    assert [with_tables(text, RECORDS) for text in TEXTS] == TEXTS, "run: python -m benchmarks.results"


def test_every_record_is_shown_once_and_names_machine_and_command():
    assert sorted(found[2] for text in TEXTS for found in MARKED.finditer(text)) == sorted(RECORDS)
    for name, record in RECORDS.items():
        assert all({"machine", "command"} <= (record["shared"] | row).keys() for row in record["rows"]), name


def test_intervals_hold_their_means():
    cells = [value for record in RECORDS.values() for row in record["rows"] for value in row.values()]
    for value in (value for value in cells if isinstance(value, dict) and "interval" in value):
        low, high = value["interval"]
        assert low <= value.get("score", value.get("percent")) <= high, value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        ("as it is", "as it is"),
        (700_160, "700,160"),
        (0.97, "0.970"),
        ({"score": 0.97, "interval": [0.9, 1.0]}, "0.970 (0.900 to 1.000)"),
        ({"percent": 94}, "94"),
        ({"percent": 94, "interval": [84, 98]}, "94 (84 to 98)"),
    ],
)
def test_cells(value, shown):
    assert cell(value).replace("\N{NO-BREAK SPACE}", " ") == shown
