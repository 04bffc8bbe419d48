"""Scores of an instruction are those of its episodes alone."""

import math

import numpy as np
import pytest

from dp_prior.evaluation.instruction_scores import scores_by_instruction
from dp_prior.evaluation.interval import mean_interval


def test_scores_are_means_over_the_episodes_of_an_instruction():
    scores, successes = np.array([0.5, 1.0, 0.25, 0.75]), np.array([0.0, 1.0, 0.0, 1.0])
    right, left = scores_by_instruction(["up", "up", "down", "up"], scores, successes)[::-1]
    assert right["instruction"] == "up" and right["score"] == 0.75 and right["episodes"] == 3
    assert (right["score_ci_low"], right["score_ci_high"]) == mean_interval(scores[[0, 1, 3]])
    assert right["success_rate"] == pytest.approx(2 / 3)
    assert left["episodes"] == 1 and math.isnan(left["score_ci_low"]), "one episode has no interval"


def test_the_interval_of_an_instruction_ends_at_the_limits_of_the_score():
    scores = np.array([0.0, 1.0, 1.0])
    (row,) = scores_by_instruction(["go"] * 3, scores, scores, limits=(0.0, 1.0))
    assert (row["score_ci_low"], row["score_ci_high"]) == mean_interval(scores, limits=(0.0, 1.0))
    assert row["score_ci_low"] == 0 and row["score_ci_high"] == 1
