"""One process builds a cache; others wait, say for whom, and may leave."""

import threading

import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.job.stop import StoppedEarly
from tests.messages import naming


def test_a_second_holder_waits_until_the_first_is_done_and_says_how_far_it_is(tmp_path):
    told, order, waiting = [], [], threading.Event()

    def tell(line):
        told.append(line)
        waiting.set()

    def second():
        with build_lock(tmp_path / "lock", tell, lambda: "3 of 9 frames", lambda: None):
            order.append("second")

    with build_lock(tmp_path / "lock", order.append, lambda: "", lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(200)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and "3 of 9 frames" in told[0]


def test_a_wait_ends_with_the_exception_of_its_check_and_leaves_the_lock_to_its_holder(tmp_path):
    def stop():
        raise StoppedEarly("SIGTERM", 0)

    with build_lock(tmp_path / "lock", print, str, lambda: None):
        with pytest.raises(StoppedEarly), build_lock(tmp_path / "lock", print, str, stop):
            pytest.fail("the lock is held")
        with pytest.raises(StoppedEarly), build_lock(tmp_path / "lock", print, str, stop):
            pytest.fail("the lock is still held")
    with build_lock(tmp_path / "lock", print, str, stop):
        pass


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    with (
        pytest.raises(DataError, match=naming("nowhere/lock")) as caught,
        build_lock(tmp_path / "nowhere/lock", print, str, str),
    ):
        pytest.fail("there is no such folder")
    assert "another directory" in str(caught.value)
