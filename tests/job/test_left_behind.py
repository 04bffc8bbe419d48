"""Work in a thread that a stop leaves behind: result and errors are those of the work."""

import threading

import pytest

from dp_prior.job.left_behind import unless_stopped
from dp_prior.job.stop import Stop, StoppedEarly


def test_the_result_and_the_error_are_those_of_the_work():
    assert unless_stopped(Stop(), lambda: threading.current_thread() is threading.main_thread()) is False
    error = FileNotFoundError("nothing at x")

    def fail():
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        unless_stopped(Stop(), fail)
    assert caught.value is error


def test_a_stop_leaves_the_work_behind():
    stop, begun, end = Stop(), threading.Event(), threading.Event()

    def last():
        begun.set()
        stop.ask("SIGTERM")
        end.wait(60)

    with pytest.raises(StoppedEarly) as stopped:
        unless_stopped(stop, last)
    assert begun.is_set() and (stopped.value.reason, stopped.value.rank) == ("SIGTERM", 0)
    end.set()
