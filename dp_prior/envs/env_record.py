"""The base class of the records of environments, with defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from dp_prior.config import Config
from dp_prior.envs.vector import VectorEnv

Expert = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Acts in place of a policy, from any state that the policy reached: maps the observations of one episode by key to the
action (A,). A pure function."""


class EnvRecord(Config):
    """An environment for rollouts. A member of the family has a `type`, `n_envs`, `max_steps`, and `create`, which
    makes a `VectorEnv`; `expert` creates its `Expert`, where the environment has one. A record of another package that
    does not extend this class gets the missing attributes."""

    score_range: ClassVar[Any] = (-math.inf, math.inf)
    """Least and greatest score of an episode, to which confidence intervals are clipped."""

    modules: ClassVar[Any] = ()
    """Names of the modules that simulate, whose versions belong to the environment's fingerprint."""

    packages: ClassVar[Any] = None
    """Versions by package, of an environment that simulates in another Python; None asks for `modules` here."""

    angles: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    """Numbers of observations that are angles in radians, by key."""

    steps_in_turn: ClassVar[Any] = False
    """Whether the rows are stepped one after the other on one core, so that worker processes gain by sharing them.
    False for environments that run all rows at once or use a GPU."""

    def maker(self) -> Callable[[], VectorEnv]:
        """Makes the environment in a worker process, to which the function is pickled."""
        return self.create
