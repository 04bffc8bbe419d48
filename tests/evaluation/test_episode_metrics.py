"""Rollouts and replays call the same quantity by the same name."""

from dp_prior.evaluation.episode_metrics import EPISODES, SCORE, SCORE_INTERVAL, SUCCESS
from dp_prior.evaluation.replay import ReplayConfig
from dp_prior.evaluation.rollout import RolloutConfig


def test_rollouts_and_replays_have_these_and_no_other_name_in_common():
    shared = {SCORE, *SCORE_INTERVAL, *SUCCESS, EPISODES}
    assert shared == {*RolloutConfig.metrics} & {*ReplayConfig.metrics}
    names = [{metric.name for metric in record.metrics} for record in (RolloutConfig, ReplayConfig)]
    assert names[0] & names[1] == {metric.name for metric in shared}
