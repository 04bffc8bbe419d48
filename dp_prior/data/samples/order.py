"""Orders of training: the sample at each position of an epoch, a pure function of (seed, epoch, position)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from dp_prior.tensors.randomness import Randomness


class Order(Protocol):
    """n samples for every epoch, as a rule each of them once. Several threads may ask it at a time."""

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """(end - begin,) int64 sample ids at these positions of an epoch."""


Successes = Mapping[str, Mapping[str, Sequence[int]]]
"""Episodes solved and episodes played, by evaluator and instruction, in the newest evaluation of each."""

INSTRUCTION_CHARACTERS = 256
"""Of an instruction in `Successes`; longer instructions are cut."""


class SuccessOrder(ABC):
    """An order that rollouts change: a run stores the successes and resumes anywhere; see `FollowingOrder`.

    Attributes:
        successes: of the newest rollouts.
    """

    successes: Successes

    @abstractmethod
    def resumed(self, successes: Successes) -> Order:
        """The order after these rollouts."""

    @abstractmethod
    def after(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Order:
        """The order after an evaluation with these tables, rows by the table's name."""


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """(n,) int64 permutation of 0 .. n - 1.

    Sample ids are sorted by a hash of (seed, epoch, id). The hash is a bijection of 64 bits: there are no ties, and the
    order is independent of any library's generator and sorting algorithm.
    """
    return sorted_by_hash(np.arange(n), seed, f"order/{epoch}")


class FullOrder:
    """A full shuffle, for data in memory."""

    def __init__(self, seed: int, n: int):
        self._epoch = lru_cache(2)(lambda epoch: epoch_order(seed, epoch, n))

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`."""
        return self._epoch(epoch)[begin:end]


def sorted_by_hash(ids: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """The ids (..., n) in order of their hashes along the last axis."""
    keys = Randomness.from_counts(seed, purpose, torch.from_numpy(ids)).keys
    return np.take_along_axis(ids, np.argsort(keys.numpy(), axis=-1), axis=-1)
