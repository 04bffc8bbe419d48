"""Whatever a part behind a queue does, the caller goes on: it blocks for ever, ends the process, is slow."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from dp_prior.tracking.background import Background
from tests.messages import told
from tests.tracking.test_isolation import Clock, Part, arguments, take
from tests.waiting import until


def background(part, size=1000, first=lambda part: None, **options):
    box = Background(part, "part", size=size, **arguments(**options))
    box.begin(first)
    return box


def end(box, patience_s=10.0):
    box.finish()
    box.thread.join(patience_s)
    box.give_up()
    return box.summary()


def test_calls_arrive_in_order_and_then_the_end():
    part = Part()
    box = background(part)
    for number in range(500):
        box.call(take(number))
    assert end(box) is None
    assert part.seen == list(range(500)) and part.is_closed


def test_calls_made_before_the_beginning_follow_it():
    part = Part()
    box = Background(part, "part", size=10, **arguments())
    box.call(take(1))
    box.begin(take(0))
    assert end(box) is None and part.seen == [0, 1]


@pytest.mark.promise("F1")
def test_a_part_that_blocks_for_ever_stops_neither_the_calls_nor_the_end():
    part, lines, release = Part(), [], threading.Event()
    box = background(part, size=3, lines=lines)
    box.call(lambda part: release.wait(60))
    until(lambda: box._waiting.empty())
    for number in range(10):
        box.call(take(number))
    summary = end(box, patience_s=0.05)
    assert told(summary, "part", "10 calls", "abandoned")
    assert [told(line, "part", "3 calls", "dropped") for line in lines] == [True]
    assert part.is_closed is None  # it was told that it is left behind
    release.set()


def test_a_call_that_takes_long_is_told_of_while_it_lasts():
    clock, lines, release = Clock(), [], threading.Event()
    box = background(Part(), lines=lines, clock=clock)
    box.call(lambda part: release.wait(60))
    until(lambda: box._waiting.empty() and box._since is not None)
    box.call(take(1))
    assert lines == []
    clock.now = 61.0
    box.call(take(2))
    box.call(take(3))
    assert [told(line, "part", "60 s", "wait") for line in lines] == [True]
    release.set()
    assert end(box) is None


def test_a_beginning_that_fails_is_repeated_and_nothing_is_lost_meanwhile():
    part, attempts = Part(), []

    def first(part):
        attempts.append(1)
        if len(attempts) < 5:
            raise OSError("not yet")

    box = background(part, first=first, retry_s=0.001)
    for number in range(20):
        box.call(take(number))
    until(lambda: len(part.seen) == 20)
    assert end(box) == "part failed 4 times; last: OSError: not yet"
    assert part.seen == list(range(20)) and part.is_closed


def test_a_part_that_never_begins_is_not_closed_and_its_calls_are_counted():
    def first(part):
        raise OSError("never")

    part = Part()
    box = background(part, first=first)
    for number in range(7):
        box.call(take(number))
    assert end(box).endswith("and missed 7 calls; last: OSError: never")
    assert part.seen == [] and not part.is_closed


def test_a_muted_part_keeps_what_waits_and_goes_on_in_order():
    part = Part({2, 3})
    box = background(part, retry_s=0.01)
    for number in range(50):
        box.call(take(number))
    assert end(box) == "part failed 2 times; last: OSError: 3 is broken"
    assert part.seen == list(range(50)) and part.is_closed


def test_at_the_end_a_part_that_is_still_broken_is_tried_once_and_the_rest_is_counted():
    part = Part(range(100))
    box = background(part, retry_s=60.0)
    for number in range(10):
        box.call(take(number))
    until(lambda: len(part.seen) == 2)
    assert told(end(box), "part", "3 times", "7 calls", "OSError: 2")
    assert part.is_closed


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_a_part_that_asks_for_the_end_of_the_process_does_not_get_it(error):
    class Rude(Part):
        def take(self, number):
            self.seen.append(number)
            raise error

    part = Rude()
    box = background(part, max_failures=None)
    for number in range(3):
        box.call(take(number))
    assert end(box).startswith("part failed 3 times")
    assert part.seen == [0, 1, 2]


@pytest.mark.promise("F1")
@pytest.mark.slow
def test_a_process_whose_part_hangs_ends_by_itself():
    program = (
        "import threading, time\n"
        "from dp_prior.tracking.background import Background\n"
        "class Part:\n"
        "    def abandon(self): time.sleep(0)\n"
        "box = Background(Part(), 'part', size=9, report=print)\n"
        "box.begin(lambda part: threading.Event().wait())\n"
        "box.finish(); box.give_up(); print(box.summary())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        output, _ = process.communicate(timeout=250)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.returncode == 0 and told(output, "part", "abandoned")
