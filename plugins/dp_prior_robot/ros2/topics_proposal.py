"""The proposal of a JSON file for the topics of a recording."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_prior.data.errors import DataError, first_few
from dp_prior_robot.ros2.bag_episode import MOST_SKEW, BagEpisode
from dp_prior_robot.ros2.bags import Bag, BagMessage
from dp_prior_robot.ros2.candidate_topic import MAX_GAP, CandidateTopic
from dp_prior_robot.ros2.contents import DEPTHS, PICTURES, joints_of, type_of
from dp_prior_robot.ros2.topics import TopicsConfig
from dp_prior_robot.ros2.track import SECOND

_COMMAND = re.compile("command|cmd|action|target|goal|leader|desired|setpoint")
_HIDDEN = "/_"
_NAMELESS = {"image", "image_raw", "image_rect", "compressed", "compresseddepth", "color", "rgb", "camera", "data"}
_TRAJECTORY = "trajectory_msgs/JointTrajectory"
_NUMBERS = re.compile(f"std_msgs/(Bool|U?Int|Float)|geometry_msgs/|sensor_msgs/JointState|{_TRAJECTORY}$")
_TRANSPORTS = ("/compressed", "/compressedDepth")
_DEFAULT_FPS = 30.0
_MOST_PUBLISHERS = 16


@dataclass
class _Topic:
    """The content of a topic.

    Attributes:
        example: the first message, decoded; None if decoding fails.
        fault: why no message can be read.
        candidates: the publishers of pictures or numbers.
    """

    name: str
    type: str
    first: int
    example: Any = None
    fault: str = ""
    count: int = 0
    last: int = 0
    candidates: list[CandidateTopic] = field(default_factory=list)

    def add(self, message: BagMessage) -> None:
        """Take the next message; of topics without pictures and numbers the first one alone is decoded."""
        self.count, self.last = self.count + 1, message.log_time
        if self.fault or (self.count > 1 and not self.candidates):
            return
        try:
            decoded = message.decode()
        except DataError as error:
            self.fault = "; ".join(error.problems)
            return
        self.example = self.example or decoded
        if not (self.is_picture or _NUMBERS.match(type_of(decoded))):
            return
        candidate = next((candidate for candidate in self.candidates if candidate.takes(decoded)), None)
        if candidate is None and len(self.candidates) < _MOST_PUBLISHERS:
            candidate = CandidateTopic(self.name, decoded)
            self.candidates.append(candidate)
        if candidate is not None:
            candidate.add(decoded, message.log_time)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return (self.count - 1) * SECOND / (self.last - self.first) if self.last > self.first else 0.0

    @property
    def is_picture(self) -> bool:
        """Whether the topic holds pictures."""
        return type_of(self.example) in PICTURES

    @property
    def is_depth(self) -> bool:
        """Whether the topic's pictures are depth."""
        encoding = getattr(self.example, "encoding", None) or getattr(self.example, "format", "")
        return self.is_picture and encoding.split(";")[0] in DEPTHS

    @property
    def is_command(self) -> bool:
        """Whether the name or the type is that of a command; hidden topics, as of ROS's own actions, are none."""
        is_named = _COMMAND.search(self.name.lower()) is not None
        return (is_named or type_of(self.example) == _TRAJECTORY) and _HIDDEN not in self.name

    @property
    def readable(self) -> list[CandidateTopic]:
        """The publishers whose messages can be read."""
        return [] if self.fault else [candidate for candidate in self.candidates if not candidate.fault]

    def line(self) -> str:
        """The topic in words."""
        details, joints = "", joints_of(self.example)
        if self.is_picture:
            encoding = getattr(self.example, "format", None) or f"{self.example.encoding}"
            details = f", {encoding}"
        elif joints:
            details = f", joints {first_few(joints, 50)}"
        return f"{self.name}  {self.type}, {self.count} messages, {self.rate:.4g} Hz{details}{self._left_out()}"

    def _left_out(self) -> str:
        faults = [self.fault, *(candidate.fault for candidate in self.candidates)]
        if self.is_command and self.example is not None and not self.candidates:
            faults.append("name its numbers by field")
        later = sorted(set().union(*(candidate.later_joints for candidate in self.candidates)))
        faults.append(f"joints {first_few(later)}, which are not in the first message" if later else "")
        reasons = first_few([fault for fault in faults if fault], 3)
        return reasons and f"; left out: {reasons}"


