"""File locks, held by real processes."""

import errno
import fcntl
import json
import os
import signal
import time

import pytest

from dp_prior.files.locks import FileLock, NoLocksError, holder_of
from tests.messages import naming
from tests.open_files import open_below


@pytest.fixture(params=[False, True], ids=["file", "folder"])
def place(request, tmp_path):
    """Arguments of `FileLock.take`."""
    return {"path": tmp_path if request.param else tmp_path / "lock", "folder": request.param}


def held_by_child(place, inherited=False):
    """A child process that holds the lock, and with `inherited` a grandchild that was forked meanwhile."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        lock = FileLock.take(**place)
        grandchild = os.fork() if inherited else 0
        if grandchild or not inherited:
            os.write(writing, f"{grandchild}\n".encode())
        time.sleep(60)
        lock.release()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return child, int(pipe.readline())


def test_one_holds_it_until_it_is_released_or_killed(place):
    child, _ = held_by_child(place)
    assert FileLock.take(**place) is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with FileLock.take(**place) as lock:
        assert FileLock.take(**place) is None, "neither does the same process take it twice"
    lock.release()
    FileLock.take(**place).release()


def test_a_forked_process_keeps_it_after_a_kill_but_not_after_a_release(place):
    child, orphan = held_by_child(place, inherited=True)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert FileLock.take(**place) is None
    if not place["folder"]:
        told, is_dead = holder_of(place["path"])
        assert told.startswith(f"process {child} on host") and is_dead
    os.kill(orphan, signal.SIGKILL)
    while (lock := FileLock.take(**place)) is None:
        time.sleep(0.01)
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
        os._exit(0)
    lock.release()
    FileLock.take(**place).release()
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def test_the_file_names_its_holder_and_whatever_stands_in_it_is_no_obstacle(tmp_path):
    path = tmp_path / "lock"
    for text in ("", "no JSON", "[1]", '{"host": 1, "pid": "x"}', '{"host": "elsewhere", "pid": 1}', "x" * 9999):
        path.write_text(text)
        with FileLock.take(path):
            found = json.loads(path.read_text())
            told = f"process {os.getpid()} on host {os.uname().nodename}, started {found['started']}"
            assert holder_of(path) == (told, False)
    path.write_text("no JSON")
    assert holder_of(path) == ("another process", False)


def test_a_file_that_its_holder_removed_is_not_locked_by_others(tmp_path, monkeypatch):
    """Otherwise the next process would lock a new file at that path beside the one that waited."""
    path, flock = tmp_path / "lock", fcntl.flock
    removals = iter([True, False])

    def removing(descriptor, how):
        flock(descriptor, how)
        if how != fcntl.LOCK_UN and next(removals):
            path.unlink()

    monkeypatch.setattr(fcntl, "flock", removing)
    lock = FileLock.take(path)
    monkeypatch.undo()
    assert path.exists() and FileLock.take(path) is None
    lock.release()


def test_a_link_or_a_pipe_is_refused_and_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=naming(os.strerror(errno.ELOOP))):
        FileLock.take(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=naming(os.strerror(errno.EINVAL))):
        FileLock.take(tmp_path / "pipe")

    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(NoLocksError, match=naming(os.strerror(errno.ENOLCK), f"'{tmp_path}/lock'")):
        FileLock.take(tmp_path / "lock")
    assert open_below(tmp_path) == []
