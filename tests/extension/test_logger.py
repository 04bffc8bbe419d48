"""A logger from an installed package: one line per row, survives failing, and follows a run that resumes."""

import json

import pytest

from tests.extension.installed import assert_unknown, examples, installed, lines_of
from tests.messages import told

PACKAGE = examples()["my_logger"]
ENTRY = {"loggers.lines": "outside_lines:LinesConfig"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("packages"), "outside_lines", PACKAGE, ENTRY) as tiny:
        yield tiny


def steps(place):
    return [json.loads(line)["step"] for line in (place / "run" / "lines.txt").read_text().splitlines()]


@pytest.mark.slow
def test_logger_of_30_lines_has_a_line_for_every_row_of_a_run_that_was_killed(tmp_path, tiny):
    assert lines_of(PACKAGE) <= 30
    assert_unknown("lines")
    config = tiny.write(tmp_path, train__steps=8, train__save_every={"steps": 4}, tracker__log=[{"type": "lines"}])
    assert tiny.train_and_die(config, "step", 7) < 0
    done = tiny.train(config)
    assert done.exit_code == 0, done.output
    assert sorted(set(steps(tmp_path))) == sorted({row["step"] for row in tiny.rows(tmp_path / "run")})
    logged = [step for step in steps(tmp_path) if step > 4]
    assert logged == sorted(logged), "rows of the killed process were cut"


@pytest.mark.slow
def test_logger_that_fails_costs_its_row_and_is_told(tmp_path, tiny):
    log = [{"type": "lines", "fail_at": 4}]
    done = tiny.train(tiny.write(tmp_path, train__steps=8, tracker__log=log))
    assert done.exit_code == 0 and told(done.output, "OSError", "paper")
    assert 4 not in steps(tmp_path) and {2, 6, 8} <= set(steps(tmp_path))
