"""The stratified bootstrap against exact distributions, scipy, and what seeds and episodes have in common."""

import itertools

import numpy as np
import pytest

from dp_prior.evaluation.episode_metrics import worst_tenth
from dp_prior_studio.pages.bootstrap import STATISTICS, bootstrap, interval, mean, solved


def test_statistics():
    scores = np.array([0.5, 1.0, 0.2, 0.9999, 1.0, 0.3, 0.0, 0.7, 0.8, 0.4, 0.6])
    assert mean(scores) == pytest.approx(scores.mean()) and solved(scores) == pytest.approx(2 / 11)
    assert worst_tenth(scores) == pytest.approx(0.1), "a tenth of 11 is rounded up to 2"


def test_episodes_without_a_score_are_not_left_out_of_the_worst_tenth():
    """Sorted last, they made the worst tenth of a policy that broke down that of its other episodes."""
    scores = np.full((2, 20), 0.5)
    scores[0, 3] = np.nan
    np.testing.assert_array_equal(worst_tenth(scores), [np.nan, 0.5])
    assert all(np.isnan(statistic(scores[0])) for statistic in (mean, worst_tenth))


def test_bootstrap_has_the_exact_distribution_of_all_resamples():
    groups = [np.array([[0.1, 0.9, 0.4], [0.3, 0.2, 1.0]]), np.array([[0.5, 0.8, 0.0]])]
    exact = []
    for columns in itertools.product(range(3), repeat=3):
        for seeds in itertools.product(range(2), repeat=2):
            first = np.mean([groups[0][s, c] for s in seeds for c in columns])
            exact.append(first - np.mean([groups[1][0, c] for c in columns]))
    value, draws = bootstrap(groups, mean, draws=40_000)
    found = draws[:, 0] - draws[:, 1]
    assert value[0] - value[1] == pytest.approx(groups[0].mean() - groups[1].mean())
    assert found.mean() == pytest.approx(np.mean(exact), abs=4e-3) and found.std() == pytest.approx(
        np.std(exact), rel=0.02
    )
    for q in (0.025, 0.3, 0.5, 0.9, 0.975):  # the share below each exact quantile
        assert (found <= np.quantile(exact, q) + 1e-9).mean() == pytest.approx(
            np.mean(np.array(exact) <= np.quantile(exact, q) + 1e-9), abs=0.01
        )


def test_variance_of_the_bootstrapped_mean_is_that_of_rows_columns_and_rest():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(4, 1)) + rng.normal(size=(1, 30)) + rng.normal(size=(4, 30))
    a, b = scores.mean(1) - scores.mean(), scores.mean(0) - scores.mean()
    rest = scores - scores.mean() - a[:, None] - b
    expected = (a**2).sum() / 4**2 + (b**2).sum() / 30**2 + (rest**2).sum() / (4 * 30) ** 2
    _, draws = bootstrap([scores], mean, draws=40_000)
    assert draws.var() == pytest.approx(expected, rel=0.03)


def test_one_training_has_the_percentile_interval_of_scipy():
    scipy = pytest.importorskip("scipy.stats", reason="NOT CHECKED: scipy is not installed")
    rng = np.random.default_rng(2)
    a, b = rng.beta(4, 1, 100), rng.beta(3, 1, 100)
    _, draws = bootstrap([a[None], b[None]], mean, draws=20_000)
    how = {"n_resamples": 20_000, "method": "percentile", "paired": True, "rng": rng, "vectorized": True}
    difference = lambda x, y, axis: x.mean(axis) - y.mean(axis)  # noqa: E731
    expected = scipy.bootstrap((a, b), difference, **how).confidence_interval
    assert interval(draws[:, 0] - draws[:, 1]) == pytest.approx((expected.low, expected.high), abs=3e-3)


@pytest.mark.parametrize("trainings", [1, 5])
def test_equal_groups_differ_by_nothing_in_every_draw(trainings):
    scores = np.random.default_rng(3).uniform(size=(trainings, 40))
    for statistic in STATISTICS.values():
        _, draws = bootstrap([scores, scores.copy()], statistic, draws=50)
        np.testing.assert_array_equal(draws[:, 0], draws[:, 1])


def test_what_trainings_of_one_seed_share_is_not_in_their_difference():
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(5, 1))
    first, second = rng.normal(scale=0.01, size=(2, 5, 40))
    _, draws = bootstrap([shared + first, shared + second], mean, draws=500)
    assert (draws[:, 1] - draws[:, 0]).std() < 0.01 < 0.2 < draws[:, 0].std()


def test_draws_of_a_group_do_not_depend_on_the_others():
    one, other, third = np.random.default_rng(3).uniform(size=(3, 4, 40))
    _, alone = bootstrap([one], mean, draws=50)
    _, together = bootstrap([other[:2], third, one], mean, draws=50)
    np.testing.assert_array_equal(alone[:, 0], together[:, 2])
