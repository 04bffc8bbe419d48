"""A topic that is read as an entry of the JSON file would read the topic, so that a proposal names readable topics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior_robot.ros2.contents import joints_of, type_of
from dp_prior_robot.ros2.topics import Clock, TopicConfig
from dp_prior_robot.ros2.track import SECOND, Track

MAX_GAP = 0.25
"""`max_gap` of a proposal, in seconds."""

_IRREGULAR = 4
"""A gap of more than this many median gaps is a dropout, unless the topic is sent on changes."""

_POINTS = "points.0."


class CandidateTopic:
    """The messages of one publisher of a topic, tried by both clocks.

    Attributes:
        fault: why the topic cannot be read; an empty string for a topic that can be.
        later_joints: joints that the first message does not name.
    """

    def __init__(self, topic: str, first: Any):
        """Args: first: the first message, decoded."""
        names = joints_of(first)
        self.fault = f"names a joint twice: {', '.join(names)}" if len(set(names)) < len(names) else ""
        self.later_joints: set[str] = set()
        entry = {"topic": topic, "field": _field_of(first), "names": names or None, "max_gap": MAX_GAP}
        self._entry = {name: value for name, value in entry.items() if value is not None}
        clocks: tuple[Clock, Clock] = ("header", "log")
        self._tracks = {clock: Track(TopicConfig.model_validate({**self._entry, "clock": clock})) for clock in clocks}
        self._clock: Clock = "header"
        self._own: dict[str, Any] = {}

    def takes(self, message: Any) -> bool:
        """Whether a message is of this publisher, which names its joints."""
        joints = joints_of(message)
        return not joints or not self._entry.get("names") or not set(joints).isdisjoint(self._entry["names"])

    def add(self, message: Any, log_time: int) -> None:
        """Take the next message."""
        if self.fault:
            return
        self.later_joints.update(set(joints_of(message)).difference(self._entry.get("names", ())))
        count = len(message.points) if self._entry.get("field", "").startswith(_POINTS) else 1
        if count != 1:
            self.fault = f"has trajectories of {count} points, which are no command for each step"
            return
        try:
            for track in self._tracks.values():
                track.add(message, log_time)
        except DataError as error:
            self.fault = "; ".join(error.problems)

    def settle(self, end: int, is_command: bool) -> None:
        """Choose the clock and the gap. Args: end: time of the last message of the recording."""
        if self.fault:
            return
        faults: dict[str, str] = {}
        for clock, track in self._tracks.items():
            try:
                track.finish()
                track.at(track.times)
            except DataError as error:
                faults[clock] = "; ".join(error.problems)
        usable = [clock for clock in self._tracks if clock not in faults]
        if not usable:
            self.fault = faults["log"]
            return
        self._clock = min(usable, key=self._stands_still)
        self._choose_gap(end, is_command)

    @property
    def track(self) -> Track:
        """The messages by the clock that was chosen."""
        return self._tracks[self._clock]

    @property
    def lag(self) -> float:
        """See `Track`."""
        return self.track.lag

    def use_log(self) -> None:
        """Take the times of recording; leaves the topic out if these go backwards."""
        self._clock = "log"
        if not hasattr(self.track, "times"):
            self.fault = "has stamps of another clock than other topics, and its times of recording go backwards"

    def entry(self, **options: Any) -> dict[str, Any]:
        """The topic as a key of the JSON file names it."""
        clock = {"clock": "log"} if self._clock == "log" else {}
        stated = {name: value for name, value in self._entry.items() if name != "max_gap"}
        return {**stated, **clock, **self._own, **options}

    def _stands_still(self, clock: Clock) -> bool:
        """Whether most messages have the time of another, as with stamps that a driver never sets."""
        return self._tracks[clock].duplicates > len(self._tracks[clock].times)

    def _choose_gap(self, end: int, is_command: bool) -> None:
        """Give topics that are sent on changes, or slowly, a `max_gap` of their own."""
        times, track = self.track.times, self.track
        if len(times) < 2:
            self.fault = "has values at one time alone"
            return
        gaps = np.diff(times) / SECOND
        usual, longest = float(np.median(gaps)), float(gaps.max())
        is_sparse = usual > MAX_GAP / 2
        is_held = track.is_held or (is_command and is_sparse and not track.is_picture)
        if is_held and not track.is_held:
            self._own["between"] = "last"  # a command between two others is the earlier one
        if is_held:
            longest = max(longest, (end - int(times[-1])) / SECOND)
        if longest > MAX_GAP and (is_held or is_sparse or longest <= _IRREGULAR * usual):
            self._own["max_gap"] = float(math.ceil(2 * longest))


def _field_of(message: Any) -> str | None:
    """The field of a message's numbers; None for the default of its type."""
    if type_of(message) == "trajectory_msgs/JointTrajectory":
        point = message.points[0] if message.points else None
        return next((_POINTS + name for name in ("positions", "velocities") if getattr(point, name, ())), None)
    if type_of(message) == "sensor_msgs/JointState" and not message.position:
        return next((name for name in ("velocity", "effort") if getattr(message, name)), None)
    return None
