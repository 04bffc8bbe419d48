"""Recorded starts: environments that are reset to the start of a recorded episode.

Every environment can begin at a recorded seed. An environment that can also begin at a recorded state has `start_keys`,
the names of the values that determine a start, and `reset_to`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from dp_prior.envs.vector import VectorEnv

SEED = "seed"
"""Name of the seed among recorded starts."""


@runtime_checkable
class StartsAsRecorded(Protocol):
    """An environment that can be reset to a recorded start."""

    start_keys: tuple[str, ...]
    """Names of the values that determine a start: observations, or `seed`. An empty tuple stands for a seed with
    further names that the environment accepts."""

    def reset_to(self, starts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Start one episode per row of `starts`, (n, ...) by name; otherwise like `VectorEnv.reset`.

        Raises:
            ValueError: the environment expects other names.
        """


def start_keys(env: VectorEnv) -> tuple[str, ...]:
    """Names of the values that determine a start of this environment; `seed` alone by default."""
    keys = env.start_keys if isinstance(env, StartsAsRecorded) else ()
    return keys or (SEED,)


def reset_to(env: VectorEnv, starts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Start one episode per row of `starts`, (n, ...) by name; see `StartsAsRecorded`.

    Raises:
        ValueError: the environment cannot begin at these starts.
    """
    if set(starts) == {SEED}:
        return env.reset(starts[SEED].tolist())
    if not isinstance(env, StartsAsRecorded):
        names = " and ".join(sorted(starts))
        raise ValueError(f"has no `reset_to`, so it begins at a seed, but {names} is given; see docs/environments.md")
    return env.reset_to(starts)


def check_starts(names: Iterable[str], needed: tuple[str, ...]) -> None:
    """Raises ValueError unless `names` are the needed names, with or without a seed."""
    names = set(names)
    if names - {SEED} != set(needed) - {SEED} or (SEED in needed and SEED not in names):
        expected = " and ".join(needed)
        raise ValueError(f"begins at a recorded {expected}, but {' and '.join(sorted(names)) or 'nothing'} is given")
