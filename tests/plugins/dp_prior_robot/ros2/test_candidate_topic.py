"""A topic of a bag that is tried as an entry of the JSON file: its clock, its gap, and why it is left out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior_robot.ros2.candidate_topic import CandidateTopic
from dp_prior_robot.ros2.topics import TopicConfig
from dp_prior_robot.ros2.track import SECOND, Track
from tests.messages import told


def number(seconds=None, value=0.0):
    stamp = None if seconds is None else SimpleNamespace(sec=int(seconds), nanosec=round(seconds % 1 * SECOND))
    return SimpleNamespace(_type="std_msgs/Float64", data=value, header=SimpleNamespace(stamp=stamp))


def candidate(stamps, logs, value=float, is_command=False, end=None):
    """Args: stamps: seconds, or None without stamps; logs: seconds at which messages were recorded."""
    messages = [number(stamp, value(place)) for place, stamp in enumerate(stamps or [None] * len(logs))]
    tried = CandidateTopic("/x", messages[0])
    for message, log in zip(messages, logs, strict=True):
        assert tried.takes(message)
        tried.add(message, round(log * SECOND))
    tried.settle(round((logs[-1] if end is None else end) * SECOND), is_command)
    return tried


@given(st.lists(st.integers(1, 3 * SECOND), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_the_entry_of_a_regular_or_held_topic_passes_its_own_check_of_gaps(gaps, is_whole, is_regular):
    """A topic with one rate, and a topic of integers at any times, whose last value holds until the end."""
    if is_regular:
        gaps = [gaps[0]] * len(gaps)
    logs = (np.cumsum([0, *gaps]) / SECOND).tolist()
    tried = candidate(None, logs, int if is_whole else float, end=logs[-1] + 5)
    track = Track(TopicConfig.model_validate({"clock": "header", "max_gap": 0.25, **tried.entry()}))
    for place, log in enumerate(logs):
        track.add(number(None, int(place) if is_whole else float(place)), round(log * SECOND))
    track.finish()
    if is_regular or is_whole:
        track.check_gaps(int(track.times[0]), int(track.times[-1]))
    if is_whole:
        assert track.end >= (logs[-1] + 5) * SECOND - 1


@pytest.mark.parametrize(
    ("stamps", "clock"),
    [
        ([7.0, 7.1, 7.2, 7.3], {}),
        ([0.0, 0.0, 0.0, 0.0], {"clock": "log"}),
        ([7.0, 7.0, 7.0, 7.0], {"clock": "log"}),
        ([7.0, 7.2, 7.1, 7.3], {"clock": "log"}),
    ],
)
def test_stamps_are_taken_unless_they_stand_still_or_go_back(stamps, clock):
    logs = [9.0, 9.1, 9.2, 9.3]
    tried = candidate(stamps, logs)
    assert tried.entry(ahead=1) == {"topic": "/x", **clock, "ahead": 1}
    np.testing.assert_array_equal(tried.track.times, np.round(np.multiply(logs if clock else stamps, SECOND)))
    assert tried.lag == pytest.approx(0 if clock else 2)
    tried.use_log()
    assert tried.entry() == {"topic": "/x", "clock": "log"}


def test_times_that_both_go_back_and_a_single_time_leave_a_topic_out():
    assert told(candidate([7.0, 6.0], [9.0, 8.0]).fault, "mcap sort")
    assert candidate([7.0], [9.0]).fault
    stamped = candidate([7.0, 7.1], [9.0, 8.0])
    assert not stamped.fault
    stamped.use_log()
    assert stamped.fault


def test_sparse_commands_hold_and_dense_ones_are_interpolated():
    for rate, held in ((2.0, {"between": "last"}), (20.0, {})):
        entry = candidate(None, [n / rate for n in range(9)], is_command=True).entry()
        assert {name: value for name, value in entry.items() if name == "between"} == held
