"""A file of outcomes is read as it was written, or refused by its line."""

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior_lab.outcomes import CHECK, OUTCOMES, Outcomes
from tests.messages import naming

TABLE = "start,policy,score,note\n1,a,1,\n1,b,0.5,slipped\n2,a,0,\n"


def written(tmp_path, text):
    path = tmp_path / "trial.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_come_back_with_the_columns_that_nobody_asked_for(tmp_path):
    path = written(tmp_path, TABLE)
    outcomes = Outcomes.read(path, (0.0, 1.0))
    assert outcomes.policies == ["a", "b"] and outcomes.starts == ["1", "2"]
    np.testing.assert_array_equal(outcomes.scores(["b", "a"], ["2", "1"]), [[np.nan, 0.5], [0.0, 1.0]])
    outcomes.write(path)
    again = Outcomes.read(path, (0.0, 1.0))
    assert again.rows == outcomes.rows and list(again.rows["1", "b"].values()) == ["1", "b", "0.5", "slipped"]


def test_episodes_become_rows_with_the_lowest_score_where_there_is_none(tmp_path):
    limits = (-1.0, 1.0)
    outcomes = Outcomes.of_folder(tmp_path, limits)
    for seed, score in ((2, 0.25), (3, np.nan)):
        outcomes.add("a", [{"seed": seed, "score": score, "success": None, "steps": 9}], "score", -1.0)
    assert not outcomes.tells_success
    outcomes.add("b", [{"seed": 2, "score": 0.5, "success": True, "steps": 8}], "success", 0.0)
    outcomes.write(tmp_path / OUTCOMES)
    again = Outcomes.of_folder(tmp_path, limits)
    assert again.rows == outcomes.rows and again.tells_success
    np.testing.assert_array_equal(again.scores(["a", "b"], ["2", "3"]), [[0.25, -1.0], [1.0, np.nan]])
    assert [row["success"] for row in again.rows.values()] == ["", "", "1"]


def test_a_file_of_a_spreadsheet_is_read(tmp_path):
    path = tmp_path / "trial.csv"
    for text in (
        b'\xef\xbb\xbfpolicy,start,score\r\n"a, new",table 1,0.5\r\nb,table 1,1\r\n',
        b"policy;start;score\r\na, new;table 1;0,5\r\nb;table 1;1\r\n",
        b"policy\tstart\tscore\ra, new\ttable 1\t0,5\rb\ttable 1\t1\r",
        b'\n policy , start,score,,\n\n"a, new" ,table 1,0.5,,\n,,,,\nb,table 1 , 1,,\n\n',
    ):
        path.write_bytes(text)
        outcomes = Outcomes.read(path, (0.0, 1.0))
        assert outcomes.policies == ["a, new", "b"]
        assert outcomes.scores(["a, new", "b"], ["table 1"]).tolist() == [[0.5], [1.0]]


def test_what_is_no_table_of_text_is_refused(tmp_path):
    path = tmp_path / "trial.csv"
    path.write_bytes("start,policy,score\nTür,neu,1\n".encode("cp1252"))
    with pytest.raises(ConfigError, match=naming("trial.csv", "byte 20", "UTF-8")):
        Outcomes.read(path, (0.0, 1.0))
    with pytest.raises(ConfigError, match=naming(tmp_path, "folder")):
        Outcomes.read(tmp_path, (0.0, 1.0))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ("'start'", "nothing")),
        ("start,policy\n1,a\n", ("'score'", "start, policy")),
        ("start,policy,score\n1,a,0.5\n1,b,\n", ("line 3", "''")),
        ("start,policy,score\n1,a,good\n", ("line 2", "'good'")),
        ("start,policy,score\n1,a,nan\n", ("line 2", "nan", "0 to 1")),
        ("start,policy,score\n1,a,70\n", ("line 2", "70", "--range")),
        ("start,policy,score\n1,a,0\n2,a,1\n1,a,1\n", ("line 4", "line 2", "'a'", "'1'")),
        ("start,policy,score\n,a,0\n", ("line 2", "no start")),
        ("start,policy,score\n1,a\n", ("line 2", "''")),
        ("start,policy,score\n1\n", ("line 2", "no policy")),
        ("start,policy,score,score\n1,a,1,0\n", ("several", "'score'")),
        ("start,policy,score\n\n,,\n1,a,0,5\n", ("line 4", "4 cells", "expected 3", "quote")),
        ("start,policy,score\n1,a," + "9" * 200_000, ("line 2", "limit")),
    ],
)
def test_a_fault_is_told_by_its_line(tmp_path, text, told):
    with pytest.raises(ConfigError, match=naming("trial.csv", *told)):
        Outcomes.read(written(tmp_path, text), (0.0, 1.0))


def test_no_changed_bit_of_a_written_table_changes_a_score_in_silence(tmp_path):
    outcomes, limits = Outcomes(), (0.0, 1.0)
    for policy, score in (("a", 0.25), ("b2", 1.0)):
        episodes = [{"seed": seed, "score": score, "success": True, "steps": 12} for seed in (2, 12)]
        outcomes.add(policy, episodes, "score", 0.0)
    path = tmp_path / OUTCOMES
    outcomes.write(path)
    data, numbers = path.read_bytes(), outcomes.scores(["a", "b2"], outcomes.starts).tolist()
    refused = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            again = Outcomes.read(path, limits)
        except ConfigError:
            refused += 1
            continue
        assert again.scores(["a", "b2"], outcomes.starts).tolist() == numbers, (bit, bytes(changed))
        assert len(again.rows) == len(outcomes.rows)
    assert refused > 4 * len(data)


def test_a_spreadsheet_may_write_a_checked_table_again_and_a_person_may_correct_it(tmp_path):
    outcomes = Outcomes([{"start": "1", "policy": "a", "score": "0.5"}, {"start": "1", "policy": "b", "score": "1.0"}])
    path = tmp_path / OUTCOMES
    outcomes.write(path)
    again = path.read_text().replace(",", ";").replace("0.5", "0,50").replace("1.0", "1")
    path.write_text(again)
    assert Outcomes.read(path, (0.0, 1.0)).scores(["a", "b"], ["1"]).tolist() == [[0.5], [1.0]]
    path.write_text(again.replace("0,50", "0,75"))
    with pytest.raises(ConfigError, match=naming("line 2", "changed", "remove", CHECK)):
        Outcomes.read(path, (0.0, 1.0))
    path.write_text("".join(line.rpartition(";")[0] + "\n" for line in path.read_text().splitlines()))
    assert Outcomes.read(path, (0.0, 1.0)).scores(["a", "b"], ["1"]).tolist() == [[0.75], [1.0]]


def test_more_bets_than_a_comparison_ends_with_are_refused(tmp_path):
    rows = (f"1,p{number},0.5\n" for number in range(10_001))
    with pytest.raises(ConfigError, match=naming("trial.csv", "10,001 policies", "1 starts", "100,000,000")):
        Outcomes.read(written(tmp_path, "start,policy,score\n" + "".join(rows)), (0.0, 1.0))
