"""Work in a thread that a stop leaves behind."""

import threading

import pytest

from dp_prior.job.left_behind import unless_stopped
from dp_prior.job.stop import Stop, StoppedEarly


def test_a_stop_leaves_the_work_behind():
    stop, begun, end = Stop(), threading.Event(), threading.Event()

    def last():
        begun.set()
        stop.ask("SIGTERM")
        end.wait(60)

    assert unless_stopped(stop, lambda: 3) == 3
    with pytest.raises(StoppedEarly) as stopped:
        unless_stopped(stop, last)
    assert begun.is_set() and (stopped.value.reason, stopped.value.rank) == ("SIGTERM", 0)
    end.set()
