"""The JSON file that maps topics of ROS 2 bags to keys, and defines the times of the steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from dp_prior.config import Config
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client.onboard.rotation_check import WIDTHS

Clock = Literal["header", "log"]


class TopicConfig(Config):
    """The numbers, or the pictures, of one topic. Only `topic` is needed for pictures."""

    topic: str
    """Name of the topic."""

    field: str | None = None
    """Dotted path of the numbers in a message, such as `pose.position` or `points.0.positions`; of a message inside,
    all its numbers in their order. null: `position` of a JointState, `data` of std_msgs, else all but the header."""

    names: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Joints, chosen by their names and put into this order, where messages name them, as JointState does; elsewhere
    names for the numbers. Messages that name none of these joints belong to another publisher and are skipped."""

    rotations: tuple[RotationSlice, ...] = ()
    """Numbers that are rotations, turned between messages rather than interpolated; those of geometry_msgs/Quaternion
    are known."""

    between: Literal["linear", "last"] | None = None
    """Value between two messages: interpolated, or the last one sent. null: linear for floats, last for integers and
    truth values. Pictures are always the nearest."""

    ahead: int = Field(default=0, ge=0)
    """Take the value of this many steps later, at the end of an episode the last: 1 makes an action of a position."""

    clock: Clock | None = None
    """null: that of the file."""

    max_gap: float | None = Field(default=None, gt=0)
    """null: that of the file. A topic that is sent only on a change needs a large one."""

    def faults(self) -> Iterator[str]:
        for rotation in self.rotations:
            if rotation.form not in WIDTHS:
                expected = f'expected {", ".join(WIDTHS)}; or take the last value by "between": "last"'
                yield f"rotations: form {rotation.form!r} cannot be turned between messages; {expected}"


class TopicsConfig(Config):
    """Topics to read from ROS 2 bags, on one time base."""

    fps: float = Field(gt=0, le=1000)
    """Steps per second. An episode begins when the last topic has begun, and ends when the first one ends."""

    keys: dict[str, TopicConfig | tuple[TopicConfig, ...]] = Field(min_length=1)
    """What each key holds: a topic, or several whose numbers are joined in this order."""

    clock: Clock = "header"
    """Times of messages: the stamps of their headers, or when they were recorded, which is also taken for messages
    without a header."""

    max_gap: float = Field(default=0.25, gt=0)
    """Most seconds from one message of a topic to the next within an episode."""

    task: str | None = None
    """Instruction of every episode."""

    def faults(self) -> Iterator[str]:
        for key, topics in self.keys.items():
            if not key or topics == ():
                yield f"keys: {key!r} needs a name and a topic"

    def parts(self, key: str) -> tuple[TopicConfig, ...]:
        """The topics of a key, with clock and gap filled in."""
        topics = self.keys[key]
        return tuple(map(self._completed, topics if isinstance(topics, tuple) else (topics,)))

    def _completed(self, topic: TopicConfig) -> TopicConfig:
        defaults = {"clock": self.clock, "max_gap": self.max_gap}
        missing = {name: value for name, value in defaults.items() if getattr(topic, name) is None}
        return topic.model_copy(update=missing)

    def topics(self) -> set[str]:
        """Names of all topics."""
        topics = itertools.chain.from_iterable(map(self.parts, self.keys))
        return {topic.topic for topic in topics}
