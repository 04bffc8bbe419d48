"""The dialogue of a blind trial: it goes on after any kill, asks again after any bad answer, and betrays no policy."""

import itertools
import re
from types import SimpleNamespace

import pytest

from dp_prior_lab.trial import Dialogue
from dp_prior_lab.trial_journal import Journal
from dp_prior_lab.trial_sheet import Sheet, TrialRules
from tests.faults import assert_none

RATES = {"poor": 0.1, "good": 0.9, "fair": 0.6, "great": 0.9}


class Server:
    """Counts as a server does; an action is asked for as soon as a trial begins, unless `is_alone`."""

    def __init__(self):
        self.telemetry, self.told, self.is_alone = SimpleNamespace(requests={"answered": 0}), [], False

    def begin(self, seed, log=None):
        self.told.append(seed)
        self.telemetry.requests["answered"] += not self.is_alone

    def refuse(self, reason):
        self.told.append("rests")


class Sitting:
    """A person at a dialogue, whose process may be killed before any answer.

    Attributes:
        shown: questions, answers and lines.
        answered: how many of these were shown when each answer was given.
    """

    def __init__(self, folder, names=("poor", "good"), seed="a", answers=(), dies_at=(), **rules):
        folder.mkdir(exist_ok=True)
        self.folder, self.names, self.seed, self.rules = folder, names, seed, TrialRules(**rules)
        self.answers, self.dies_at, self.shown, self.answered = iter(answers), set(dies_at), [], []
        self.server, self.lineup = Server(), SimpleNamespace(acting=None)
        self.counts = itertools.count(1)

    def ask(self, question):
        self.shown.append(question)
        if next(self.counts) in self.dies_at:
            raise KeyboardInterrupt
        answer = next(self.answers, None)
        answer = self.usual(question) if answer is None else answer
        self.shown.append(answer)
        self.answered.append(len(self.shown))
        return answer

    def usual(self, question):
        """The outcome that the start and the acting policy have."""
        if "outcome (" not in question:
            return "yes" if "(yes, no)" in question else ""
        start = re.search(r"start '(.*?)'", question)[1]
        draw = (int(start) * 0.377 + 0.05) % 1
        return "success" if draw < RATES[self.names[self.lineup.acting]] else "failure"

    def hold(self):
        """The sheet after as many processes as it takes."""
        while True:
            journal = Journal(self.folder / "trials.jsonl")
            sheet = Sheet(self.names, self.seed, self.rules, journal)
            try:
                Dialogue(sheet, self.lineup, self.server, self.ask, self.shown.append, self.folder).run()
                return sheet
            except KeyboardInterrupt:
                pass
            finally:
                journal.close()


def rows(sheet):
    return list(sheet.outcomes().rows.values())


@pytest.mark.promise("L2")
def test_a_trial_that_is_killed_before_any_answers_is_the_one_that_is_not(tmp_path):
    whole = Sitting(tmp_path / "whole", most=4)
    sheet = whole.hold()
    questions = next(whole.counts) - 1
    for stop in range(1, questions + 1):
        killed = Sitting(tmp_path / f"{stop}", most=4, dies_at={stop, stop + 3, stop + 4})
        again = killed.hold()
        assert rows(again) == rows(sheet), stop
        assert len(again.journal.trials) == len(sheet.journal.trials) == 8, stop


@pytest.mark.promise("L2")
def test_a_journal_that_is_cut_anywhere_goes_on_with_the_trial_that_was_open(tmp_path):
    sheet = Sitting(tmp_path / "whole", most=2).hold()
    data = (tmp_path / "whole" / "trials.jsonl").read_bytes()
    for size in range(0, len(data), 23):
        folder = tmp_path / f"{size}"
        folder.mkdir()
        (folder / "trials.jsonl").write_bytes(data[:size])
        assert rows(Sitting(folder, most=2).hold()) == rows(sheet), size


