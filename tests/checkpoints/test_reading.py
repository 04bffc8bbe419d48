"""What is missing is damage; what cannot be read is tried again, and then said to be unreadable."""

import errno
import os

import pytest

from dp_prior.checkpoints.errors import (
    CheckpointError,
    DamagedError,
    GoneError,
    NewerFormatError,
    UnreadableCheckpointError,
)
from dp_prior.checkpoints.reading import Patience, holds_links, told_apart
from dp_prior.files.regular_files import UnfitError
from tests.messages import naming


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def failing(times, error):
    """A read that fails so often, then gives the number of calls."""
    calls = []

    def read():
        calls.append(None)
        if len(calls) <= times:
            raise error
        return len(calls)

    return read


def test_all_reads_of_one_patience_share_a_second(waits):
    patience = Patience()
    trouble = UnreadableCheckpointError("here", "it stalls")
    assert patience(failing(2, trouble)) == 3 and patience(failing(1, trouble)) == 2
    with pytest.raises(UnreadableCheckpointError):
        patience(failing(1, trouble))
    assert len(waits) == 3 and sum(waits) == pytest.approx(1.0) and sorted(waits) == waits


@pytest.mark.parametrize("error", [NewerFormatError("here", "9"), DamagedError("here", "x"), GoneError("here")])
def test_what_waiting_cannot_change_is_not_waited_for(waits, error):
    with pytest.raises(type(error)):
        Patience()(failing(1, error))
    assert waits == []


def raised(directory, error):
    """The error that comes out of `told_apart`."""
    with pytest.raises(CheckpointError) as caught, told_apart(directory, "spec.json"):
        raise error
    return caught.value


@pytest.mark.parametrize("code", ["ENOENT", "ENOTDIR", "EISDIR", "ELOOP"])
def test_a_missing_file_is_damage(tmp_path, code):
    error = raised(tmp_path, OSError(getattr(errno, code), "told"))
    assert type(error) is DamagedError and "spec.json" in error.problem and "told" in error.problem


@pytest.mark.parametrize("code", ["EACCES", "EIO", "EMFILE", "ENOMEM", "ESTALE", "ETIMEDOUT"])
def test_any_other_trouble_says_nothing_of_the_content(tmp_path, code):
    error = raised(tmp_path, OSError(getattr(errno, code), "told"))
    assert type(error) is UnreadableCheckpointError and "spec.json" in error.problem and "told" in error.problem


def test_memory_and_threads_are_trouble_of_the_machine_and_other_errors_pass(tmp_path):
    for error in (MemoryError("1 GB"), RuntimeError("can't start new thread")):
        assert type(raised(tmp_path, error)) is UnreadableCheckpointError
    with pytest.raises(RuntimeError, match=naming("a bug")), told_apart(tmp_path, "spec.json"):
        raise RuntimeError("a bug")
    assert type(raised(tmp_path, UnfitError(tmp_path, "is a named pipe"))) is DamagedError


@pytest.mark.parametrize("change", ["deleted", "renamed", "replaced"])
@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "told"), DamagedError("here", "x")])
def test_a_directory_that_goes_away_meanwhile_is_gone_and_not_damaged(tmp_path, change, error):
    directory = tmp_path / "step_00000001"
    directory.mkdir()
    with pytest.raises(GoneError), told_apart(directory, "spec.json"):
        if change == "deleted":
            directory.rmdir()
        else:
            directory.rename(tmp_path / "other")
        if change == "replaced":
            directory.mkdir()
        raise error


def test_a_link_is_seen_at_the_directory_and_at_each_file(tmp_path):
    directory = tmp_path / "step_00000001"
    directory.mkdir()
    (directory / "a").write_text("")
    assert not holds_links(directory)
    (tmp_path / "link").symlink_to(directory)
    assert holds_links(tmp_path / "link")
    os.symlink("nowhere", directory / "b")
    assert holds_links(directory)
