"""What a comparison tells is of the same policies and numbers in lines, document and page."""

import json
import math

import numpy as np
import pytest

from dp_prior_lab.claim import claim
from dp_prior_lab.comparison_result import NO_START, RESULT, VERDICT_PAGE, ComparisonResult, check_verdict_place
from dp_prior_lab.outcomes import OUTCOMES
from dp_prior_lab.verdict import Comparison
from tests.messages import naming, told


def result(*rates, starts=60, most=60):
    scores = (np.random.default_rng(0).random((len(rates), starts)) < np.array(rates)[:, None]) * 1.0
    return ComparisonResult(["one", "two", "three"][: len(rates)], Comparison(scores, (0.0, 1.0), 0.05), most)


@pytest.mark.parametrize("rates", [(0.95, 0.05), (0.05, 0.95)])
def test_the_difference_that_is_printed_is_that_of_the_better_policy_whichever_was_named_first(rates):
    found = result(*rates)
    line, *_ = found.lines()
    better, worse = ("one", "two") if rates[0] > rates[1] else ("two", "one")
    (pair,) = found.comparison.pairs()
    low, high = sorted(map(abs, pair.limits))
    assert pair.better == (better == "two") and line.index(better) < line.index(worse)
    assert told(line, f"{pair.after} starts")
    assert told(line, f"{abs(pair.difference):+.3f} ({low:+.3f} to {high:+.3f})", f"{pair.starts} starts")


def test_progress_has_the_starts_and_how_many_policies_are_not_told_apart():
    assert told(result(0.9, 0.9, 0.1, most=80).progress(), 60, 80, 2)
    assert "all are told apart" in result(0.9, 0.1).progress()


@pytest.mark.parametrize(("most", "rollouts"), [(80, 160), (None, None)])
def test_the_document_has_all_that_is_known_and_null_for_the_rest(most, rollouts, tmp_path):
    found = result(0.9, 0.2, most=most)
    written = [path.name for path in found.write(tmp_path / "out")]
    document = json.loads((tmp_path / "out" / RESULT).read_text())
    assert written == [RESULT, VERDICT_PAGE] and document == found.document()
    assert (document["rollouts"], document["most_rollouts"]) == (120, rollouts)
    assert document["pairs"][0]["better"] == "one" and [one["policy"] for one in document["policies"]] == found.names
    unknown = ComparisonResult(["one", "two"], Comparison(np.full((2, 1), math.nan), (0.0, 1.0), 0.05))
    (path,) = list(unknown.write(tmp_path / "new"))[:1]
    assert json.loads(path.read_text())["pairs"][0]["difference"] is None


def test_policies_without_a_common_start_have_no_difference_in_lines_and_page(tmp_path):
    scores = np.array([[1.0, math.nan], [math.nan, 0.0]])
    apart = ComparisonResult(["one", "two"], Comparison(scores, (0.0, 1.0), 0.05))
    line, *means = apart.lines()
    assert told(line, "one", "two") and line.endswith(NO_START) and told(means[0], "one", "1.000")
    page = list(apart.write(tmp_path / "out"))[-1].read_text()
    assert "common start" in page and not any("nan" in text for text in (*apart.lines(), page))


def test_the_verdict_of_a_table_replaces_earlier_ones_and_no_file_of_a_user(tmp_path):
    out, table = tmp_path / "out", tmp_path / "trials.csv"
    check_verdict_place(out, table)
    list(result(0.9, 0.2).write(out))
    check_verdict_place(out, table)
    for name, content in ((RESULT, "{}"), (RESULT, "no JSON"), (VERDICT_PAGE, "my notes")):
        mine = tmp_path / f"mine_{len(content)}" / name
        mine.parent.mkdir()
        mine.write_text(content)
        with pytest.raises(FileExistsError, match=naming(mine, "another")):
            check_verdict_place(mine.parent, table)
    table.touch()
    with pytest.raises(FileExistsError, match=naming(table, "--out")):
        check_verdict_place(table, table)


def test_the_verdict_of_another_table_does_not_replace_that_of_a_comparison(tmp_path):
    out = tmp_path / "compared"
    claim(out, {"policies": {"one": {"files": 1}, "two": {"files": 2}}})
    table = tmp_path / "trials.csv"
    with pytest.raises(FileExistsError, match=naming(out, "comparison", table, "--out")):
        check_verdict_place(out, table)
    (tmp_path / "link").symlink_to(out)
    check_verdict_place(out, tmp_path / "link" / OUTCOMES)  # its own outcomes
