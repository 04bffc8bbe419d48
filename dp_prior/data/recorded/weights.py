"""Weights of windows: how often each is drawn in training, by a key of the data set and by episode.

Weights decide what is drawn and not how much its loss counts: a batch then keeps its size, mean and variance of the
gradient, an epoch its length, and the sample at any position stays a function of the seed and the position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from dp_prior.config import Config, ConfigError
from dp_prior.data.errors import DataError, first_few
from dp_prior.data.formats.choice import episodes_of, named
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.samples.order import Successes
from dp_prior.data.samples.weighted_order import Share, shares

MOST_WEIGHTS = 64
"""Different weights of windows; each has its own share of an epoch, which needs a few samples."""

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class WeightsConfig(Config):
    """How often windows are drawn, relative to a window of weight 1; one of weight 0 is never drawn. A window counts by
    the row of its newest observation, and weights of several kinds multiply."""

    key: str | None = None
    """Key with one value per step or per episode, such as the `intervention` of LeRobot's rollouts."""

    values: dict[str, Weight] | None = Field(default=None, min_length=1)
    """Weight of each value of `key`, such as `{"true": 4}` for corrections that are drawn four times as often, or
    `{"true": 0}` without them; other values have weight 1. null: the key holds weights, unless it is compared."""

    at_least: float | None = None
    """Draw only windows at whose newest observation `key` is at least this, such as a speed; null: no lower limit."""

    at_most: float | None = None
    """Draw only windows at whose newest observation `key` is at most this; null: no upper limit."""

    change: bool = False
    """Compare the largest change of a number of `key`, which may be a vector, to the next step of the episode: with
    `at_least`, time at rest is left out. False: compare the value."""

    episodes: dict[str, Weight] = {}
    """Weight of episodes, by number, range or part as in `choice`: `{"0-49": 2, "valid": 0.5}`; others have 1."""

    mask: bool = False
    """Actions at steps of weight 0 carry no loss in training, also where a window of a weighted step reaches into them:
    true for corrections, before and after which the policy acted."""

    def faults(self) -> Iterator[str]:
        if self.key is None and not self.episodes:
            yield "weights names neither a key nor episodes; give one of them, or remove it"
        if self.key is None and self.values is not None:
            yield 'values are those of a key; name it: "key"'
        if self.is_compared and (self.key is None or self.values is not None):
            yield "at_least and at_most compare a key and leave rows out, without values; give key, and remove values"
        if self.change and not self.is_compared:
            yield "change is compared with nothing; give at_least or at_most"

    @property
    def is_compared(self) -> bool:
        """Whether `key` is compared with a limit."""
        return self.at_least is not None or self.at_most is not None

    def create(self, store: EpisodeStore, chosen: Chosen) -> np.ndarray:
        """(n,) float64 weight of each chosen row.

        Raises:
            DataError: there is no such key, value or episode, or a weight is none.
        """
        weights = np.repeat(self._of_episodes(store, chosen), chosen.lengths)
        return weights if self.key is None else weights * self._of_key(store, chosen)

    def _of_key(self, store: EpisodeStore, chosen: Chosen) -> np.ndarray:
        column = (chosen.column if self.change else chosen.one_value)(store, self.key, "weights")
        if self.is_compared:
            if column.dtype.kind not in "biuf":
                finding = f"weights: key {self.key!r} holds {column.dtype}"
                raise DataError(store.where, [f"{finding}; at_least and at_most compare numbers; give `values`"])
            column = _changes(column, chosen.ends) if self.change else column
            is_in = self.at_least is None or column >= self.at_least  # NaN is in no range
            return np.ones(len(column)) * (is_in & (self.at_most is None or column <= self.at_most))
        if self.values is None:
            if column.dtype.kind not in "biuf" or not (np.isfinite(column) & (column >= 0)).all():
                finding = f"weights: key {self.key!r} holds {column.dtype}"
                raise DataError(store.where, [f"{finding}; expected finite numbers from 0 up, or give `values`"])
            return column.astype(np.float64)
        unique, index = np.unique(column, return_inverse=True)
        names = [named(value) for value in unique]
        if missing := sorted(self.values.keys() - set(names)):
            finding = f"weights.values names {first_few(missing)}, but {self.key!r} holds {first_few(names, 10)}"
            raise DataError(store.where, [f"{finding}; name values that it has"])
        return np.array([self.values.get(name, 1.0) for name in names])[index.ravel()]

    def _of_episodes(self, store: EpisodeStore, chosen: Chosen) -> np.ndarray:
        """(k,) weight of each chosen episode."""
        weights, owner = np.ones(len(chosen.recorded)), {}
        for entry, weight in self.episodes.items():
            places = episodes_of([int(entry) if entry.isdecimal() else entry], store, "weights.episodes")
            for place in places.tolist():
                if (other := owner.setdefault(place, entry)) != entry:
                    finding = f"weights.episodes: episode {chosen.names[place]} is in {other!r} and in {entry!r}"
                    raise DataError(store.where, [f"{finding}; give it one weight"])
            weights[places] = weight
        return weights[chosen.numbers]


