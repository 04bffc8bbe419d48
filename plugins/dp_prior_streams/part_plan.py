"""The division of a data set into parts that arrive in turn: a function of the data set alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.lerobot.meta import LeRobotMeta, TableFile

PARTS = 64
"""Parts of a data set: small files are joined, and the frames of large files are divided, to about so many."""


@dataclass(frozen=True)
class PartPlan:
    """Parts of the chosen episodes, in the order of their rows. The numbers of a group of parts arrive together.

    Attributes:
        groups: the tables of each group, with the chosen episodes alone.
        group_ends: (G,) exclusive end row of each group, among the chosen rows.
        ends: (P,) exclusive end row of each part.
        group_of: (P,) group of each part.
        episode_ends: (E,) exclusive end row of each chosen episode.
        numbers: (E,) place of each chosen episode in the data set.
        names: (E,) the data set's own number of each chosen episode.
        lengths: rows of each episode, by this number.
    """

    groups: list[list[TableFile]]
    group_ends: np.ndarray
    ends: np.ndarray
    group_of: np.ndarray
    episode_ends: np.ndarray
    numbers: np.ndarray
    names: np.ndarray
    lengths: Mapping[int, int]

    @classmethod
    def of(cls, meta: LeRobotMeta, chosen: Chosen, sizes: Sequence[int], has_frames: bool) -> PartPlan:
        """Divide the chosen episodes.

        Args:
            sizes: bytes of each table.
            has_frames: whether frames are read, so that parts hold parts of a table.
        """
        numbers = set(chosen.names[chosen.numbers].tolist())
        tables = [_chosen_part(table, numbers, meta.lengths) for table in meta.tables]
        groups: list[list[TableFile]] = []
        filled, least = 0, sum(sizes) / PARTS
        for table, size in zip(tables, sizes, strict=True):
            if not table.episodes:
                continue
            if not groups or filled + size > least:
                groups.append([])
                filled = 0
            groups[-1].append(table)
            filled += size
        rows = [_rows(group, meta.lengths) for group in groups]
        group_ends = np.cumsum(rows)
        ends, group_of = [], []
        for number, (end, count) in enumerate(zip(group_ends.tolist(), rows, strict=True)):
            pieces = max(1, round(PARTS * count / int(group_ends[-1]))) if has_frames else 1
            ideal = end - count + np.arange(1, pieces + 1) * count // pieces
            of_episodes = chosen.ends[np.searchsorted(chosen.ends, ideal)]
            part_ends = np.unique(of_episodes[of_episodes > end - count])
            ends += part_ends.tolist()
            group_of += [number] * len(part_ends)
        numbered = chosen.ends, chosen.numbers, chosen.names[chosen.numbers]
        return cls(groups, group_ends, np.array(ends, np.int64), np.array(group_of, np.int64), *numbered, meta.lengths)

    def part_of(self, rows: np.ndarray) -> np.ndarray:
        """The part that holds each chosen row."""
        return np.searchsorted(self.ends, rows, side="right")

    def span(self, group: int) -> tuple[int, int]:
        """First row and exclusive end row of a group."""
        return (int(self.group_ends[group - 1]) if group else 0), int(self.group_ends[group])

    def part_span(self, part: int) -> tuple[int, int]:
        """First row and exclusive end row of a part."""
        return (int(self.ends[part - 1]) if part else 0), int(self.ends[part])

    def tables(self, part: int) -> list[TableFile]:
        """The tables of a part, with its episodes alone."""
        names = set(self.names[self.episodes(*self.part_span(part))].tolist())
        tables = (_chosen_part(table, names, self.lengths) for table in self.groups[int(self.group_of[part])])
        return [table for table in tables if table.episodes]

    def episodes(self, begin: int, end: int) -> np.ndarray:
        """Places of the chosen episodes whose rows lie between two ends of episodes."""
        return np.arange(*np.searchsorted(self.episode_ends, [begin, end - 1], side="right") + [0, 1])


def _rows(tables: Sequence[TableFile], lengths: Mapping[int, int]) -> int:
    return sum(table.n_rows(lengths) for table in tables)


def _chosen_part(table: TableFile, numbers: set[int], lengths: Mapping[int, int]) -> TableFile:
    """A table with the chosen episodes alone."""
    episodes = [episode for episode in table.episodes if episode in numbers]
    if len(episodes) == len(table.episodes):
        return table
    counts = [lengths[episode] for episode in table.episodes]
    begins = table.begins or (np.cumsum(counts) - counts).tolist()
    begin_of = dict(zip(table.episodes, begins, strict=True))
    return table._replace(episodes=episodes, begins=[begin_of[episode] for episode in episodes])
