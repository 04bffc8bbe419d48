"""Numbers in the type recorded, as a cache holds them; in float32 where that type is wider, or joined numbers have
several types."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.recorded.selection import KeyConfig


@dataclass(frozen=True)
class RememberedChoice(Chosen):
    """Chosen episodes that keep what was read of them. Attributes: recorded_values: by key, in the stored type."""

    recorded_values: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    def read(self, store: EpisodeStore, key: str) -> np.ndarray:
        """See `Chosen`."""
        self.recorded_values[key] = super().read(store, key)
        return self.recorded_values[key]

    def as_recorded(self, store: EpisodeStore, record: KeyConfig, array: np.ndarray, stride: int) -> np.ndarray:
        """The values of a key that were read of these episodes, in their type, little-endian.

        Args:
            array: the same values in float32, see `read_selected`.
        """
        parts = [self.recorded_values[stored] for stored in record.stored_keys]
        if len({part.dtype for part in parts}) == 1 and parts[0].dtype.itemsize <= array.dtype.itemsize:
            names = {} if record.names is None else store.metadata()["names"]
            values = record.joined(parts, record.places(names, store.keys()), parts[0].dtype)
            array = record.in_time(values[: len(array)], self.ends, stride)
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


@dataclass(frozen=True)
class ChosenAlready:
    """A choice that was made, and its problems; see `ChoiceConfig.of`."""

    chosen: Chosen
    problems: tuple[str, ...] = ()

    def of(self, store: EpisodeStore) -> tuple[Chosen, list[str]]:
        """The chosen episodes, and the problems of the choice."""
        return self.chosen, list(self.problems)
