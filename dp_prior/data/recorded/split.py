"""Split of whole episodes into training, validation and test parts, by seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from pydantic import Field

from dp_prior.config import Config
from dp_prior.data.split_data import fraction_faults
from dp_prior.tensors.randomness import Randomness


@dataclass(frozen=True)
class Split:
    """Sorted episode numbers of each part. `dropped` episodes were train episodes beyond `max_train_episodes`."""

    train: list[int]
    val: list[int]
    test: list[int]
    dropped: list[int]

    def ids(self) -> dict[str, list[int]]:
        """The parts by name, as stored with a run."""
        return {"train": self.train, "val": self.val, "test": self.test, "dropped": self.dropped}


class SplitConfig(Config):
    """Seeded random split by episode. Statistics and training see the train part only."""

    train: float = Field(default=0.9, gt=0, le=1)
    """Fraction of the episodes to train on; at least one episode is."""

    val: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the episodes to validate on; above 0, at least one of two or more episodes."""

    test: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the episodes for a final test; above 0, at least one of three or more episodes."""

    seed: int = 0
    """Seed of the split. Keep it for runs that are compared."""

    max_train_episodes: int | None = Field(default=None, ge=1)
    """Maximum number of episodes to train on; the rest of the train part is not used. null means all."""

    def faults(self) -> Iterator[str]:
        return fraction_faults(self.train, self.val, self.test)

    def assign(self, n_episodes: int) -> Split:
        """Divide episodes 0 .. n_episodes - 1.

        Episodes are ranked by a hash of (seed, number), so ranks do not change when episodes are appended.
        """
        if n_episodes < 1:
            raise ValueError("cannot split 0 episodes; at least one is needed to train on")
        val, test = self._count(self.val, n_episodes), self._count(self.test, n_episodes)
        while val + test > n_episodes - 1:
            val, test = (val, test - 1) if test >= val else (val - 1, test)
        keys = Randomness.from_counts(self.seed, "episode split", torch.arange(n_episodes)).keys
        ranked = torch.argsort(keys).tolist()
        train = ranked[val + test :]
        kept = len(train) if self.max_train_episodes is None else self.max_train_episodes
        return Split(
            train=sorted(train[:kept]),
            val=sorted(ranked[:val]),
            test=sorted(ranked[val : val + test]),
            dropped=sorted(train[kept:]),
        )

    @staticmethod
    def _count(fraction: float, n_episodes: int) -> int:
        return max(1, round(fraction * n_episodes)) if fraction > 0 else 0
