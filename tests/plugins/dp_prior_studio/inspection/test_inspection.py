"""Faults of the episodes that are left out do not keep the others from being trained on."""

from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.inspection import Inspection

FINDINGS = [
    Finding("error", "one", 1, leave_out=[1, 2], code="jumps"),
    Finding("error", "other", 3, leave_out=[3], code="jumps"),
    Finding("error", "all", code="jumps"),
    Finding("warning", "odd", leave_out=[4], code="jumps"),
]


def test_errors_that_remain_without_the_episodes_left_out_are_refusals():
    assert Inspection("a", findings=FINDINGS).refusals() == ["one (episode 1)", "other (episode 3)", "all"]
    assert Inspection("a", findings=FINDINGS, leave_out=[2, 4]).refusals() == ["other (episode 3)", "all"]


def test_a_data_set_without_a_finding_has_no_refusal():
    assert Inspection("a").refusals() == []