@pytest.mark.promise("L3")
def test_the_screen_and_the_server_say_the_same_whichever_policy_acts(tmp_path):
    seen, orders = set(), set()
    for seed in "abcdef":
        answers = itertools.cycle(["", "0.5", "lift", ""])  # start, outcome, stage, notes
        sitting = Sitting(tmp_path / seed, seed=seed, answers=answers, most=3, stages=("reach", "lift"))
        sheet = sitting.hold()
        orders.add(tuple(sheet.policy(block, 0) for block in range(3)))
        seen.add(("\n".join(sitting.shown), tuple(sitting.server.told)))
    ((screen, _),) = seen
    assert len(orders) > 2 and not any(name in screen for name in sheet.names)


def test_every_policy_acts_once_in_each_block_in_an_order_that_changes(tmp_path):
    sitting = Sitting(tmp_path, names=("poor", "good", "fair"), answers=itertools.cycle(["", "0.5", ""]), most=30)
    sheet = sitting.hold()
    orders = [tuple(sheet.policy(block, place) for place in range(3)) for block in range(30)]
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2)}
    assert len(set(orders)) == 6
    assert [(trial.block, trial.place) for trial in sheet.journal.trials] == list(
        itertools.product(range(30), range(3))
    )


def test_it_ends_with_the_verdict_and_a_policy_that_is_told_apart_acts_no_more(tmp_path):
    sheet = Sitting(tmp_path / "two", most=200).hold()
    assert sheet.comparison().pairs()[0].better == 1 and len(sheet.journal.trials) < 100
    sheet = Sitting(tmp_path / "three", names=("good", "poor", "great"), most=40).hold()
    counts = [row["policy"] for row in rows(sheet)]
    assert counts.count("poor") < counts.count("good") == counts.count("great") == 40


def test_a_void_trial_is_repeated_at_the_end_of_its_block(tmp_path):
    sheet = Sitting(tmp_path, answers=["7", "void cup fell"], most=2).hold()
    places = [(trial.block, trial.place, trial.start) for trial in sheet.journal.trials]
    assert places == [(0, 0, "7"), (0, 1, "7"), (0, 0, "7"), (1, 0, "2"), (1, 1, "2")]
    assert sheet.void() == {sheet.names[sheet.policy(0, 0)]: 1} and sheet.comparison().rollouts == 4


def test_an_entry_is_corrected_by_another_one_and_stays_in_the_journal(tmp_path):
    """Also while the next trial is under way, whose policy goes on acting."""
    answers = ["", "0.25", "wrong", "", "undo", "0.75", "right", "0.5", "", "undo 1", "void unclear", "undo"]
    sitting = Sitting(tmp_path, answers=answers, most=1)
    sheet = sitting.hold()
    first, second, third = sheet.journal.trials
    assert (first.entry, third.place) == ({"reason": "unclear"}, first.place)
    assert second.score == (1.0 if sheet.names[sheet.policy(0, second.place)] == "good" else 0.0)
    text = (tmp_path / "trials.jsonl").read_text()
    assert all(f'"score": {score}' in text for score in (0.25, 0.75, 0.5)) and text.count('"withdraw"') == 3
    assert sitting.server.told == ["rests", 0, "rests", 0, *["rests"] * 3, 0, "rests"]  # the second 0: trial 2


def test_a_correction_that_opens_an_earlier_block_is_asked_for_there(tmp_path):
    answers = ["", "1", "", "", "0", "", "7", "1", "", "undo 2", "void it", ""]
    sheet = Sitting(tmp_path, answers=answers, most=2).hold()
    assert [(trial.block, trial.start) for trial in sheet.journal.trials] == [
        (0, "1"), (0, "1"), (1, "7"), (0, "1"), (1, "7"),
    ]  # fmt: skip
    assert sheet.comparison().rollouts == 4


