"""The table: no row lost when columns come later, the same laws as the log of record."""

import csv
import math
import os
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_prior.clock import Progress
from dp_prior.tracking.csv import CUT, ROWS, CsvLogger
from dp_prior.tracking.identity import Identity
from dp_prior.tracking.tracker import RESERVED, Run


def at(step):
    return Progress(10 * step, step)


def opened(directory):
    logger = CsvLogger()
    logger.begin(Run(directory, Identity("a", "b"), {}, 1.0, print))
    return logger


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file, strict=True)]


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=4)
NUMBERS = st.floats() | st.integers() | st.sampled_from([math.nan, math.inf, -math.inf, 10**40])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.dictionaries(NAMES.filter(lambda n: n not in RESERVED), NUMBERS, max_size=4)),
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_every_number_is_read_back_whatever_its_name_and_whenever_it_came(tmp_path_factory, logged, reopen_after):
    directory = tmp_path_factory.mktemp("log")
    logger, step, expected = opened(directory), 0, {}
    for index, (increase, metrics) in enumerate(logged):
        step += increase
        logger.log(metrics, at(step))
        expected.setdefault(step, {"step": str(step), "samples_seen": str(10 * step)}).update(
            {name: repr(value) for name, value in metrics.items()}
        )
        if index == reopen_after:
            logger.close()
            logger = opened(directory)
    logger.close()
    assert table(directory / ROWS) == list(expected.values())
    assert not (directory / CUT).exists()


@given(st.sets(st.integers(0, 12)), st.integers(0, 12))
@settings(deadline=None, max_examples=40)
def test_rewind_cuts_what_will_come_again_and_keeps_it_aside(tmp_path_factory, steps, resumed):
    directory = tmp_path_factory.mktemp("log")
    logger = opened(directory)
    for step in sorted(steps):
        logger.log({"loss": step / 4, f"only_{step}": 1}, at(step))
    before = table(directory / ROWS)
    logger.rewind(at(resumed))
    kept = [row for row in before if int(row["step"]) <= resumed] if resumed else []
    assert table(directory / ROWS) == kept
    assert kept + (table(directory / CUT) if (directory / CUT).exists() else []) == before
    logger.log({"loss": 9}, at(resumed + 1))
    logger.close()
    assert table(directory / ROWS)[-1]["loss"] == "9"


def test_a_torn_last_line_is_kept_aside_at_every_length(tmp_path):
    logger = opened(tmp_path / "whole")
    for step in (1, 2):
        logger.log({"loss": 0.5}, at(step))
    whole = (tmp_path / "whole" / ROWS).read_bytes()
    second = whole.rindex(b"\n", 0, -1) + 1
    for length in range(second, len(whole)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / ROWS).write_bytes(whole[:length])
        again = opened(directory)
        assert [row["step"] for row in table(directory / ROWS)] == ["1"]
        assert length == second or table(directory / CUT) == [{"torn": whole[second:length].decode()}]
        again.log({"loss": 0.25}, at(2))
        again.close()
        assert [row["step"] for row in table(directory / ROWS)] == ["1", "2"]


def test_a_table_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / ROWS).write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="begins with .* so it is no log of a run; move it away"):
        opened(tmp_path)
    assert (tmp_path / ROWS).read_text() == "a,b\n1,2\n"


def test_a_row_that_did_not_fit_is_taken_back_and_the_next_one_is_whole(tmp_path):
    """The limit on file sizes stands for a full disk; the child lifts it again."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            logger = opened(tmp_path)
            logger.log({"a": 1}, at(1))
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
            for step in (1, 2, 3):
                try:
                    logger.log({"a": 10**30}, at(step))
                    status = 3
                except OSError:
                    status = 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            logger.log({"a": 4}, at(4))
            logger.log({"b": 4}, at(4))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [(row["step"], row["a"]) for row in table(tmp_path / ROWS)] == [("1", "1"), ("4", "4")]


def test_pictures_files_and_errors_are_a_no_op(tmp_path):
    logger = opened(tmp_path)
    logger.log_images({"a": tmp_path / "a.png"}, at(1))
    logger.log_file("a", tmp_path / "a.txt", at(1))
    logger.log_error("no", at(1))
    logger.sync()
    logger.close()
    assert table(tmp_path / ROWS) == []
