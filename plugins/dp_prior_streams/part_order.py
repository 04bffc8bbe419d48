"""The order of training over parts of a data set, of which only a few are on this machine at a time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dp_prior.data.samples.order import epoch_order, sorted_by_hash


class PartOrder:
    """A shuffle for data of which only some parts, such as files, are on this machine at a time.

    Parts are put in random order, the parts of a group next to one another. The samples of a part are divided among
    `mixed_parts` consecutive stretches of the epoch, and a stretch shuffles the samples of as many parts: from one
    stretch to the next a single part leaves and a single part is added. So an epoch needs each part once.
    """

    def __init__(self, seed: int, part_of: np.ndarray, group_of: np.ndarray, *, mixed_parts: int):
        """
        Args:
            part_of: (n,) number of the part that holds each sample.
            group_of: number of the group of each part; parts without samples are left out of the order.
        """
        self.seed, self._group_of = seed, group_of
        self._parts, sizes = np.unique(part_of, return_counts=True)
        samples = np.split(np.argsort(part_of, kind="stable"), np.cumsum(sizes)[:-1])
        self._samples = dict(zip(self._parts.tolist(), samples, strict=True))
        self.mixed_parts = min(mixed_parts, len(self._parts))
        self._arrangement = lru_cache(2)(self._arrange)
        self._stretch = lru_cache(2)(self._make_stretch)
        self._shuffled = lru_cache(2 * self.mixed_parts)(self._shuffle)

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        ends, pieces = self._arrangement(epoch)[1], []
        for stretch in self._stretches(epoch, begin, end):
            first = int(ends[stretch - 1]) if stretch else 0
            pieces.append(self._stretch(epoch, stretch)[max(begin - first, 0) : end - first])
        return np.concatenate(pieces)

    def parts(self, epoch: int, begin: int, end: int) -> tuple[list[int], list[int]]:
        """The parts that these positions of an epoch need, and the parts after them in the order of their arrival, of
        this epoch and the first of the next."""
        arrival, stretches = self._arrangement(epoch)[0], self._stretches(epoch, begin, end)
        stop = stretches[-1] + self.mixed_parts
        next_arrival = self._arrangement(epoch + 1)[0][: self.mixed_parts]
        return arrival[stretches[0] : stop].tolist(), [*arrival[stop:].tolist(), *next_arrival.tolist()]

    def _stretches(self, epoch: int, begin: int, end: int) -> range:
        first, last = np.searchsorted(self._arrangement(epoch)[1], [begin, end - 1], side="right").tolist()
        return range(first, last + 1)

    def _arrange(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The parts in the order of their arrival, and the exclusive end of each stretch."""
        groups, parts = epoch_order(self.seed, epoch, int(self._group_of.max()) + 1), self._parts
        parts = parts[epoch_order(self.seed, epoch, len(parts))]
        arrival = parts[np.argsort(np.argsort(groups)[self._group_of[parts]], kind="stable")]
        sizes = np.zeros(len(arrival) - self.mixed_parts + 1, np.int64)
        for place, part in enumerate(arrival.tolist()):
            np.add.at(sizes, self._stretches_of(place), np.diff(self._bounds(part)))
        return arrival, np.cumsum(sizes)

    def _bounds(self, part: int) -> np.ndarray:
        """Where the shares of a part in its stretches begin and end."""
        return np.arange(self.mixed_parts + 1) * len(self._samples[part]) // self.mixed_parts

    def _stretches_of(self, place: int) -> np.ndarray:
        """The stretch of each share of the part at a place of the arrival."""
        last = len(self._parts) - self.mixed_parts
        return np.clip(place + np.arange(self.mixed_parts) - self.mixed_parts + 1, 0, last)

    def _shuffle(self, epoch: int, part: int) -> np.ndarray:
        return sorted_by_hash(self._samples[part], self.seed, f"rows/{epoch}")

    def _make_stretch(self, epoch: int, stretch: int) -> np.ndarray:
        arrival, shares_of_parts = self._arrangement(epoch)[0], []
        for place in range(stretch, stretch + self.mixed_parts):
            part = int(arrival[place])
            is_here = self._stretches_of(place) == stretch
            for number in np.flatnonzero(is_here).tolist():
                begin, end = self._bounds(part)[number : number + 2]
                shares_of_parts.append(self._shuffled(epoch, part)[begin:end])
        return sorted_by_hash(np.concatenate(shares_of_parts), self.seed, f"stretch/{epoch}")
