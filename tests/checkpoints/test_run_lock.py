"""The lock of a run directory, tried by real processes."""

import errno
import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from dp_prior.checkpoints.format import CheckpointError
from dp_prior.checkpoints.run_lock import LOCK, HeldDirectory, LockedError, RunLock
from tests.messages import naming, told


def hold_in_child(directory, fork_again=False):
    """A child process that holds the lock until killed; with `fork_again` also a grandchild that inherits it.

    Returns:
        (pid of the holder, pid of the grandchild or None), once the lock is held.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            held = RunLock(directory)
            orphan = os.fork() if fork_again else None
            if orphan == 0:
                time.sleep(60)
                os._exit(0)
            os.write(writing, f"{orphan or 0}\n".encode())
            time.sleep(60)
            held.release()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        orphan = int(pipe.readline())
    return child, orphan or None


def kill(pid, is_child=True):
    os.kill(pid, signal.SIGKILL)
    if is_child:
        os.waitpid(pid, 0)


@pytest.mark.promise("A7")
def test_second_run_is_refused_at_once_naming_the_holder_and_let_in_after_kill_9(tmp_path, monkeypatch):
    child, _ = hold_in_child(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    try:
        with pytest.raises(LockedError) as refusal:
            RunLock(tmp_path, wait_s=30)
    finally:
        kill(child)
    started = json.loads((tmp_path / LOCK).read_text())["started"]
    holder = (f"process {child}", os.uname().nodename, started)
    assert told(str(refusal.value), tmp_path, *holder, "Stop", "another directory")
    RunLock(tmp_path, wait_s=0).release()


def test_the_same_process_is_refused_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(LockedError, match=naming(f"process {os.getpid()}", "host")):
        RunLock(tmp_path)


def test_release_lets_others_in_even_while_a_forked_worker_lives(tmp_path):
    lock = RunLock(tmp_path)
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert lock.is_held
        lock.release()
        lock.release()
        assert not lock.is_held
        RunLock(tmp_path, wait_s=0).release()
    finally:
        kill(worker)


@pytest.mark.promise("A7")
def test_orphans_of_a_dead_holder_are_waited_for(tmp_path):
    child, orphan = hold_in_child(tmp_path, fork_again=True)
    kill(child)
    try:
        with pytest.raises(LockedError, match=naming("dead", "worker processes")):
            RunLock(tmp_path, wait_s=0.1)
    finally:
        kill(orphan, is_child=False)
    RunLock(tmp_path, wait_s=10).release()


def test_what_stands_in_the_lock_file_does_not_matter(tmp_path):
    for text in ["", "not json", "[1]", '{"host": 1, "pid": "x"}', '{"host": "elsewhere", "pid": 1}']:
        (tmp_path / LOCK).write_text(text)
        RunLock(tmp_path, wait_s=0).release()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=naming("/file/run", f"file ({tmp_path}/file)", "--set tracker.data_path=DIRECTORY")
    ):
        RunLock(tmp_path / "file" / "run")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_file_system_that_makes_no_directories_is_named_and_not_the_directory_that_is_missing():
    with pytest.raises(CheckpointError, match=naming("/proc/runs/a", "/proc")):
        RunLock(Path("/proc/runs/a"))


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CheckpointError, match=naming(tmp_path / LOCK, os.strerror(errno.ENOLCK), "flock")):
        RunLock(tmp_path)


@pytest.fixture
def held(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    held = HeldDirectory(directory)
    held.open()
    yield held
    held.close()


def test_a_directory_that_stays_is_its_path(held):
    (held.path / "file").write_text("")
    held.check()
    assert held.current() == held.path


def test_a_moved_one_is_an_error_that_names_the_path_and_is_still_reached(held, tmp_path):
    held.path.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=naming(held.path)):
        held.check()
    (held.current() / "exit.json").write_text("{}")
    assert (tmp_path / "elsewhere" / "exit.json").read_text() == "{}"
    (tmp_path / "elsewhere").rename(held.path)
    held.check()


def test_another_directory_at_the_path_is_not_the_one_that_is_held(held, tmp_path):
    held.path.rename(tmp_path / "elsewhere")
    held.path.mkdir()
    with pytest.raises(CheckpointError, match=naming(held.path)):
        held.check()
    assert os.path.samefile(held.current(), tmp_path / "elsewhere")


def test_a_deleted_one_cannot_be_reached(held):
    shutil.rmtree(held.path)
    with pytest.raises(CheckpointError):
        held.check()
    assert held.current() is None


def test_what_is_not_held_is_not_watched(held):
    held.close()
    held.close()
    shutil.rmtree(held.path)
    held.check()
    assert held.current() == held.path


def test_a_network_disk_that_stalls_is_not_gone(held, monkeypatch):
    def stall(*arguments, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "stat", stall)
    held.check()
