"""Work in a thread that an interrupt leaves behind."""

import threading

import pytest

from dp_prior.files.left_behind import left_behind, work_left_behind
from tests.messages import told


def test_the_result_and_the_error_are_those_of_the_work():
    assert left_behind(lambda: threading.current_thread() is threading.main_thread()) is False
    error = FileNotFoundError("nothing at x")

    def fail():
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        left_behind(fail)
    assert caught.value is error


def test_what_a_look_raises_leaves_the_work_behind():
    end = threading.Event()

    def look():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        left_behind(lambda: end.wait(60), look)
    end.set()


def test_a_long_wait_is_told_once_with_its_place(caplog):
    looks = []
    left_behind(lambda: threading.Event().wait(0.5), lambda: looks.append(1), place="https://hub/me/x", first_s=0.1)
    assert len(looks) > 2
    assert len(caplog.messages) == 1 and told(caplog.text, "https://hub/me/x", "Ctrl-C")
    left_behind(lambda: None, place="https://hub/me/x", first_s=0)
    left_behind(lambda: threading.Event().wait(0.3), first_s=0)
    assert len(caplog.messages) == 1


def test_it_is_known_whether_work_goes_on():
    end = threading.Event()
    with pytest.raises(ZeroDivisionError):
        left_behind(lambda: end.wait(60), lambda: 1 / 0)
    (thread,) = work_left_behind()
    end.set()
    thread.join()
    assert work_left_behind() == set()