def test_bad_answers_are_told_and_asked_again(tmp_path):
    table = [  # the answers that lead there, a bad one, what is said
        ([], "undo", ["no entry", "none"]),
        ([], "undo 3", ["'3'"]),
        ([], "end", ["nothing"]),
        ([""], "", ["''", "void WHY"]),
        ([""], "2", ["'2'", "0 to 1"]),
        ([""], "-0.1", ["'-0.1'", "0 to 1"]),
        ([""], "nan", ["'nan'"]),
        ([""], "good", ["'good'", "success"]),
        ([""], "void", ["void WHY"]),
        ([""], "end", ["'end'"]),
        (["", "1"], "3", ["'3'", "1 reach", "2 lift"]),
        (["", "1"], "undo", ["'undo'", "1 reach"]),
        (["", "1", "", ""], "cup", ["'cup'", "Enter"]),
        (["", "1", "", "", "", "1", "", ""], "1", ["'1'"]),
    ]
    faults = []
    for number, (before, bad, parts) in enumerate(table):
        sitting = Sitting(tmp_path / str(number), answers=[*before, bad], most=3, stages=("reach", "lift"))
        assert len(rows(sitting.hold())) == 6
        said = sitting.shown[sitting.answered[len(before)]]
        faults += [f"{bad!r} after {before}: {said!r} lacks {part!r}" for part in parts if part not in said]
    assert_none(faults)


def test_answers_that_a_person_may_give(tmp_path):
    table = {"success": 1.0, "s": 1.0, "Failure": 0.0, "f": 0.0, "0,5": 0.5, " .25 ": 0.25, "1e-1": 0.1}
    for number, (answer, score) in enumerate(table.items()):
        sheet = Sitting(tmp_path / str(number), answers=["", answer], most=1).hold()
        assert sheet.journal.trials[0].score == score, answer


def test_an_outcome_without_a_request_of_the_robot_is_refused(tmp_path):
    sitting = Sitting(tmp_path, answers=["", "1", "void not connected", ""], most=1)
    sitting.server.is_alone = True
    ask = sitting.ask

    def asked(question):
        if len(sitting.shown) > 6:
            sitting.server.is_alone = False
        return ask(question)

    sitting.ask = asked
    sheet = sitting.hold()
    assert "trial 1" in sitting.shown[4] and "robot" in sitting.shown[4]
    assert sheet.journal.trials[0].entry == {"reason": "not connected"} and sheet.comparison().rollouts == 2


def test_the_trial_may_end_early_and_is_over_then(tmp_path):
    sheet = Sitting(tmp_path, answers=["", "1", "", "end", "no", "end", "yes"]).hold()
    assert sheet.comparison().rollouts == 1 and sheet.journal.is_unblinded
    again = Sitting(tmp_path)
    again.hold()
    assert again.shown == []


def test_a_lost_client_is_told_while_a_trial_is_under_way(tmp_path):
    sitting = Sitting(tmp_path, most=1)
    journal = Journal(tmp_path / "trials.jsonl")
    dialogue = Dialogue(
        Sheet(sitting.names, "a", sitting.rules, journal),
        sitting.lineup,
        sitting.server,
        None,
        sitting.shown.append,
        tmp_path,
    )
    dialogue.lost()
    assert sitting.shown == []
    journal.begin(0, 0, "left")
    dialogue.lost()
    assert "trial 1 (start 'left')" in sitting.shown[0] and "void WHY" in sitting.shown[0]


@pytest.mark.parametrize("size", [2, 3])
def test_a_resumed_trial_acts_with_the_policy_and_the_noise_that_it_had(tmp_path, size):
    names = tuple(RATES)[:size]
    acted = []
    for dies in ((), {2}, {5}):
        sitting = Sitting(tmp_path / f"{dies}", names=names, most=2, dies_at=dies)
        begin = sitting.server.begin
        seen = []
        sitting.server.begin = lambda seed, log, begin=begin, seen=seen, sitting=sitting: (
            seen.append((seed, sitting.lineup.acting)),
            begin(seed),
        )
        sitting.hold()
        acted.append([one for one, _ in itertools.groupby(seen)])
    assert acted[0] == acted[1] == acted[2]
