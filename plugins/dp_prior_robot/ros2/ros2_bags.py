"""Recordings of ROS 2 in MCAP, an episode each, on the time base of a JSON file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.data.formats.grouped import GroupedStore
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import expanded
from dp_prior_robot.ros2.bag_episode import BagEpisode
from dp_prior_robot.ros2.bags import METADATA_FILE, Bag, bags_at, is_recording
from dp_prior_robot.ros2.topics import TopicsConfig
from dp_prior_robot.ros2.topics_proposal import missing_topics


class Ros2BagsConfig(EpisodeStoreRecord):
    """ROS 2 bags in MCAP: one recording, or a folder with a recording for each episode. A JSON file names the topics;
    without one `dp-prior inspect` proposes it."""

    type: Literal["ros2_bags"] = "ros2_bags"

    path: Path
    """A file .mcap, the folder of a bag, or a folder of these; relative to the working directory, `~` is the home
    directory."""

    topics: Path | None = None
    """The JSON file with the rate and the topic of each key; null: `topics.json` beside the recordings."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        return is_recording(path)

    def create(self) -> Ros2BagsStore:
        """Read every recording once, for times and numbers; pictures are read when asked for.

        Raises:
            ImportError: mcap or mcap_ros2 is not installed.
            ConfigError: the JSON file is wrong.
        """
        return self._opened(self._bags())

    def salvage(self, left_out: Collection[str]) -> tuple[Ros2BagsStore, list[str]]:
        """See `EpisodeStoreRecord`; recordings that were cut off are read up to the first damage."""
        bags = self._bags()
        store = self._opened([replace(bag, may_be_cut=True) for bag in bags])
        lines = []
        for bag, count in zip(bags, np.diff(store.episode_ends, prepend=0).tolist(), strict=True):
            lines += [f"{file}: was cut off; {count} steps lie before" for file in bag.cut_files()]
        return store, lines or ["all recordings are whole"]

    def _bags(self) -> list[Bag]:
        with needing("ros", "reading ROS 2 bags needs mcap and mcap-ros2-support"):
            import mcap_ros2.decoder  # noqa: F401
        return bags_at(expanded(self.path))

    def _opened(self, bags: list[Bag]) -> Ros2BagsStore:
        path = expanded(self.path)
        file = expanded(self.topics or (path if path.is_dir() else path.parent) / "topics.json")
        if not file.exists():
            whole = (bag for bag in bags if bag.may_be_cut or not bag.cut_files())
            raise missing_topics(next(whole, bags[0]), path, file)
        return Ros2BagsStore(path, bags, TopicsConfig.from_json_path(file), file)


class Ros2BagsStore(GroupedStore):
    """See `GroupedStore`."""

    def __init__(self, path: Path, bags: list[Bag], topics: TopicsConfig, file: Path):
        """Args: file: the JSON file of `topics`."""
        self._topics, self._file = topics, file
        super().__init__(path, "ROS 2 bags", [BagEpisode(bag, topics) for bag in bags], None)

    def files(self, keys: Iterable[str]) -> list[Path]:
        bags = [episode.bag for episode in self._intact]
        metadata = {bag.path / METADATA_FILE for bag in bags if (bag.path / METADATA_FILE).is_file()}
        return sorted({self._file, *metadata}.union(*(bag.files for bag in bags)))

    def stored_metadata(self) -> dict[str, Any]:
        tasks = [] if self._topics.task is None else [self._topics.task]
        return {"fps": self._topics.fps, "tasks": tasks, "names": self._parts[self._first].names}

    def unread(self) -> dict[str, str]:
        """See `EpisodeStore`; lists the topics that no key names."""
        read_topics, recorded = self._topics.topics(), {}
        for part in reversed(self._parts):  # the first recording with a topic determines the count
            recorded |= part.recorded
        unread = sorted((topic, count) for topic, count in recorded.items() if topic[0] not in read_topics)
        return {topic: f"{count} messages of {kind}" for (topic, kind), count in unread}

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; lists messages that were left out, with the number of episodes."""
        amounts_of: dict[str, dict[int, float]] = {}
        for number, episode in enumerate(self._parts):
            for note, amount in episode.notes.items():
                amounts_of.setdefault(note, {})[number] = amount
        return [_remark(note, amounts) for note, amounts in amounts_of.items()]


def _remark(note: str, amounts: dict[int, float]) -> str:
    """Write a note about some episodes with the largest amount. Args: amounts: amounts by episode; 0 for a note without
    an amount."""
    worst = max(amounts, key=lambda number: amounts[number])
    largest = f", {amounts[worst]:.3g} in episode {worst}" if amounts[worst] else ""
    return f"{note} ({len(amounts)} episodes{largest})"
