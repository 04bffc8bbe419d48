"""The rows of a log that grows."""

import json
import os

import pytest

from dp_prior.files.regular_files import UnfitError
from dp_prior.tracking import row_log
from dp_prior.tracking.jsonl import read_rows
from dp_prior.tracking.row_log import RowLog
from tests.messages import naming


def line(step, **metrics):
    return json.dumps({"step": step, "samples_seen": 8 * step, **metrics}) + "\n"


def written(path, *lines):
    (path / "metrics.jsonl").write_text("".join(lines))
    return RowLog(path / "metrics.jsonl")


def test_rows_are_those_of_the_file_however_it_grows(tmp_path):
    log, path = written(tmp_path, "no row\n", line(1)), tmp_path / "metrics.jsonl"
    changes = [
        lambda text: text,
        lambda text: text + line(2) + line(3),
        lambda text: text.replace(line(3), line(3, **{"val/loss": 0.5})),  # the newest row, with more metrics
        lambda text: text + line(4)[:-5],  # half a row
        lambda text: text + line(5) + "[]\n" + line(6),
        lambda text: line(1) + line(2),  # a resumed run has cut it
        lambda text: "",
        lambda text: line(9) + line(10),
    ]
    for change in changes:
        path.write_text(change(path.read_text()))  # in place: the same inode
        assert log.rows() == read_rows(tmp_path)
        assert log.rows() == read_rows(tmp_path)


def test_a_file_in_its_place_is_read_anew(tmp_path):
    log = written(tmp_path, line(1), line(2), line(3))
    assert [row["step"] for row in log.rows()] == [1, 2, 3]
    (tmp_path / "other").write_text(line(4) + line(2) + line(3) + line(5))
    os.replace(tmp_path / "other", tmp_path / "metrics.jsonl")
    assert [row["step"] for row in log.rows()] == [4, 2, 3, 5]


@pytest.mark.promise("K9")
def test_a_line_costs_once(tmp_path, monkeypatch):
    parsed, original = [], row_log.parse_row
    monkeypatch.setattr(row_log, "parse_row", lambda line: parsed.append(1) or original(line))
    log = written(tmp_path, *map(line, range(500)))
    assert len(log.rows()) == len(parsed) == 500
    for step in range(500, 503):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(line(step))
        parsed.clear()
        assert len(log.rows()) == step + 1 and len(parsed) == 2  # the newest is read again


@pytest.mark.promise("K9")
def test_a_long_log_keeps_its_ends_and_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(row_log, "MOST_ROWS", 100)
    lines = [line(step, **({"rollout/score": 1.0} if step % 50 == 0 else {"train/loss": 1})) for step in range(1001)]
    found = [row["step"] for row in written(tmp_path, *lines).rows()]
    assert len(found) <= 101 and found == sorted(found) and found[-1] == 1000
    assert {*range(0, 1001, 50)} <= {*found}
    many = [line(step, **{"rollout/score": 1.0}) for step in range(1001)]
    assert 40 < len(written(tmp_path, *many).rows()) <= 101


def test_a_row_of_a_long_log_is_looked_at_once_however_often_the_log_is_thinned(tmp_path, monkeypatch):
    looked, original = [], row_log._is_measured
    monkeypatch.setattr(row_log, "MOST_ROWS", 20)
    monkeypatch.setattr(row_log, "_is_measured", lambda row: looked.append(1) or original(row))
    lines = [line(step, **{"rollout/score" if step % 100 == 0 else "train/loss": 1.0}) for step in range(1001)]
    assert len(written(tmp_path, *lines).rows()) <= 21 and len(looked) <= len(lines)


@pytest.mark.promise("K9")
def test_endless_lines_and_pipes_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(row_log, "LONGEST_LINE", 100)
    assert [row["step"] for row in written(tmp_path, line(1), "x" * 1000 + "\n", line(2)).rows()] == [1, 2]
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UnfitError, match=naming("metrics.jsonl", "named pipe")):
        RowLog(tmp_path / "metrics.jsonl").rows()
