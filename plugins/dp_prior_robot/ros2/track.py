"""One topic of one bag over time, and its values at given times. Times are whole nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding
from dp_prior_client.onboard.slerp import between, from_quaternion, slerp, to_quaternion
from dp_prior_robot.ros2.contents import PICTURES, numbers_of, picture_layout, stamp_of, type_of
from dp_prior_robot.ros2.topics import TopicConfig

SECOND = 10**9


class Track:
    """The values of a topic for a key; of pictures only the times and the places among the messages.

    Attributes:
        config: the topic, with clock and gap.
        layout: shape and type of a value; () and object for an encoded picture.
        names: names of the numbers.
        lag: median of the seconds from the stamp in the header to the recording.
        duplicates: messages with the time of the next message, which are left out.
    """

    def __init__(self, config: TopicConfig):
        self.config = config
        self.layout: tuple[tuple[int, ...], np.dtype] | None = None
        self.names: list[str] = []
        self.lag, self.duplicates, self.has_stamps = 0.0, 0, True
        self._count, self._times, self._lags, self._values = 0, [], [], []
        self._turns: list[tuple[int, int, str]] = []

    @property
    def is_picture(self) -> bool:
        """Whether the topic holds pictures."""
        return not self.names

    def add(self, message: Any, log_time: int) -> bool:
        """Take the next message; returns False for a message of another publisher's joints, which is skipped.

        Raises:
            DataError: the message lacks the numbers of the key, or differs from earlier messages.
        """
        place, self._count = self._count, self._count + 1
        topic = self.config.topic
        if type_of(message) in PICTURES and self.config.field is None:
            layout, value = picture_layout(message, topic), place
        else:
            numbers = numbers_of(message, self.config)
            if numbers is None:
                return False
            value = np.array(numbers.values)
            layout = value.shape, value.dtype
            if not self.names:
                self.names = numbers.names
                self._turns = [(start, start + 4, "quaternion_xyzw") for start in numbers.quaternions]
                self._turns += [(*rotation.slice, rotation.form) for rotation in self.config.rotations]
        self.layout = self.layout or layout
        if layout != self.layout:
            problem = f"message {place} holds {layout[1]} of shape {layout[0]}; those before {self.layout}"
            raise DataError(topic, [problem])
        stamp = stamp_of(message)
        self.has_stamps &= stamp is not None
        self._times.append(log_time if stamp is None or self.config.clock == "log" else stamp)
        self._lags.append(log_time - self._times[-1])
        self._values.append(value)
        return True

    def finish(self) -> None:
        """Check the times.

        Raises:
            DataError: no message was added, or the clock goes backwards.
        """
        topic, joints = self.config.topic, self.config.names
        if not self._times:
            raise DataError(topic, ["has no messages" + (f" that name {', '.join(joints)}" if joints else "")])
        reach = max((stop for _, stop, _ in self._turns), default=0)
        if reach > len(self.names):
            raise DataError(topic, [f"has {len(self.names)} numbers; rotations reach to {reach}"])
        with decoding(topic, "has times beyond 64 bits"):
            times = np.array(self._times, np.int64)
        if self.config.clock == "header" and self.has_stamps and len(times) > 1 and not times.any():
            raise DataError(
                topic, [f'has no stamps: all {len(times)} are 0; take the times of recording, "clock": "log"']
            )
        back = np.flatnonzero(np.diff(times) < 0)
        if len(back):
            seconds = (times[back[0]] - times[back[0] + 1]) / SECOND
            remedy = "`mcap sort` orders a file"
            if self.config.clock == "header":
                remedy = 'take the others by "clock": "log"'
            finding = f"{self.config.clock} times go back by {seconds:.3f} s after message {back[0]}"
            raise DataError(topic, [f"{finding}; {remedy}"])
        is_last = np.append(np.diff(times) > 0, True)  # of messages at one time
        self.lag, self.duplicates = float(np.median(self._lags)) / SECOND, int((~is_last).sum())
        self.times, self.values = times[is_last], np.array(self._values)[is_last]
        self._times, self._lags, self._values = [], [], []

    @property
    def is_held(self) -> bool:
        """Whether a value holds until the next message."""
        default = "linear" if self.layout is not None and self.layout[1].kind == "f" else "last"
        return not self.is_picture and (self.config.between or default) == "last"

    @property
    def end(self) -> int:
        """Time of the last value; a held value lasts for the longest gap."""
        return int(self.times[-1]) + (int(self.config.max_gap * SECOND) if self.is_held else 0)

    def check_gaps(self, begin: int, end: int) -> None:
        """Raises DataError for a gap between messages of an episode that is longer than `max_gap`."""
        gaps = np.diff(self.times) / SECOND
        gaps[(self.times[1:] <= begin) | (self.times[:-1] >= end)] = 0
        wide = np.flatnonzero(gaps > self.config.max_gap)
        if len(wide):
            longest = int(gaps.argmax())
            when = (self.times[longest] - begin) / SECOND
            finding = f"has no message for {gaps[longest]:.3f} s, {when:.3f} s after the episode's start"
            rest = f", and {len(wide) - 1} more gaps" if len(wide) > 1 else ""
            raise DataError(self.config.topic, [f"{finding}{rest}; max_gap is {self.config.max_gap:g} s"])

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Sample (n, width) numbers, or (n,) places of pictures among the messages, at n times within the track."""
        after = np.searchsorted(self.times, steps, side="right")
        if self.is_held or len(self.times) == 1:
            return self.values[after - 1]
        after = after.clip(1, len(self.times) - 1)
        before = after - 1
        share = (steps - self.times[before]) / (self.times[after] - self.times[before])
        if self.is_picture:
            return self.values[np.where(share <= 0.5, before, after)]
        values = (1 - share[:, None]) * self.values[before] + share[:, None] * self.values[after]
        for start, stop, form in self._turns:
            rows = zip(self.values[before, start:stop], self.values[after, start:stop], share, strict=True)
            try:
                values[:, start:stop] = [_turned(first, second, part, form) for first, second, part in rows]
            except ZeroDivisionError:
                problem = f"numbers {start} to {stop - 1} are a rotation, and all 0 in a message"
                raise DataError(self.config.topic, [problem]) from None
        return values


def _turned(first: np.ndarray, second: np.ndarray, share: float, form: str) -> np.ndarray:
    """Interpolate two rotations by `share`; a quaternion keeps the sign of the first."""
    start = to_quaternion(first, form)
    rotation = np.array(from_quaternion(slerp(start, between(start, to_quaternion(second, form)), share), form))
    return -rotation if form.startswith("quaternion") and rotation @ first < 0 else rotation
