"""What to do next: repairs first, then a longer training unless the held-out loss has risen again."""

from dataclasses import replace
from pathlib import Path

from dp_prior_studio.attempt.attempt_folder import AttemptFolder
from dp_prior_studio.attempt.next_steps import next_steps
from dp_prior_studio.attempt.short_training import MeasuredTimes
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.inspection import Inspection
from tests.messages import told
from tests.plugins.dp_prior_studio.attempt.test_judgement import CLEAR, errors

TIMES = MeasuredTimes(step_s=0.5, evaluation_s=1.0, batch=10, total=12_000)
FOLDER = AttemptFolder(Path("tried/mine"))


def steps(judgement, samples=100, findings=()):
    inspection = Inspection("mine", findings=list(findings))
    listed = next_steps("mine.npz", FOLDER, [inspection], judgement, TIMES, samples)
    return [(reason, words[1], words[2:]) for reason, words in listed]


def test_a_longer_training_comes_first_unless_there_is_something_to_repair():
    [(reason, command, words), (_, second, _)] = steps(CLEAR)
    assert (command, words) == ("train", ["tried/mine/proposal.json"]) and second == "serve"
    assert told(reason, "12,000", "100", "10 min")
    findings = [
        Finding("warning", "jumps", 3, code="jumps"),
        Finding("warning", "idle", code="jumps"),
        Finding("note", "odd", code="jumps"),
    ]
    (reason, command, words), *following = steps(CLEAR, findings=findings)
    assert command == "inspect" and words == ["mine.npz", "--html", "tried/mine/inspection.html"]
    assert told(reason, "jumps", "episode 3", 1) and following == steps(CLEAR)
    assert steps(CLEAR, findings=findings[2:]) == steps(CLEAR)


def test_a_policy_that_does_not_learn_is_not_served():
    worse = replace(CLEAR, scaled=errors(0.8, 0.4, 0.8))
    assert [command for _, command, _ in steps(worse)] == ["train"]


def test_neither_overfitting_nor_a_spent_budget_asks_for_a_longer_training():
    risen = replace(CLEAR, losses=[(0, 2.0), (10, 0.5), (20, 0.7)])
    for judgement, samples in ((risen, 100), (CLEAR, 12_000)):
        assert [command for _, command, _ in steps(judgement, samples)] == ["evaluate", "serve"]
