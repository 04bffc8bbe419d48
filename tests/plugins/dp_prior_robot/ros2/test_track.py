"""One topic over time: closed forms, the ways between messages, gaps and clocks."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.errors import DataError
from dp_prior_client.onboard.slerp import exp
from dp_prior_robot.ros2.topics import TopicConfig
from dp_prior_robot.ros2.track import SECOND, Track
from tests.messages import naming


def message(values, seconds=None, kind="mine_msgs/Numbers"):
    stamp = None if seconds is None else SimpleNamespace(sec=int(seconds), nanosec=round(seconds % 1 * SECOND))
    return SimpleNamespace(_type=kind, data=list(values), header=SimpleNamespace(stamp=stamp))


def track(times, rows, logs=None, **wanted):
    """Args: times: seconds in the headers; logs: at which messages were recorded."""
    found = Track(TopicConfig(**{"topic": "/x", "field": "data", "clock": "header", "max_gap": 0.5, **wanted}))
    for time, row, log in zip(times, rows, times if logs is None else logs, strict=True):
        found.add(message(row, time), round(log * SECOND))
    found.finish()
    return found


def steps(*seconds):
    return np.array([round(one * SECOND) for one in seconds], np.int64)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=8), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_between_messages_lies_the_line_through_them(gaps, shares):
    """A line of t is itself at every time; the messages are anywhere, their times in whole nanoseconds."""
    times = np.cumsum(gaps) + 1_700_000_000 * SECOND
    one = Track(TopicConfig(topic="/x", field="data", clock="log", max_gap=2))
    for time in times.tolist():
        one.add(message([2.0 * (time - times[0]), 7.0]), time)
    one.finish()
    wanted = np.sort([int(times[0] + share * (times[-1] - times[0])) for share in shares])
    expected = np.stack([2.0 * (wanted - times[0]), np.full(len(wanted), 7.0)], -1)
    np.testing.assert_allclose(one.at(wanted), expected, rtol=1e-12, atol=1e-6)


def test_at_the_time_of_a_message_is_the_message():
    rows = np.random.default_rng(0).normal(size=(6, 3))
    times = [1.0, 1.1, 1.35, 1.4, 1.75, 2.0]
    np.testing.assert_array_equal(track(times, rows).at(steps(*times)), rows)


def test_integers_truth_values_and_what_is_asked_for_stay_until_the_next_message():
    times = steps(1.0, 1.19, 1.2, 1.39)
    for rows in ([[1], [5], [9]], [[False], [True], [False]]):
        one = track([1.0, 1.2, 1.4], rows)
        np.testing.assert_array_equal(one.at(times), np.array([rows[0], rows[0], rows[1], rows[1]]))
        assert one.end == 1.9 * SECOND
    assert track([1.0, 1.2], [[1.0], [3.0]], between="last").at(steps(1.1)).tolist() == [[1.0]]
    assert track([1.0, 1.2], [[1], [3]], between="linear").at(steps(1.1)).tolist() == [[2.0]]
    assert track([1.0, 1.2], [[1.0], [3.0]]).end == 1.2 * SECOND


def test_a_rotation_turns_at_constant_speed_the_shorter_way_whatever_the_sign_of_a_quaternion():
    axis, angles = np.array([1.0, 2.0, -2.0]) / 3, np.array([0.0, 0.4, 2.0, 3.5])
    for form, order in (("quaternion_wxyz", [0, 1, 2, 3]), ("quaternion_xyzw", [1, 2, 3, 0])):
        rows = np.array([exp(axis * angle) for angle in angles])[:, order] * [[1], [-1], [1], [-1]]
        one = track(
            [0.0, 0.4, 2.0, 3.5], np.hstack([np.full((4, 1), 8.0), rows]), max_gap=2,
            rotations=[{"slice": [1, 5], "form": form}],
        )  # fmt: skip
        times = np.linspace(0, 3.5, 23)
        found = one.at(steps(*times))
        expected = np.array([exp(axis * angle) for angle in times])[:, order]
        np.testing.assert_allclose(np.abs((found[:, 1:] * expected).sum(1)), 1, atol=1e-12)
        np.testing.assert_array_equal(found[:, 0], 8.0)
        np.testing.assert_allclose(one.at(steps(0.4)), [[8.0, *rows[1]]], atol=1e-12)  # with the sign it was sent with


def test_a_rotation_of_no_length_is_refused():
    one = track([1.0, 1.1], [[0.0] * 4, [0.0, 0, 0, 1]], rotations=[{"slice": [0, 4], "form": "quaternion_xyzw"}])
    with pytest.raises(DataError, match=naming("/x", "0 to 3", "rotation")):
        one.at(steps(1.05))
    with pytest.raises(DataError, match=naming("/x", "2 numbers", "rotations", "4")):
        track([1.0], [[0.0, 1]], rotations=[{"slice": [0, 4], "form": "quaternion_xyzw"}])


def test_a_gap_within_the_episode_is_told_with_its_place_and_bound():
    one = track([1.0, 1.4, 2.2, 2.5, 4.0], [[0.0]] * 5)
    one.check_gaps(*steps(2.2, 2.5))
    one.check_gaps(*steps(1.0, 1.4))
    with pytest.raises(DataError, match=naming("/x", "1.500 s", "1.300 s", "1 more", "max_gap is 0.5 s")):
        one.check_gaps(*steps(1.2, 3.0))
    track([1.0, 3.0], [[0.0]] * 2, max_gap=2).check_gaps(*steps(1.0, 3.0))


@pytest.mark.parametrize(("clock", "remedy"), [("header", '"clock": "log"'), ("log", "`mcap sort`")])
def test_a_clock_that_goes_backwards_is_refused(clock, remedy):
    with pytest.raises(DataError, match=naming("/x", clock, "0.250 s", "message 1", remedy)):
        track([1.0, 1.5, 1.25], [[0.0]] * 3, clock=clock)


def test_stamps_are_those_of_the_clock_and_the_last_message_of_one_time_counts():
    one = track([1.0, 1.1, 1.1, 1.2], [[0.0], [1.0], [2.0], [3.0]], logs=[1.3, 1.4, 1.5, 1.6])
    assert one.duplicates == 1 and one.at(steps(1.1)).tolist() == [[2.0]] and one.lag == pytest.approx(0.35)
    logged = track([1.0, 1.1, 1.1, 1.2], [[0.0], [1.0], [2.0], [3.0]], logs=[1.3, 1.4, 1.5, 1.6], clock="log")
    assert logged.duplicates == 0 and logged.at(steps(1.4)).tolist() == [[1.0]] and logged.lag == 0


def test_a_topic_of_another_width_later_and_one_without_messages_are_refused():
    with pytest.raises(DataError, match=naming("/x", "message 1", "(3,)", "(2,)")):
        track([1.0, 1.1], [[0.0, 1], [0.0, 1, 2]])
    with pytest.raises(DataError, match=naming("/x", "no messages")):
        track([], [])


def test_stamps_that_no_driver_has_set_are_refused():
    with pytest.raises(DataError, match=naming("/x", "3", "0", '"clock": "log"')):
        track([0.0, 0.0, 0.0], [[1.0]] * 3, [7.0, 7.1, 7.2])
    for clock, times in (("log", [0.0, 0.0, 0.0]), ("header", [0.0, 0.1, 0.2])):
        assert len(track(times, [[1.0]] * 3, [7.0, 7.1, 7.2], clock=clock).times) == 3