def _changes(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,) largest change of a number of (n, ...) from each row to the next; of an episode's last row from the row
    before it."""
    numbers = values.reshape(len(values), -1).astype(np.float64)
    changes = np.abs(np.diff(numbers, axis=0, append=numbers[-1:])).max(1, initial=0.0)
    begins, last = ends - np.diff(ends, prepend=0), ends - 1
    changes[last] = np.where(last > begins, changes[last - 1], 0.0)
    return changes


@dataclass(frozen=True)
class Weights(Extra):
    """How often windows are drawn.

    Attributes:
        weights: (n,) of each recorded row; a mirror image has that of its original.
        is_masked: whether actions at rows of weight 0 carry no loss.
    """

    weights: np.ndarray
    is_masked: bool

    @classmethod
    def open(cls, record: WeightsConfig, opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        keys = () if record.key is None else (record.key,)
        return cls(record.create(opened.store, opened.chosen), record.mask, keys=keys), opened

    def has_loss(self, rows: np.ndarray) -> np.ndarray | None:
        return self.weights[rows % len(self.weights)] > 0 if self.is_masked else None

    def shares(self, newest: np.ndarray, count: int, successes: Successes) -> list[Share]:
        return weighted_shares(self.weights[newest % len(self.weights)], count)

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterator[str]:
        drawn = sum(len(share.ids) for share in shares)
        yield f"weights: {windows - drawn:,} windows are never drawn, the others in {len(shares)} shares"


def weighted_shares(weights: np.ndarray, count: int) -> list[Share]:
    """Divide `count` samples of an epoch among windows: in proportion to their weights, in groups of equal ones.

    Args:
        weights: (n,) of each window.

    Raises:
        ConfigError: no window would be drawn, one of weight above 0 never, or there are too many different weights.
    """
    groups = [np.flatnonzero(weights == weight) for weight in np.unique(weights[weights > 0])]
    if not groups:
        raise ConfigError("data", ["weights are 0 for every window of the train part; nothing could be drawn"])
    if len(groups) > MOST_WEIGHTS:
        finding = f"weights have {len(groups)} different values; expected at most {MOST_WEIGHTS}"
        raise ConfigError("data", [f"{finding}, for each needs a share of an epoch. Round them"])
    counts = shares(count, [len(group) * float(weights[group[0]]) for group in groups])
    lost = [f"{weights[group[0]]:g}" for group, share in zip(groups, counts, strict=True) if not share]
    if lost:
        finding = f"weights {first_few(lost)} give their windows none of the {count} samples of an epoch"
        raise ConfigError("data", [f"{finding}; raise them, or set them to 0"])
    return [Share(group, share) for group, share in zip(groups, counts, strict=True)]