def missing_topics(bag: Bag, path: Path, file: Path) -> DataError:
    """The error about a recording without the JSON file, with a proposal of its content that was tried."""
    topics = _topics(bag)
    proposed = proposal(topics)
    lines = [f"there is no {file}, which names the topics. {bag.path} holds:", *(topic.line() for topic in topics)]
    if not proposed["keys"]:
        lines.append("no topic has numbers or pictures that can be read")
        advice = "Mend what is left out, or save numbers by NumPy (docs/own_data.md#other-files)"
        return DataError(str(path), ["\n  ".join(lines)], advice)
    if "ahead" in str(proposed["keys"].get("action")):
        lines.append('No topic of commands can be read, so the proposed action is the next state, by "ahead": 1')
    try:
        BagEpisode(bag, TopicsConfig.model_validate(proposed)).layout  # noqa: B018
    except DataError as error:
        lines.append(f"What follows does not read {bag.path} yet: {'; '.join(error.problems)}")
    advice = f"Write {file}, and change what is wrong (docs/data.md#ros-2-bags):"
    return DataError(str(path), ["\n  ".join(lines)], f"{advice}\n{_text(proposed)}")


def _text(proposed: dict[str, Any]) -> str:
    """Write the proposal as JSON, a line for each key."""
    keys = [f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in proposed["keys"].items()]
    settings = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in proposed.items() if name != "keys"]
    return ",\n".join(["{\n" + ",\n".join(settings), '  "keys": {\n' + ",\n".join(keys) + "\n  }\n}"])


def _topics(bag: Bag) -> list[_Topic]:
    topics: dict[str, _Topic] = {}
    for message in bag.messages():
        if message.topic not in topics:
            topics[message.topic] = _Topic(message.topic, message.type, message.log_time)
        topics[message.topic].add(message)
    in_order = [topics[name] for name in sorted(topics)]
    end = max((topic.last for topic in in_order), default=0)
    for topic in in_order:
        for candidate in topic.candidates:
            candidate.settle(end, topic.is_command)
    _agree_on_clocks([candidate for topic in in_order for candidate in topic.readable])
    _leave_out_copies(topics)
    return in_order


def _agree_on_clocks(candidates: list[CandidateTopic]) -> None:
    """Take the times of recording of topics whose stamps come from another clock."""
    while candidates and max(map(_lag, candidates)) - min(map(_lag, candidates)) > MOST_SKEW:
        farthest = max(candidates, key=lambda candidate: abs(candidate.lag))
        farthest.use_log()
        candidates = [candidate for candidate in candidates if not candidate.fault]


def _lag(candidate: CandidateTopic) -> float:
    return candidate.lag


def _leave_out_copies(topics: dict[str, _Topic]) -> None:
    """Leave out compressed pictures of a topic that can be read itself."""
    for name, transport in itertools.product(topics, _TRANSPORTS):
        copy = topics.get(name + transport)
        if copy is not None and topics[name].readable and copy.is_picture:
            copy.fault = copy.fault or f"holds the pictures of {name}"


def proposal(topics: list[_Topic]) -> dict[str, Any]:
    """Propose the JSON file: joints as state, commands as action, cameras, poses and other numbers by their names."""
    usable = [topic for topic in topics if topic.readable]
    cameras = [topic for topic in usable if topic.is_picture]
    numbers = [topic for topic in usable if not topic.is_picture]
    commands = [topic for topic in numbers if topic.is_command]
    states = [topic for topic in numbers if joints_of(topic.example) and topic not in commands]
    keys: dict[str, Any] = {}
    _put(keys, "observation.state", states)
    for topic in numbers:
        if topic not in commands and topic not in states:
            _put(keys, _free(keys, "observation.{}", topic), [topic])
    for topic in cameras:
        name = "observation.{}_depth" if topic.is_depth else "observation.images.{}"
        _put(keys, _free(keys, name, topic), [topic])
    _put(keys, "action", commands)
    if not commands and states:
        _put(keys, "action", states, ahead=1)
    rates = [topic.rate for topic in cameras if topic.rate] or [_DEFAULT_FPS]
    return {"fps": float(round(min(rates))) or 1.0, "clock": "header", "max_gap": MAX_GAP, "keys": keys}


def _put(keys: dict[str, Any], key: str, topics: list[_Topic], **options: Any) -> None:
    entries = [candidate.entry(**options) for topic in topics for candidate in topic.readable]
    if entries:
        keys[key] = entries if len(entries) > 1 else entries[0]


def _free(keys: dict[str, Any], form: str, topic: _Topic) -> str:
    """A key that no other topic has: by the short name of a topic, else by its whole name."""
    whole = "_".join(part for part in topic.name.split("/") if part)
    numbered = (f"{whole}_{number}" for number in itertools.count(2))
    names = itertools.chain([_short(topic.name), whole], numbered)
    return next(key for key in map(form.format, names) if key not in keys)


def _short(topic: str) -> str:
    """A name for a key: a topic's name without the parts that every camera has."""
    parts = [part for part in topic.split("/") if part]
    return "_".join(part for part in parts if part.lower() not in _NAMELESS) or parts[0]
