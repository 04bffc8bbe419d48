"""Rollouts and replays call the same quantity by the same name."""

import numpy as np

from dp_prior.evaluation.episode_metrics import (
    EPISODES,
    SCORE,
    SCORE_INTERVAL,
    SUCCESS,
    with_failures,
)
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior_worlds.replay import ReplayConfig


def test_rollouts_and_replays_have_these_and_no_other_name_in_common():
    shared = {SCORE, *SCORE_INTERVAL, *SUCCESS, EPISODES}
    assert shared == {*RolloutConfig.metrics} & {*ReplayConfig.metrics}
    names = [{metric.name for metric in record.metrics} for record in (RolloutConfig, ReplayConfig)]
    assert names[0] & names[1] == {metric.name for metric in shared}


def test_episodes_without_a_word_failed_where_others_are_told_solved_and_else_are_unknown():
    np.testing.assert_array_equal(with_failures(np.array([1.0, np.nan, 0.0])), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(with_failures(np.full(3, np.nan)), np.full(3, np.nan))
