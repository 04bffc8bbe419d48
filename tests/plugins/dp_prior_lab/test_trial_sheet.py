"""The sheet of a trial: its order is sealed, is the same after any update, and its outcomes compare like any others."""

import itertools
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from dp_prior.config import ConfigError
from dp_prior.files.locks import FileLock
from dp_prior_lab import trial_sheet
from dp_prior_lab.compare import compare_outcomes
from dp_prior_lab.trial_journal import BlindTrial, Journal
from dp_prior_lab.trial_sheet import JOURNAL, SEALED, Sheet, TrialRules, opened_sheet
from tests.messages import naming, told_each


class Named:
    """A candidate with files of its own."""

    def __init__(self, name, **files):
        self.name, self.files = name, files or {"model": name}


def opened(out, *names, **rules):
    return opened_sheet([Named(name) for name in names or ("a", "b")], TrialRules(**rules), out)


def test_the_order_of_a_seed_never_changes():
    """Else trials that have been held would be credited to other policies."""
    sheet = Sheet("abc", "00ff", TrialRules(), None)
    orders = ["".join(str(sheet.policy(block, place)) for place in range(3)) for block in range(8)]
    assert orders == ["120", "201", "012", "210", "120", "120", "210", "210"]


def test_every_order_is_as_frequent_as_any_other():
    sheet = Sheet("abc", "seed", TrialRules(), None)
    counts = Counter(tuple(sheet.policy(block, place) for place in range(3)) for block in range(3000))
    assert set(counts) == set(itertools.permutations(range(3)))
    assert all(abs(count - 500) < 4 * 500**0.5 for count in counts.values())


def test_the_order_is_drawn_anew_for_each_folder_and_kept(tmp_path):
    found = []
    for name in ("one", "one", "other"):
        with opened(tmp_path / name) as sheet:
            found.append([sheet.policy(block, 0) for block in range(40)])
    assert found[0] == found[1] != found[2]


def test_the_outcomes_give_the_verdict_of_the_sheet(tmp_path):
    with opened(tmp_path, "good", "poor", "other", most=40, stages=("lift",), limits=(-1.0, 3.0)) as sheet:
        while (due := sheet.next()) is not None:
            trial = sheet.journal.begin(*due, sheet.start(due[0]) or f"start {due[0]}; here")
            score = (3.0, -1.0, 2.5)[sheet.policy(*due)] - 0.1 * (due[0] % 5) * (sheet.policy(*due) != 1)
            sheet.journal.enter(trial, score=score, stage="lift", notes="a, b")
        sheet.outcomes().write(tmp_path / "outcomes.csv")
        result = compare_outcomes(tmp_path / "outcomes.csv", (-1.0, 3.0), 0.05)
        order = [sheet.names.index(name) for name in result.names]
        known, again = sheet.comparison(), result.comparison
        assert again.rollouts == known.rollouts
        assert (again.decided() == known.decided()[order][:, order]).all() and known.decided().any()
    assert "start 0; here" in (tmp_path / "outcomes.csv").read_text()


def test_a_policy_may_be_named_in_another_order_but_not_be_another(tmp_path):
    with opened(tmp_path / "out", "a", "b") as sheet:
        names = sheet.names
    with opened(tmp_path / "out", "b", "a") as sheet:
        assert sheet.names == names
    for names, rules, parts in (
        (("a", "c"), {}, ["a, b"]),
        (("a", "b"), {"error": 0.1}, ["error"]),
        (("a", "b"), {"limits": (0.0, 2.0)}, ["range"]),
        (("a", "b"), {"stages": ("lift",)}, ["stages"]),
    ):
        with pytest.raises(ConfigError, match=naming(*parts, "--out")), opened(tmp_path / "out", *names, **rules):
            pass
    with (
        pytest.raises(ConfigError, match=naming("b", "a;")),
        opened_sheet([Named("a", w="1"), Named("b", w="1")], TrialRules(), tmp_path / "new"),
    ):
        pass
    with opened(tmp_path / "out"), pytest.raises(FileExistsError, match=naming("--out")), opened(tmp_path / "out"):
        pass
    with FileLock.take(tmp_path / "out", folder=True):
        pass  # it was released


@pytest.mark.parametrize("damage", [None, b"", b'{"seed": "0"}\n'])
def test_an_order_that_is_lost_is_not_drawn_again(damage, tmp_path):
    with opened(tmp_path) as sheet:
        sheet.journal.begin(0, 0, "1")
    (tmp_path / SEALED).unlink() if damage is None else (tmp_path / SEALED).write_bytes(damage)
    with pytest.raises(ConfigError, match=naming(SEALED, "--out")), opened(tmp_path):
        pass
    assert len(Journal(tmp_path / JOURNAL).trials) == 1


def test_a_score_outside_the_limits_and_a_place_of_no_policy_are_told():
    trials = [
        BlindTrial(1, 0, 0, "x", {"score": 5.0}),
        BlindTrial(2, 0, 2, "x"),
        BlindTrial(3, 0, 1, "x", {"score": 1.0}),
    ]
    with pytest.raises(ConfigError) as caught:
        trial_sheet._check_trials(Mock(trials=trials), 2, (0.0, 1.0), Path("trials.jsonl"))
    assert told_each(caught.value.problems, ("trial 1", 5, "0 to 1"), ("trial 2", "place 2", "0 to 1"))
