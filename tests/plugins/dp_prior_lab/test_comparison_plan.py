"""A plan simulates the test that a comparison makes."""

import numpy as np
import pytest

from dp_prior_lab.comparison_plan import ERRORS, RATES, Studies, plan_lines, simulate
from dp_prior_lab.verdict import Comparison
from tests.cli.invoked import command
from tests.messages import told


@pytest.mark.parametrize(("worse", "better", "error", "per_round"), [(0.5, 0.8, 0.05, 10), (0.8, 0.8, 0.3, 7)])
def test_each_study_ends_as_the_comparison_of_its_outcomes(worse, better, error, per_round):
    studies, most = 40, 120
    simulated = simulate(worse, better, error, most, per_round, studies=studies, seed=3)
    random = np.random.default_rng(3)
    first = (random.random((studies, most)) < better).astype(float)
    second = (random.random((studies, most)) < worse).astype(float)
    assert {*simulated.right.tolist(), *simulated.wrong.tolist()} != {0}
    for study in range(studies):
        ends = (0, 0)
        for look in [*range(per_round, most, per_round), most]:
            scores = np.stack([first[study, :look], second[study, :look]])
            # A verdict between two looks counts where the evidence still stands at the look, as in the simulation.
            evidence = Comparison(scores, (0.0, 1.0), error)
            final = [bool(np.exp(wealth) >= 2 / error) for wealth in _last_wealth(evidence)]
            if any(final):
                ends = (look, 0) if final[0] else (0, look)
                break
        assert (simulated.right[study], simulated.wrong[study]) == ends


def _last_wealth(comparison):
    from dp_prior_lab.verdict import log_wealth

    gains = comparison.gains()
    return [log_wealth(gains[pair])[-1] for pair in ((0, 1), (1, 0))]


def test_equal_policies_are_told_apart_no_more_often_than_stated():
    for error in ERRORS:
        studies = simulate(0.8, 0.8, error, 300, 1, studies=1000)
        assert np.mean((studies.right > 0) | (studies.wrong > 0)) <= error


def test_a_smaller_difference_and_a_smaller_error_take_more_starts():
    def starts(worse, better, error):
        return simulate(worse, better, error, 1000, 10).starts_for(0.8)

    assert starts(0.8, 0.95, 0.05) < starts(0.8, 0.9, 0.05) < starts(0.8, 0.9, 0.01)
    assert starts(0.8, 0.81, 0.05) is None


@pytest.mark.parametrize(("right", "expected"), [([10, 20, 30, 0, 40], 40), ([10, 20, 0, 0, 30], None), ([10] * 5, 10)])
def test_starts_for_a_power_count_studies_without_a_verdict(right, expected):
    studies = Studies(np.array(right), np.zeros(5, int), 100)
    assert studies.starts_for(0.8) == expected


def test_the_table_has_a_line_for_each_pair_and_a_column_for_each_error():
    lines = list(plan_lines((0.05,), 60, 20))
    assert len(lines) == len(RATES) + 4 and told(lines[1], "error 0.05")
    done = command("compare", "--plan", "--error", "0.2", "--most", "50")
    assert done.exit_code == 0 and "error 0.05" not in done.output
    assert "error 0.2" in done.output and "over 50" in done.output


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("compare --plan a b", ("--plan", "'a'")),
        ("compare --plan --out c", ("--out", "--plan")),
        ("compare", ("--plan",)),
    ],
)
def test_a_plan_takes_no_policies_and_a_comparison_needs_some(line, refusal):
    done = command(*line.split())
    assert done.exit_code == 2 and told(done.output, *refusal), done.output
