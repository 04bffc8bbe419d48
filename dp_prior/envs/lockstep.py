"""Lockstep: gymnasium environments as the rows of one VectorEnv, stepped in turn in this process.

Physics as cheap as Push-T's cost less than inter-process communication: two gymnasium workers reach half the steps per
second of this loop on the same two cores. Environments that render may be divided among `workers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dp_prior.envs.vector import SEED, EnvStep, check_actions, check_seeds, check_starts, stacked

FAR_HALF_RANGES = 10.0
"""Half ranges of the environment's actions beyond which an action is reported: it was recorded in another unit."""

SINCE_GYM_26 = "as since gym 0.26; shimmy's GymV21CompatibilityV0 wraps older environments"

log = logging.getLogger(__name__)

ScoreRule = Literal["sum", "max", "last", "success"]


class Lockstep:
    """A VectorEnv of independent gymnasium environments."""

    def __init__(
        self,
        envs: list[Any],
        *,
        max_steps: int,
        fps: float,
        obs_shapes: dict[str, tuple[int, ...]],
        read_obs: Callable[[Any], dict[str, np.ndarray]],
        score: ScoreRule,
        success_score: float | None,
        draw: Callable[[Any], dict[str, np.ndarray]] = lambda raw: {},
        start_keys: tuple[str, ...] = (SEED,),
        begin: Callable[[Any, dict[str, Any]], Any] = lambda env, start: first_observation(
            env.reset(seed=int(start[SEED]))
        ),
    ):
        """
        Args:
            envs: single environments with a one-dimensional Box of actions and without automatic reset.
            read_obs: converts one environment's raw observation to arrays by key.
            draw: converts a raw observation to pictures by key, if pictures are watched.
            score: rule that combines rewards to the episode's score.
            success_score: score from which an episode is solved; None reads the environment's info.
            start_keys: see `StartsAsRecorded`.
            begin: resets one environment to a recorded start, by name; returns the raw observation.
        """
        self.envs = envs
        self.n_envs = len(envs)
        self.max_steps = max_steps
        self.fps = fps
        self.obs_shapes = obs_shapes
        space = envs[0].action_space
        self.action_dim = space.shape[0]
        self._low, self._high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._dtype, self._is_far_told = space.dtype, False
        self._read_obs, self._draw = read_obs, draw
        self._rule = score
        self._success_score = success_score
        self.start_keys = start_keys
        self._begin = begin
        self.is_watched, self.n_filmed = True, 0

    def reset(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        check_seeds(seeds, self.n_envs)
        envs = zip(self.envs, seeds, strict=False)
        return self._started([first_observation(env.reset(seed=int(seed))) for env, seed in envs])

    def reset_to(self, starts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `StartsAsRecorded`."""
        if self.start_keys:
            check_starts(starts, self.start_keys)
        check_seeds(next(iter(starts.values())), self.n_envs)
        rows = [dict(zip(starts, values, strict=True)) for values in zip(*starts.values(), strict=True)]
        return self._started([self._begin(env, row) for env, row in zip(self.envs, rows, strict=False)])

    def _started(self, raw: list[Any]) -> dict[str, np.ndarray]:
        """Reset the counters, with the first observation of each row."""
        n = len(raw)
        self._rows = [{**self._read_obs(obs), **self._watched(obs, row)} for row, obs in enumerate(raw)]
        self._steps = 0
        self._done = np.zeros(n, dtype=bool)
        self._success = np.full(n, np.nan)
        self._stage = np.full(n, "", dtype="<U32")
        self._score = np.full(n, -np.inf if self._rule == "max" else 0.0)
        return stacked(self._rows)

    def step(self, actions: np.ndarray) -> EnvStep:
        n = len(self._rows)
        wanted = check_actions(actions, n, self.action_dim)
        actions = np.clip(wanted, self._low, self._high)
        if not self._is_far_told:
            self._tell_far(wanted, actions)
        actions = (np.rint(actions) if self._dtype.kind in "iu" else actions).astype(self._dtype)
        reward = np.zeros(n)
        self._steps += 1
        for row in np.flatnonzero(~self._done):
            obs, rewarded, terminated, truncated, info = self.envs[row].step(actions[row])
            reward[row] = _as_number(rewarded)
            self._rows[row] = {**self._rows[row], **self._read_obs(obs), **self._watched(obs, row)}
            self._judge(row, reward[row], info or {})
            self._done[row] = bool(terminated) or bool(truncated) or self._steps >= self.max_steps
        info = {"score": self._score.copy(), "success": self._success.copy()}
        if (self._stage != "").any():
            info["stage"] = self._stage.copy()
        return EnvStep(stacked(self._rows), reward, self._done.copy(), info)

    def render(self, rows: Sequence[int]) -> np.ndarray:
        return np.stack([_as_rgb(self.envs[row].render()) for row in rows])

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _tell_far(self, wanted: np.ndarray, clipped: np.ndarray) -> None:
        """Warn of the first action (n, action_dim) far beyond the limits, to which it is clipped."""
        width = self._high - self._low
        for row, number in np.argwhere((width > 0) & (abs(wanted - clipped) > (FAR_HALF_RANGES - 1) / 2 * width))[:1]:
            self._is_far_told = True
            limits = f"{self._low[number]:g} to {self._high[number]:g}, to which it is clipped; another unit?"
            log.warning(f"action dimension {number} is {wanted[row, number]:g}, but the environment takes {limits}")

    def _watched(self, raw: Any, row: int) -> dict[str, np.ndarray]:
        return self._draw(raw) if self.is_watched or row < self.n_filmed else {}

    def _judge(self, row: int, reward: float, info: dict[str, Any]) -> None:
        """Update score, success and stage of a row."""
        self._stage[row] = info.get("stage", self._stage[row])
        reported = info.get("is_success", info.get("success"))
        success = np.nan if reported is None else _as_number(reported, "success")  # NaN if unknown
        success = success if np.isnan(success) else float(success != 0)
        if self._rule == "sum":
            self._score[row] += reward
        elif self._rule == "max":
            self._score[row] = np.maximum(self._score[row], reward)  # NaN stays NaN
        elif self._rule == "last":
            self._score[row] = self._score[row] if np.isnan(self._score[row]) else reward
        else:
            self._score[row] = np.fmax(self._score[row], success)
        if self._success_score is not None:
            success = float(self._score[row] >= self._success_score)
        self._success[row] = np.fmax(self._success[row], success)  # a solved episode stays solved


def first_observation(returned: Any) -> Any:
    """The observation in what an environment's reset returned.

    Raises:
        ValueError: it is no pair of observation and info.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        finding = f"{len(returned)} values" if isinstance(returned, tuple) else f"one {type(returned).__name__}"
        raise ValueError(f"the environment's reset returned {finding}; expected observation and info, {SINCE_GYM_26}")
    return returned[0]


def _as_number(value: Any, name: str = "reward") -> float:
    """Convert a reward or a success, also in an array of one number, to a float."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        finding = f"{array.dtype} of shape {array.shape}" if array.ndim else repr(value)
        raise ValueError(f"the environment's {name} is {finding}; expected a number; let its step return one")
    return float(array.item())


def _as_rgb(picture: Any) -> np.ndarray:
    """Convert a rendered picture to (height, width, 3) uint8: grey becomes three channels, a fourth is dropped."""
    array = np.asarray(picture)
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4) or min(array.shape[:2]) < 2:
        finding = "None" if picture is None else f"{array.dtype} of shape {np.shape(picture)}"
        raise ValueError(
            f"the environment renders {finding}; expected uint8 (height, width, 3). "
            f"Make rgb_array render that, or set the evaluator's videos to 0"
        )
    return np.broadcast_to(array[..., :3], (*array.shape[:2], 3))
