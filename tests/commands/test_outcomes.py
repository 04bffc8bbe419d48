"""A file of outcomes is read as it was written, or refused by its line."""

import numpy as np
import pytest

from dp_prior.commands.outcomes import Outcomes
from dp_prior.config import ConfigError
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
    assert path.read_text() == TABLE
    outcomes.add([{"start": "2", "policy": "b", "score": "0.25"}])
    outcomes.write(path)
    assert Outcomes.read(path, (0.0, 1.0)).scores(["b"], ["2"]).item() == 0.25


def test_a_file_of_a_spreadsheet_is_read(tmp_path):
    path = tmp_path / "trial.csv"
    path.write_bytes(b'\xef\xbb\xbfpolicy,start,score\r\n"a, new",table 1,0.5\r\nb,table 1,1\r\n')
    assert Outcomes.read(path, (0.0, 1.0)).policies == ["a, new", "b"]


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
        ("start,policy,score\n1,a\n", ("line 2", "None")),
        ("start,policy,score\n1\n", ("line 2", "no policy")),
    ],
)
def test_a_fault_is_told_by_its_line(tmp_path, text, told):
    with pytest.raises(ConfigError, match=naming("trial.csv", *told)):
        Outcomes.read(written(tmp_path, text), (0.0, 1.0))
