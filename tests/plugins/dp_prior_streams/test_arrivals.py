import subprocess
import sys

import numpy as np

from dp_prior_streams.arrivals import Arrivals, ArrivingOrder
from dp_prior_streams.part_cache import NoRoomError
from dp_prior_streams.part_order import PartOrder
from tests.waiting import until


class Store:
    needed = frozenset()


class Parts:
    """Parts of one content, of which `room` fit; `log` has those that were brought."""

    def __init__(self, room=100):
        self.store, self.room, self.here, self.log = Store(), room, [], []
        self.fails = set()

    def names(self, *parts):
        return {str(part) for part in parts}

    def has(self, part):
        return part in self.here

    def bring(self, part, needed):
        if part in self.fails:
            raise OSError("away")
        self.here = [other for other in self.here if str(other) in needed]
        if len(self.here) == self.room:
            raise NoRoomError("data.episodes", ["no room"])
        self.here.append(part)
        self.log.append(part)


def test_needed_parts_come_first_and_the_others_in_order_while_there_is_room():
    parts = Parts(room=4)
    arrivals = Arrivals(parts)
    arrivals.expect([3, 1], [7, 3, 2, 5, 6])
    until(lambda: parts.log == [3, 1, 7, 2])
    assert parts.store.needed == {"3", "1"}
    arrivals.expect([1, 7], [2, 5, 6])
    until(lambda: parts.log == [3, 1, 7, 2, 5])
    assert sorted(parts.here) == [1, 2, 5, 7]


def test_an_error_ahead_is_left_to_the_reader_and_later_plans_go_on():
    parts = Parts()
    parts.fails = {2}
    arrivals = Arrivals(parts)
    arrivals.expect([1], [2, 3])
    until(lambda: parts.log == [1])
    parts.fails = set()
    arrivals.expect([1, 2], [3])
    until(lambda: parts.log == [1, 2, 3])


def test_an_order_over_parts_expects_them_before_it_gives_their_samples():
    parts = Parts()
    order = PartOrder(0, np.repeat(np.arange(6), 10), np.arange(6), mixed_parts=2)
    arriving = ArrivingOrder(order, Arrivals(parts))
    for begin in range(0, 60, 6):
        ids = arriving.ids(3, begin, begin + 6)
        assert np.array_equal(ids, order.ids(3, begin, begin + 6))
        assert {str(part) for part in ids // 10} <= parts.store.needed
    arriving.ids(4, 0, 6)  # of the same batch
    assert {str(part) for part in (*order.parts(3, 54, 60)[0], *order.parts(4, 0, 6)[0])} == parts.store.needed
    until(lambda: set(parts.log) == set(range(6)))


ENDING = """
import threading, time
from dp_prior_streams import arrivals as module
from tests.plugins.dp_prior_streams.test_arrivals import Parts

module.EXIT_WAIT_S = 100


class Working(Parts):
    def bring(self, part, needed):
        print("works on", part, flush=True)
        is_begun.set()
        time.sleep(1)
        print("has", part, flush=True)


class Waiting(Parts):
    def bring(self, part, needed):
        print("waits for", part, flush=True)
        is_begun.set()
        while True:
            time.sleep(0.01)
            arrivals.check()


for parts in (Working(), Waiting()):
    is_begun, arrivals = threading.Event(), module.Arrivals(parts)
    arrivals.expect([1], [2, 3])
    is_begun.wait()
"""


def test_the_threads_end_before_the_interpreter():
    """An interpreter that ends under a thread in C++ code aborts the process."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["works on 1", "waits for 1", "has 1"]
