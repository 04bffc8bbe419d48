"""Reports about data name faults, counts, and the nearest name, and stay short."""

from pathlib import Path

import pytest

from dp_prior.data.errors import LONGEST_NAME, MOST_PROBLEMS_SHOWN, DataError, first_few, nearest_name
from tests.cases import every


@every(count=[1, 2, MOST_PROBLEMS_SHOWN, MOST_PROBLEMS_SHOWN + 1, 500])
def test_a_report_counts_all_problems_keeps_them_and_shows_the_first(count):
    problems = [f"fault {number}." for number in range(count)]
    error = DataError("set.npz", problems, "look there")
    lines = str(error).splitlines()
    assert error.problems == problems and lines[-1] == "  look there"
    assert lines[0] == f"set.npz: {count} problem{'s' * (count > 1)}"
    shown = [line.strip() for line in lines[1:-1]]
    assert shown[:MOST_PROBLEMS_SHOWN] == problems[:MOST_PROBLEMS_SHOWN]
    rest = count - MOST_PROBLEMS_SHOWN
    assert shown[MOST_PROBLEMS_SHOWN:] == ([f"... and {rest} more"] if rest > 0 else [])


@pytest.mark.parametrize("data", [Path("sets/one"), Path("sets/one").absolute()])
@pytest.mark.parametrize("inside", ["data/0.parquet", "data/0.parquet, row 3"])
def test_problems_are_placed_by_the_file_of_the_data_set_that_has_them(data, inside):
    problems = ["is damaged", "is empty"]
    for root in (data, data.absolute()):
        placed = DataError(f"{root}/{inside}", problems).placed(data)
        assert placed == [f"{inside}: {problem}" for problem in problems]
    for whole in (data, "state", f"{data}_other/0.parquet"):
        assert DataError(str(whole), problems).placed(data) == problems


def test_a_list_is_cut_with_dots_only_if_something_is_left_out():
    assert [first_few([1, 2, 3], most) for most in (2, 3, 4)] == ["1, 2, ...", "1, 2, 3", "1, 2, 3"]
    assert first_few([]) == ""


def test_the_nearest_name_is_told_beside_the_known_ones_in_bounded_text():
    assert nearest_name("agent_ps", ["goal", "agent_pos"]) == "Did you mean 'agent_pos'? It has: agent_pos, goal"
    assert nearest_name("zzz", ["goal"]) == "It has: goal" and nearest_name("a", []) == "It has none."
    many = [f"key_{number}" + "x" * 10 * LONGEST_NAME for number in range(5000)]
    assert len(nearest_name("key_1" + "x" * 10**6, many)) < 30 * LONGEST_NAME
