"""Processes of other ranks: whether they have ended, and how they are made to."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dp_prior.job.watch import rank_process as process
from dp_prior.job.watch.rank_process import end_with_stacks, has_ended, pid_namespace


@pytest.fixture
def started():
    """Starts a Python program; returns the process, once it has said that it is ready, and its descriptor."""
    running = []

    def start(program):
        child = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        running.append((child, os.pidfd_open(child.pid)))
        child.stdout.readline()
        return running[-1]

    yield start
    for child, descriptor in running:
        child.kill()
        child.communicate()
        os.close(descriptor)


WAITING = "import time; print(flush=True); time.sleep(100)"
HANGING = f"import faulthandler; faulthandler.enable(); {WAITING}"


@pytest.fixture
def pauses(monkeypatch):
    """The pauses are over as soon as the process has ended."""
    found, sleep = [], time.sleep
    monkeypatch.setattr(process.time, "sleep", lambda seconds: (found.append(seconds), sleep(0.2)))
    return found


def test_a_process_has_ended_as_soon_as_it_is_over_even_before_anyone_asks_for_its_code(started):
    child, descriptor = started(WAITING)
    assert not has_ended(descriptor)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    assert has_ended(descriptor)


def test_of_another_machine_nothing_is_known_and_nothing_is_ended(pauses):
    assert not has_ended(None)
    end_with_stacks(None)


def test_a_process_that_hangs_writes_its_stacks_and_is_gone(started, pauses):
    child, descriptor = started(HANGING)
    end_with_stacks(descriptor)
    assert child.wait() == -signal.SIGABRT
    assert b"most recent call first" in child.stderr.read()


def test_a_suspended_process_writes_its_stacks_too(started, pauses):
    child, descriptor = started(HANGING)
    child.send_signal(signal.SIGSTOP)
    end_with_stacks(descriptor)
    assert child.wait() == -signal.SIGABRT


def test_a_process_that_ignores_it_is_killed(started, pauses):
    child, descriptor = started(f"import signal; signal.signal(signal.SIGABRT, signal.SIG_IGN); {WAITING}")
    end_with_stacks(descriptor)
    assert child.wait() == -signal.SIGKILL


def test_ranks_of_one_machine_have_one_name_space():
    program = "from dp_prior.job.watch.rank_process import pid_namespace; print(pid_namespace())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == pid_namespace()
