"""VectorEnv: episodes that run in lockstep, a row of the arrays for each.

No automatic reset: a row whose episode is over keeps its last observation until the next `reset`, so action chunks and
observation histories never span two episodes.

Every environment can begin at a recorded seed. An environment that can also begin at a recorded state has `start_keys`,
the names of the values that determine a start, and `reset_to`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

SEED = "seed"
"""Name of the seed among recorded starts."""


class EnvStep(NamedTuple):
    """The result of a step for n rows."""

    obs: dict[str, np.ndarray]
    """(n, *shape) by key."""

    reward: np.ndarray
    """(n,) float64 reward of this step; 0 for a row that was already over."""

    done: np.ndarray
    """(n,) bool, True from the end of the episode on."""

    info: dict[str, np.ndarray]
    """`score` (n,) float64, the episode's score so far, and `success` (n,): 1 for a solved episode, 0 for an unsolved
    episode, NaN if the environment does not say. `stage` (n,) if the environment names stages: the stage that the
    episode has reached, at most 32 characters."""


class VectorEnv(Protocol):
    """Up to `n_envs` independent episodes; row i depends only on its own seed and actions."""

    n_envs: int
    """Most rows that run at once."""

    max_steps: int
    """Every episode is over after this many steps."""

    fps: float
    """Control steps per second of the world, hence frames per second of a video in real time."""

    obs_shapes: dict[str, tuple[int, ...]]
    """Shape of one row's observation by key."""

    action_dim: int
    """Size of one row's action."""

    is_watched: bool
    """Whether the caller uses the pictures after the next reset and steps, which the caller sets. Otherwise pictures of
    an earlier step may be returned, and no pictures after a reset, so that no camera is drawn between two predictions.
    Other observations are always up to date, since they show the motion of an episode. An environment may also have
    `n_filmed`, which the caller sets: the first N rows have new pictures after every step."""

    def reset(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Start one episode per seed, at most `n_envs`; each seed is a row until the next reset."""

    def step(self, actions: np.ndarray) -> EnvStep:
        """Advance every row that is not over by one control step; actions (n, action_dim), all finite."""

    def render(self, rows: Sequence[int]) -> np.ndarray:
        """Draw pictures of some rows: (len(rows), height, width, 3) uint8."""

    def close(self) -> None:
        """Release windows, processes and memory."""


def check_seeds(seeds: Sequence[int], n_envs: int) -> None:
    """Raises ValueError unless the number of seeds is 1 to `n_envs`."""
    if not 1 <= len(seeds) <= n_envs:
        raise ValueError(f"reset got {len(seeds)} seeds, but this environment runs 1 to {n_envs} episodes at once")


def check_actions(actions: np.ndarray, n_rows: int, action_dim: int) -> np.ndarray:
    """The actions as an array. Raises ValueError for a wrong shape, and for NaN, since physics engines abort on NaN."""
    actions = np.asarray(actions)
    if actions.shape != (n_rows, action_dim):
        raise ValueError(f"actions have shape {actions.shape}; expected {(n_rows, action_dim)}, a row per episode")
    bad = np.flatnonzero(~np.isfinite(actions).all(axis=1))
    if len(bad):
        raise ValueError(f"the action of row {bad[0]} is {actions[bad[0]].tolist()}; expected finite numbers")
    return actions


def check_obs(obs: Any, env: VectorEnv, n_rows: int) -> None:
    """Raises ValueError unless observations have the keys and shapes that the environment declares; pictures that are
    not watched may be missing."""
    obs = obs if isinstance(obs, Mapping) else {}
    forms = {key: _form(value) for key, value in obs.items()}
    is_watched, shapes = getattr(env, "is_watched", True), env.obs_shapes.items()
    expected = {key: (n_rows, *shape) for key, shape in shapes if key in forms or is_watched or len(shape) < 2}
    actual = {key: forms.get(key, "missing") for key in expected}
    wrong = [f"{key} is {actual[key]}, not {shape}" for key, shape in expected.items() if actual[key] != shape]
    if wrong:
        raise ValueError(
            f"the observations that the environment returned do not have the shapes of its `obs_shapes`: "
            f"{'; '.join(wrong)}; expected arrays by key, {n_rows} rows each"
        )


def check_step(step: Any, env: VectorEnv, n_rows: int, number: int) -> None:
    """Raises ValueError unless a step has the form of `EnvStep`, and every row is over after `max_steps`.

    Args:
        number: number of the step since the reset, from 1.
    """
    if not isinstance(step, tuple) or len(step) != len(EnvStep._fields):
        finding = f"{len(step)} values" if isinstance(step, tuple) else type(step).__name__
        raise ValueError(f"the environment's step gave {finding}; expected an EnvStep of {', '.join(EnvStep._fields)}")
    done, info = step[2:]
    if not isinstance(done, np.ndarray) or done.dtype != bool or done.shape != (n_rows,):
        finding = f"{done.dtype} {done.shape}" if isinstance(done, np.ndarray) else type(done).__name__
        raise ValueError(f"`done` of the environment's step is {finding}; expected an array of bool {(n_rows,)}")
    for key in ("score", "success"):
        value = info.get(key) if isinstance(info, Mapping) else None
        if _form(value) != (n_rows,):
            raise ValueError(
                f"info[{key!r}] of the environment's step is {_form(value)}; expected an array of {n_rows} numbers, a "
                f"row per episode; a success that is unknown is NaN"
            )
    if number >= env.max_steps and not done.all():
        unfinished = np.flatnonzero(~done)
        raise ValueError(
            f"{len(unfinished)} of {n_rows} episodes, the first in row {unfinished[0]}, are not over after {number} "
            f"steps, but max_steps of the environment is {env.max_steps}; expected `done` True from the end of an "
            f"episode on, and in every row after max_steps"
        )


def stacked(rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stack the observations of n rows: (n, *shape) by key."""
    observations = {}
    for key in rows[0]:
        observations[key] = np.stack([row[key] for row in rows])
    return observations


def _form(value: Any) -> tuple[int, ...] | str:
    """The shape of an array, or the name of another type."""
    return value.shape if isinstance(value, np.ndarray) else type(value).__name__


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
