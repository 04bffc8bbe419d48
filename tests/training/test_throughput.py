"""The rate is samples over the time that counts, and the share is the waiting in it."""

import pytest

from dp_prior.training.throughput import SLOW_DATA, Throughput


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def batches(now, wait_s):
    while True:
        now[0] += wait_s
        yield "batch"


def row(throughput, timed, now, *, seen, steps=4, work_s=0.75):
    """The row after some steps of work."""
    for _ in range(steps):
        next(timed)
        now[0] += work_s
    return throughput.row(seen)


def test_rate_and_share_are_of_the_row_alone(now):
    throughput = Throughput(warns=False)
    throughput.begin(100)
    timed = throughput.timed(batches(now, 0.25))
    for count in (1, 2, 3):
        found = row(throughput, timed, now, seen=100 + 32 * count)
        assert found == {"train/samples_per_second": 32 / 4, "train/data_share": 0.25}


def test_what_is_done_in_a_pause_does_not_count(now):
    throughput = Throughput(warns=False)
    timed = throughput.timed(batches(now, 0.25))
    with throughput.paused():
        now[0] += 500
    assert row(throughput, timed, now, seen=32) == {"train/samples_per_second": 8.0, "train/data_share": 0.25}


def test_timed_batches_are_the_batches(now):
    assert list(Throughput(warns=False).timed(iter(range(5)))) == list(range(5))


@pytest.mark.parametrize("warns", [True, False])
def test_slow_data_is_warned_of_once_at_the_second_slow_row_where_asked(now, caplog, warns):
    throughput = Throughput(warns=warns)
    timed = throughput.timed(batches(now, 0.25))
    counts = []
    for seen in range(1, 5):
        row(throughput, timed, now, seen=seen)
        counts.append(len(caplog.messages))
    assert counts == ([0, 1, 1, 1] if warns else [0] * 4)
    assert not warns or "25 %" in caplog.text


@pytest.mark.parametrize(("wait_s", "work_s"), [(SLOW_DATA / 2, 1 - SLOW_DATA / 2), (2**-11, 2**-11)])
def test_neither_a_small_share_nor_a_millisecond_is_worth_a_warning(now, caplog, wait_s, work_s):
    throughput = Throughput(warns=True)
    timed = throughput.timed(batches(now, wait_s))
    for seen in range(1, 5):
        row(throughput, timed, now, seen=seen, work_s=work_s)
    assert not caplog.messages
