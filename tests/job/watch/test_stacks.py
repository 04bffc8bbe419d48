"""The file of a rank: the first stacks with their cause, or no file."""

import faulthandler
import sys

import pytest

from dp_prior.job.stop import LOST, Verdict
from dp_prior.job.watch.stacks import Stacks


@pytest.fixture
def restored():
    """pytest's own fault handler goes on afterwards."""
    was_enabled = faulthandler.is_enabled()
    yield
    if was_enabled:
        faulthandler.enable(sys.__stderr__)


@pytest.fixture
def path(tmp_path, restored):
    return tmp_path / "stacks" / "rank_1.txt"


def test_a_run_without_trouble_leaves_neither_file_nor_folder(path):
    stacks = Stacks(path)
    assert path.exists()
    stacks.close()
    assert not path.parent.exists()


def test_the_folder_stays_while_another_rank_has_a_file_in_it(path):
    other = Stacks(path.with_name("rank_0.txt"))
    Stacks(path).close()
    assert [one.name for one in path.parent.iterdir()] == ["rank_0.txt"]
    other.close()


@pytest.mark.parametrize("code", [1, LOST])
def test_the_first_verdict_is_written_above_the_stacks_and_no_second_one(path, code):
    stacks = Stacks(path)
    stacks.write("rank 1", Verdict(1, code, "the first"))
    stacks.write("rank 1", Verdict(1, code, "the second"))
    stacks.close()
    text = path.read_text()
    assert text.startswith("rank 1, ") and "the first" in text.splitlines()[0] and "the second" not in text
    assert text.count("most recent call first") >= 1 and "test_the_first_verdict" in text


def test_an_error_with_a_code_of_its_own_needs_no_stacks(path):
    stacks = Stacks(path)
    stacks.write("rank 1", Verdict(1, 64, "a wrong configuration"))
    stacks.close()
    assert not path.exists()


def test_stacks_of_earlier_starts_stay(path):
    for start in ("one", "two"):
        stacks = Stacks(path)
        stacks.write(start, Verdict(1, LOST, "lost"))
        stacks.close()
    text = path.read_text()
    assert text.startswith("one, ") and "\ntwo, " in text
    stacks = Stacks(path)
    stacks.close()
    assert path.read_text() == text


def test_a_timer_that_is_armed_is_cancelled_by_the_end(path, monkeypatch):
    calls = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **options: calls.append(seconds))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append("cancel"))
    stacks = Stacks(path)
    stacks.arm(60.0)
    stacks.close()
    assert calls[0] > 60.0 and calls[-1] == "cancel"


def test_where_no_file_can_be_opened_stacks_go_to_stderr_which_stays_open(tmp_path, restored, capfd):
    (tmp_path / "stacks").write_text("in the way")
    stacks = Stacks(tmp_path / "stacks" / "rank_1.txt")
    stacks.write("rank 1", Verdict("error", 1, "out of luck"))
    stacks.close()
    assert "test_where_no_file_can_be_opened" in capfd.readouterr().err and not sys.__stderr__.closed
