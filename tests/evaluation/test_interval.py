"""Confidence intervals against tables, closed forms and simulation."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.evaluation.interval import (
    UNBOUNDED,
    mean_interval,
    of_difference,
    share_interval,
    share_posterior,
    student_t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # printed tables, two-sided 95 %
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (10, 2.2281), (49, 2.0096), (1000, 1.9623)],
)
def test_student_t_quantile_is_that_of_the_tables(degrees, quantile):
    assert student_t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5.1e-5)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.999])
def test_student_t_quantile_of_one_and_two_degrees_has_a_closed_form(probability):
    assert student_t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)))
    alpha = 4 * probability * (1 - probability)
    assert student_t_quantile(probability, 2) == pytest.approx(2 * (probability - 0.5) * math.sqrt(2 / alpha))


@pytest.mark.parametrize("n", [2, 5, 50])
def test_mean_interval_covers_the_truth_as_often_as_it_says(n):
    """4000 simulated experiments; 95 % +- 4 standard errors of that share (0.34 %)."""
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4000, n))
    half = student_t_quantile(0.975, n - 1) * samples.std(axis=1, ddof=1) / math.sqrt(n)
    assert mean_interval(samples[0]) == pytest.approx((samples[0].mean() - half[0], samples[0].mean() + half[0]))
    assert abs((np.abs(samples.mean(axis=1) - 3.0) < half).mean() - 0.95) < 0.014


@pytest.mark.slow
def test_mean_interval_of_scores_in_the_unit_interval_covers_well_too():
    """Scores like ours: most solved, the rest anywhere; 50 episodes."""
    random = np.random.default_rng(1)
    scores = np.where(random.random((2000, 50)) < 0.6, 1.0, random.random((2000, 50)))
    covered = [low < 0.8 < high for low, high in map(mean_interval, scores)]
    assert 0.92 < np.mean(covered) < 0.97


def test_share_interval_meets_published_values():
    """Newcombe 1998, table I: 81 of 263 and 0 of 20."""
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert share_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert share_interval(20, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)


def test_share_interval_holds_the_share_and_ends_at_0_and_1_exactly():
    for n in range(1, 60):
        assert share_interval(0, n)[0] == 0 and share_interval(n, n)[1] == 1
        for successes in range(n + 1):
            low, high = share_interval(successes, n)
            assert 0 <= low <= successes / n <= high <= 1


def test_share_interval_ends_solve_its_definition():
    """At each end the distance to the observed share is z standard errors of that end (Wilson 1927)."""
    for successes, n in ((1, 10), (30, 50), (49, 50)):
        for end in share_interval(successes, n):
            z = abs(successes / n - end) / math.sqrt(end * (1 - end) / n)
            assert z == pytest.approx(1.959964, rel=1e-5)


def test_confidence_widens_both():
    values = np.array([0.1, 0.5, 0.9])
    for interval in (lambda c: mean_interval(values, c), lambda c: share_interval(3, 9, c)):
        (low, high), (lower, higher) = interval(0.9), interval(0.99)
        assert lower < low < high < higher


def test_value_without_number_gives_no_interval():
    assert all(math.isnan(end) for end in mean_interval(np.array([1.0, np.nan])))
    assert all(math.isnan(end) for end in share_interval(math.nan, 10))


def test_single_value_gives_no_interval_of_the_mean():
    assert all(math.isnan(end) for end in mean_interval(np.array([1.0])))


@example([0.0, 1.0])
@example([0.0] * 9)
@example([1.0] * 9)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_limits_of_a_score_are_those_of_the_interval_and_the_mean_stays_inside(scores):
    values = np.array(scores)
    low, high = mean_interval(values, limits=(0.0, 1.0))
    assert 0 <= low <= values.mean() + 1e-12 and values.mean() - 1e-12 <= high <= 1
    wide = mean_interval(values)
    assert (low, high) == (max(0.0, wide[0]), min(1.0, wide[1]))  # inside the limits nothing changes


def test_an_unknown_score_has_no_interval_within_limits_either():
    for values in ([0.5], [0.5, np.nan]):
        assert np.isnan(mean_interval(np.array(values), limits=(0.0, 1.0))).all()


@given(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted), st.floats(0, 1), st.floats(0, 1))
def test_differences_of_bounded_values_have_their_limits(limits, a, b):
    low, high = of_difference(tuple(limits))
    values = [min(max(limits[0] + share * (limits[1] - limits[0]), limits[0]), limits[1]) for share in (a, b)]
    assert low <= values[0] - values[1] <= high
    assert of_difference(UNBOUNDED) == UNBOUNDED


def test_the_posterior_of_a_share_is_that_of_scipy():
    scipy = pytest.importorskip("scipy.stats")
    for n in (1, 2, 10, 50, 1000):
        for successes in {0, 1, n // 3, n - 1, n}:
            known = scipy.beta(successes + 1, n - successes + 1)
            for confidence in (0.5, 0.95):
                mean, low, high = share_posterior(successes, n, confidence)
                assert mean == pytest.approx(known.mean())
                assert (low, high) == pytest.approx(known.interval(confidence), abs=1e-9)


def test_the_posterior_after_no_or_only_successes_has_a_closed_form_and_an_unknown_number_none():
    assert share_posterior(0, 9)[1:] == pytest.approx([1 - q ** (1 / 10) for q in (0.975, 0.025)])
    assert share_posterior(9, 9)[1:] == pytest.approx([q ** (1 / 10) for q in (0.025, 0.975)])
    assert all(map(math.isnan, share_posterior(math.nan, 9)))
