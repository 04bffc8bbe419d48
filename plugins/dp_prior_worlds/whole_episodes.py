"""Recorded episodes as a whole, at the rate of the policy: for what follows an episode from its start to its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dp_prior.data.recorded.selection import ACTION, ActionConfig, read_selected
from dp_prior.data.recorded.trajectories import TrajectoriesConfig

EXECUTED = "executed"
"""Key of the executed, noisy actions in demonstrations of a disturbed expert; `action` is the expert's own action."""


class WholeEpisodes:
    """The chosen episodes of a data set, never mirrored; of a thinned recording the rows from the first on.

    Attributes:
        numbers: (E,) the data set's own number of each episode.
        keys: what the data set has.
    """

    def __init__(self, record: TrajectoriesConfig, action: ActionConfig | None = None):
        """
        Args:
            record: of data on this machine.
            action: the executed actions; None for the key `executed`, or without it for the actions to learn.

        Raises:
            DataError: it cannot be read; all problems in one report.
        """
        self._store = record.episodes.create()
        self.keys: Collection[str] = self._store.keys()
        usual = ActionConfig(key=EXECUTED) if EXECUTED in self.keys else record.action
        keys = {**record.obs, ACTION: action or usual}
        selected = read_selected(self._store, keys, record.choice, record.stride, record.split.max_rows)
        self._values, self._chosen, _ = selected
        self._stride = record.stride
        self.numbers = self._chosen.names[self._chosen.numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def actions(self) -> np.ndarray:
        """(N, A) float32, of all episodes."""
        return self._values[ACTION]

    @property
    def obs(self) -> dict[str, np.ndarray]:
        """(N, *shape) float32 of every observation by the policy's name, without pictures and texts."""
        return {name: values for name, values in self._values.items() if name != ACTION}

    def column(self, keys: Sequence[str], where: str) -> np.ndarray:
        """(N, ...) of another key in its stored type, or of several joined to one vector; a key may have one value for
        each episode instead.

        Args:
            where: the setting that names the keys, for messages.

        Raises:
            DataError: there is no such key, or it has another number of rows.
        """
        parts = [self._chosen.column(self._store, key, where) for key in keys]
        return parts[0] if len(parts) == 1 else np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def rows(self, place: int) -> np.ndarray:
        """(T,) rows of the episode at a place, at the rate of the policy."""
        end = self._chosen.ends[place]
        return np.arange(end - self._chosen.lengths[place], end, self._stride)
