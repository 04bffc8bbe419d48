"""Tables of trials of other tools hold the same outcomes."""

import pytest

from dp_prior.config import ConfigError
from dp_prior_lab.outcomes import Outcomes
from dp_prior_lab.trial_tables import write_trials
from tests.cli.invoked import command
from tests.messages import naming, told

EXPORTED = """trial_id,seq,block,replicate,condition,arm,status,attempt,stage_index,success,termination,notes
t1,1,1,1,cup left,A,completed,1,0,True,success,
t2,2,1,1,cup left,B,completed,1,-1,False,other,slipped
t3,3,2,2,cup left,B,invalid,1,-1,,robot_fault,cable
t4,4,2,2,cup left,B,completed,2,0,True,success,
t5,5,2,2,cup left,A,completed,1,0,True,success,
"""
"""As `fieldtrial export` writes a study."""

IMPORTED = "condition,arm,success\ncup left,A,yes\ncup left,A,0\ncup left,B,fail\n"
RECORDED = "policy_id,task_id,scenario_id,success,seed\npi,pick,7,true,1\nact,pick,7,false,1\npi,place,7,1,1\n"


def outcomes(tmp_path, text):
    path = tmp_path / "trials.csv"
    path.write_text(text, encoding="utf-8")
    return Outcomes.read(path, (0.0, 1.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EXPORTED, {("cup left/1", "A"): 1, ("cup left/1", "B"): 0, ("cup left/2", "B"): 1, ("cup left/2", "A"): 1}),
        (IMPORTED, {("cup left", "A"): 1, ("cup left/2", "A"): 0, ("cup left", "B"): 0}),
        (RECORDED, {("pick/7", "pi"): 1, ("pick/7", "act"): 0, ("place/7", "pi"): 1}),
    ],
)
def test_trials_are_outcomes(tmp_path, text, expected):
    rows = outcomes(tmp_path, text).rows
    assert {place: float(row["score"]) for place, row in rows.items()} == expected


@pytest.mark.parametrize("cell", ["", "maybe", "0.5"])
def test_an_outcome_of_another_word_is_named_with_its_line(tmp_path, cell):
    with pytest.raises(ConfigError, match=naming("line 3", f"success is {cell!r}", "true", "invalid")):
        outcomes(tmp_path, f"condition,arm,success\na,A,1\nb,A,{cell}\n")


def test_a_table_of_no_tool_is_refused_with_the_columns_of_outcomes(tmp_path):
    with pytest.raises(ConfigError, match=naming("'start'", "condition, success", "start, policy, score")):
        outcomes(tmp_path, "condition,success\na,1\n")


def test_a_start_twice_of_a_policy_in_a_table_of_robostats_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=naming("line 3", "'pi'", "line 2")):
        outcomes(tmp_path, "policy_id,scenario_id,success\npi,7,1\npi,7,0\n")


def test_outcomes_come_back_from_the_table_that_both_tools_read(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("start,policy,score\n1,a,1\n1,b,0\n2,a,0.0\n2,b,1\n")
    done = command("compare", table, "--trials", tmp_path / "new.csv")
    assert done.exit_code == 0, done.output
    header, *rows = (tmp_path / "new.csv").read_text().splitlines()
    assert header == "condition,arm,success,policy_id,scenario_id" and rows[0] == "1,a,1,a,1"
    expected = Outcomes.read(table, (0.0, 1.0))
    again = Outcomes.read(tmp_path / "new.csv", (0.0, 1.0))
    assert {place: float(row["score"]) for place, row in again.rows.items()} == {
        place: float(row["score"]) for place, row in expected.rows.items()
    }


def test_parts_of_a_task_are_no_trials_and_nothing_is_replaced(tmp_path):
    with pytest.raises(ConfigError, match=naming("'cup'", "'a'", "0.5", "1 or 0", "--trials")):
        write_trials(tmp_path / "new.csv", [{"start": "cup", "policy": "a", "score": "0.5"}])
    assert not (tmp_path / "new.csv").exists()
    (tmp_path / "mine.csv").write_text("start,policy,score\n1,a,0.5\n1,b,0\n")
    done = command("compare", tmp_path / "mine.csv", "--trials", tmp_path / "new.csv")
    assert done.exit_code == 64 and "--measure" not in done.output  # which a file of outcomes refuses
    (tmp_path / "mine.csv").write_text("start,policy,score\n1,a,1\n1,b,0\n")
    (tmp_path / "new.csv").write_text("kept")
    done = command("compare", tmp_path / "mine.csv", "--trials", tmp_path / "new.csv")
    assert done.exit_code != 0 and (tmp_path / "new.csv").read_text() == "kept"
    done = command("compare", "a", "b", "--out", tmp_path / "c", "--trials", tmp_path / "other.csv")
    assert done.exit_code == 2 and told(done.output, "--measure success")


def test_the_tools_themselves_read_the_table(tmp_path):
    robostats = pytest.importorskip("robostats", reason="NOT CHECKED: robostats is not installed")
    write_trials(tmp_path / "new.csv", [{"start": "1", "policy": "a", "score": "1"}])
    names = {"policy_id_field": "policy_id", "scenario_fields": ["scenario_id"], "success_field": "success"}
    settings = {"protocol": robostats.Protocol(), "task_id": "cups", "run_id": "first"}
    (record,) = robostats.load_csv(tmp_path / "new.csv", **names, **settings)
    assert (record.policy_id, record.scenario_id, record.success) == ("a", "1", True)
