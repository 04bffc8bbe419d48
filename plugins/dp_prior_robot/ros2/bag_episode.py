"""One recording as an episode: the keys of the JSON file on one time base. Numbers are held, pictures are not."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import decoding
from dp_prior.data.formats.grouped import EpisodeArrays, Layout
from dp_prior_robot.ros2.bags import Bag
from dp_prior_robot.ros2.contents import joints_of, picture_of
from dp_prior_robot.ros2.topics import TopicsConfig
from dp_prior_robot.ros2.track import SECOND, Track

MOST_SKEW = 1.0
"""Seconds by which the lags of two topics from stamp to recording may differ; pictures arrive later than numbers."""


class BagEpisode(EpisodeArrays):
    """See `EpisodeArrays`.

    Attributes:
        bag: the recording.
        names: names of the numbers of a key, if every number has one.
        recorded: number of messages by topic and type.
        notes: remarks on messages that were replaced or left out, each with an amount.
    """

    def __init__(self, bag: Bag, topics: TopicsConfig):
        self.file, self.where = bag.path, str(bag.path)
        self.names: dict[str, list[str]] = {}
        self.recorded: Counter[tuple[str, str]] = Counter()
        self.notes: dict[str, float] = {}
        self.bag, self._topics = bag, topics
        self._values: dict[str, np.ndarray] = {}
        self._places: dict[str, np.ndarray] = {}

    @cached_property
    def layout(self) -> Layout:
        """See `EpisodeArrays`; reads the recording once."""
        tracks_by_key = {key: list(map(Track, self._topics.parts(key))) for key in self._topics.keys}
        with _within(self.where):
            tracks = list(itertools.chain.from_iterable(tracks_by_key.values()))
            self._collect(tracks)
            steps = self._steps(tracks)
            return {key: self._sample(key, parts, steps) for key, parts in tracks_by_key.items()}

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        return next(self.blocks(key, first, stop, stop - first))

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """See `EpisodeArrays`; pictures are read from the recording in one pass."""
        if key in self._values:
            yield from (self._values[key][row : min(row + step, stop)] for row in range(first, stop, step))
            return
        topic, block = self._topics.parts(key)[0].topic, []
        for picture in self._pictures(topic, self._places[key][first:stop].tolist()):
            block.append(picture)
            if len(block) == step:
                yield _stacked(block)
                block = []
        if block:
            yield _stacked(block)

    def _collect(self, tracks: list[Track]) -> None:
        by_topic: dict[str, list[Track]] = {}
        for track in tracks:
            by_topic.setdefault(track.config.topic, []).append(track)
        for message in self.bag.messages():
            self.recorded[message.topic, message.type] += 1
            readers = by_topic.get(message.topic)
            if readers:
                decoded = message.decode()
                with decoding(message.topic, f"a message is not as {message.type} should be"):
                    is_read = [track.add(decoded, message.log_time) for track in readers]
                if not any(is_read):
                    note = f"{message.topic}: messages that name joints of no key, such as {joints_of(decoded)[0]}"
                    self.notes[note] = self.notes.get(note, 0) + 1
        recorded_topics = {topic for topic, _ in self.recorded}
        missing = [
            f"has no topic {topic!r}. {nearest_name(topic, recorded_topics)}"
            for topic in by_topic
            if topic not in recorded_topics
        ]
        if missing:
            raise DataError(self.where, missing)
        for track in tracks:
            track.finish()

    def _steps(self, tracks: list[Track]) -> np.ndarray:
        """(n,) times of the steps, from the latest begin of a topic to the earliest end."""
        _check_clocks(tracks, self.where)
        late, early = max(tracks, key=lambda track: track.times[0]), min(tracks, key=lambda track: track.end)
        begin, end = int(late.times[0]), min(early.end, max(int(track.times[-1]) for track in tracks))
        if end < begin:
            finding = f"{early.config.topic} ends {(begin - end) / SECOND:.3f} s before {late.config.topic} begins"
            raise DataError(self.where, [f"{finding}; expected a time at which there are both"])
        problems = []
        for track in tracks:
            try:
                track.check_gaps(begin, end)
            except DataError as error:
                problems += [f"{error.source} {problem}" for problem in error.problems]
        if problems:
            raise DataError(self.where, problems)
        self._note(tracks, begin, end, late.config.topic, early.config.topic)
        count = int((end - begin) * self._topics.fps / SECOND + 1e-3) + 1
        return np.minimum(begin + np.floor(np.arange(count) * (SECOND / self._topics.fps)).astype(np.int64), end)

    def _note(self, tracks: list[Track], begin: int, end: int, late: str, early: str) -> None:
        before = (begin - min(track.times[0] for track in tracks)) / SECOND
        after = (max(track.times[-1] for track in tracks) - end) / SECOND
        for note, seconds in ((f"before {late} begins", before), (f"after {early} ends", after)):
            if seconds > self._topics.max_gap:
                self.notes[f"seconds {note} are left out"] = seconds
        for track in tracks:
            topic = track.config.topic
            if track.duplicates:
                self.notes[f"{topic}: of messages of one time the last is used, others are left out"] = track.duplicates
            if track.config.clock == "header" and not track.has_stamps:
                self.notes[f"{topic}: messages have no header, so the times of recording are used"] = 0

    def _sample(self, key: str, parts: list[Track], steps: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
        """Store the values of a key at the steps; returns their shape and type."""
        later = [np.minimum(np.arange(len(steps)) + part.config.ahead, len(steps) - 1) for part in parts]
        sampled = [part.at(steps)[rows] for part, rows in zip(parts, later, strict=True)]
        if any(part.is_picture for part in parts):
            if len(parts) > 1:
                raise DataError(key, ["joins pictures to another topic; give each camera a key of its own"])
            shape, dtype = parts[0].layout
            self._places[key] = sampled[0]
            return (len(steps), *shape), dtype
        values = np.concatenate(sampled, axis=1)
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        self._values[key] = values
        names = list(itertools.chain.from_iterable(part.names for part in parts))
        if all(names) and not all(map(str.isdecimal, names)):
            self.names[key] = names
        return values.shape, values.dtype

    def _pictures(self, topic: str, places: list[int]) -> Iterator[Any]:
        """Read the pictures at these increasing places among the messages of a topic."""
        done = 0
        messages = (message for message in self.bag.messages() if message.topic == topic)
        for place, message in enumerate(messages):
            if done < len(places) and places[done] == place:
                with _within(self.where), decoding(topic):
                    picture = picture_of(message.decode(), topic)
                while done < len(places) and places[done] == place:
                    yield picture
                    done += 1
            if done == len(places):
                return


@contextlib.contextmanager
def _within(where: str) -> Iterator[None]:
    """Name the recording in errors that name a topic."""
    try:
        yield
    except DataError as error:
        place = error.source if error.source.startswith(where) else f"{where} {error.source}"
        raise DataError(place, error.problems) from None


def _stacked(pictures: list[Any]) -> np.ndarray:
    """Stack pictures to (k, ...), or encoded pictures to (k,) bytes."""
    if isinstance(pictures[0], bytes):
        block = np.empty(len(pictures), object)
        block[:] = pictures
        return block
    return np.stack(pictures)


def _check_clocks(tracks: list[Track], where: str) -> None:
    """Raises DataError if stamps come from clocks that differ."""
    slow, fast = max(tracks, key=lambda track: track.lag), min(tracks, key=lambda track: track.lag)
    if slow.lag - fast.lag > MOST_SKEW:
        lags = [f"{track.config.topic} was recorded {track.lag:.3f} s after its times" for track in (slow, fast)]
        expected = f"expected a difference of at most {MOST_SKEW:g} s"
        raise DataError(where, [f'{" and ".join(lags)}; {expected}. Give {slow.config.topic} "clock": "log"'])
