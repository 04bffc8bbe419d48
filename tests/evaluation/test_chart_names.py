"""Names of any length become lines of a chart."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.evaluation.chart_names import MOST_LINES, count_lines, in_lines
from tests.examples import examples

LONG = "task.backbone.type=unet1d, task.diffusion.objective.type=v, train.lr.peak=0.0003"


@pytest.mark.parametrize("width", [len(LONG), 10**6])
def test_a_short_name_is_as_it_was(width):
    assert in_lines(LONG, width) == LONG and in_lines("", width) == ""


def test_a_name_breaks_at_its_spaces_and_loses_no_word():
    lines = in_lines(LONG, 40).split("\n")
    assert " ".join(lines) == LONG and max(map(len, lines)) <= 40
    assert in_lines("x" * 50, 40).split("\n") == ["x" * 40, "x" * 10]


@examples(100)
@given(st.text(), st.integers(2, 60))
@example(" " * 70, 60)
@example("x" * 10_000, 2)
def test_no_name_takes_more_room_than_there_is(name, width):
    found = in_lines(name, width)
    assert count_lines([found]) <= max(MOST_LINES, 1 + name.count("\n") * (len(name) <= width))
    assert all(len(line) <= width for line in found.split("\n")) or found == name
