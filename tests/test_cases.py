"""A law over many cases fails with every case that breaks it; a draw holds every value of every argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import drawn
from tests.nested import nested

LAW = """
from tests.cases import every

@every(a=[1, 2], b=[2, 4])
def test_law(a, b, tmp_path):
    assert a * b != 4, tmp_path
"""


@pytest.mark.slow
def test_each_case_that_breaks_the_law_is_named_by_its_values(tmp_path):
    done = nested(LAW, tmp_path)
    named = [line.partition(" ")[0] for line in done.stdout.splitlines() if line.startswith("SUBFAILED")]
    assert done.returncode == 1 and sorted(named, reverse=True) == ["SUBFAILED(a=2,", "SUBFAILED(a=1,"], done.stdout
    assert "2 failed subtests" in done.stdout


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=9, unique=True), min_size=1, max_size=4))
def test_a_draw_holds_every_value_as_often_as_any_other_and_is_always_the_same(axes):
    cases = [*drawn(9, *axes)]
    assert len(cases) == 9 and cases == [*drawn(9, *axes)]
    for axis, column in zip(axes, zip(*cases, strict=True), strict=True):
        counts = [column.count(value) for value in axis]
        assert min(counts) >= 1 and max(counts) - min(counts) <= 1
