"""Scores of an instruction are means over its episodes."""

import math

import numpy as np
import pytest

from dp_prior.evaluation.by_instruction import scores_by_instruction
from dp_prior.evaluation.interval import mean_interval


def test_scores_are_means_over_the_episodes_of_an_instruction():
    scores, successes = np.array([0.5, 1.0, 0.25, 0.75]), np.array([0.0, 1.0, 0.0, 1.0])
    right, left = scores_by_instruction(["up", "up", "down", "up"], scores, successes)[::-1]
    assert right["instruction"] == "up" and right["score"] == 0.75 and right["episodes"] == 3
    assert (right["score_ci_low"], right["score_ci_high"]) == mean_interval(scores[[0, 1, 3]])
    assert right["success_rate"] == pytest.approx(2 / 3)
    assert left["episodes"] == 1 and math.isnan(left["score_ci_low"]), "one episode has no interval"
