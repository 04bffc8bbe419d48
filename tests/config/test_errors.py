"""A report counts its problems, names the file and stays short."""

import json
import re

import pytest

from dp_prior.config import MOST_PROBLEMS, ConfigError, errors_of
from tests.config.records import MINIMAL, Every, Run, problems, read
from tests.messages import naming


def test_the_report_counts_the_problems_and_names_the_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"task": {}, "usema": 1}')
    with pytest.raises(ConfigError) as caught:
        Run.from_json_path(path)
    assert str(caught.value).startswith(f"{path}: 2 problems\n  task.horizon: missing")
    with pytest.raises(ConfigError, match=naming("config", 1, "task")):
        read({})


def test_a_long_wrong_value_is_shortened():
    assert len(problems({**MINIMAL, "use_ema": "x" * 10_000})[0]) < 200


def test_many_problems_are_counted_and_the_first_are_shown():
    with pytest.raises(ConfigError) as caught:
        Every.from_json(json.dumps({f"k{i:03}": 0 for i in range(200)}))
    problems = caught.value.problems
    assert len(problems) == MOST_PROBLEMS + 1 and problems[0].startswith("k000: unknown key")
    total = int(re.match(r"config: (\d+) problems", str(caught.value))[1])
    assert total >= 200 and problems[-1] == f"and {total - MOST_PROBLEMS} more"


def test_an_error_of_a_value_is_one_of_its_setting_and_an_error_of_another_setting_stays():
    with pytest.raises(ConfigError) as caught, errors_of("task.backbone"):
        raise ValueError("17 is odd")
    assert (caught.value.source, caught.value.problems) == ("task.backbone", ["17 is odd"])
    inner = ConfigError("data", ["is empty"])
    with pytest.raises(ConfigError) as caught, errors_of("task"):
        raise inner
    assert caught.value is inner
    with pytest.raises(FileNotFoundError), errors_of("task"):
        raise FileNotFoundError("weights")
    with pytest.raises(ConfigError, match=naming("task", "weights")), errors_of("task", FileNotFoundError):
        raise FileNotFoundError("weights")
