"""Observed: a robot's recent observations, each with the time of its capture."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dp_prior_client.loop_limits import LoopLimits
from dp_prior_client.onboard.frozen_watch import FrozenWatch
from dp_prior_client.steady_clock import SteadyClock

REMEMBERED_S = 2.0
"""Observations older than this are forgotten, even where another key has nothing newer to be compared with."""


class Observed:
    """The observations of an episode by key, for as long as a prediction needs them."""

    def __init__(
        self,
        clock: SteadyClock,
        limits: LoopLimits,
        *,
        period: float,
        past: int,
        latency: Mapping[str, float],
        nearest: Collection[str],
        instructions: Collection[str] = (),
    ):
        """
        Args:
            period: of control, in seconds.
            past: observation steps before the newest.
            latency: age in seconds, by key, of observations without a time of capture.
            nearest: keys that are not interpolated.
            instructions: keys that hold from the call that gives them on, however old other observations are; texts
                always do.
        """
        self._clock, self._limits, self._period, self._past = clock, limits, period, past
        self._latency, self._nearest, self._instructions = dict(latency), frozenset(nearest), frozenset(instructions)
        self._frozen = FrozenWatch(limits.frame_s, limits.frozen)
        self._remembered_s = max(REMEMBERED_S, *self._latency.values()) if self._latency else REMEMBERED_S
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._observations: dict[str, deque] = {}  # of (time, value)
        self._frozen.reset()

    @property
    def newest(self) -> float:
        """The time up to which every key has been observed."""
        return min(past[-1][0] for past in self._observations.values())

    @property
    def latest(self) -> dict[str, np.ndarray]:
        """(*shape) by key: the newest values, in arrays that no caller holds."""
        return {key: past[-1][1] for key, past in self._observations.items()}

    def remember(self, now: float, obs: Mapping[str, Any], captured: Mapping[str, float]) -> None:
        """Add the newest observations.

        Args:
            captured: readings of the clock, by key.

        Raises:
            ValueError: a key is missing, a time of capture is no time of this clock, or a camera is frozen; nothing is
                remembered.
        """
        self._check_names(obs, captured)
        times = {key: self._time(now, key, captured) for key in obs}
        values = {key: np.array(value) for key, value in obs.items()}
        for key, value in values.items():
            if value.ndim >= 3:
                self._frozen.check_frame(key, value, now, times[key])
            elif key in captured:
                self._frozen.check_age(key, now - times[key])
        for key, value in values.items():
            past = self._observations.setdefault(key, deque())
            if past and past[-1][1].shape != value.shape:
                past.clear()  # values of two shapes cannot be stacked, and only the predictor knows which one is right
            if key not in captured or not past or times[key] > past[-1][0]:  # else delivered again, or overtaken
                past.append((times[key], value))
        oldest = max(self.newest, now - self._remembered_s) - self._past * self._period
        for past in self._observations.values():
            while len(past) > 1 and past[1][0] <= oldest:
                past.popleft()

    def stacked(self) -> dict[str, np.ndarray]:
        """(past + 1, *shape) by key: what was seen at the newest time and at the control steps before."""
        before, stacked = np.arange(self._past, -1, -1) * self._period, {}
        for key, past in self._observations.items():
            time, value = past[-1]
            is_instruction = key in self._instructions or value.dtype.kind == "U"
            times = (time if is_instruction else self.newest) - before
            stacked[key] = interpolated(past, times, is_instruction or key in self._nearest)
        return stacked

    def _check_names(self, obs: Mapping[str, Any], captured: Mapping[str, float]) -> None:
        limited = self._limits.frame_s if isinstance(self._limits.frame_s, Mapping) else {}
        for setting, names in (("obs_latency", self._latency), ("nearest", self._nearest), ("captured", captured),
                               ("frame_s", limited)):  # fmt: skip
            missing = sorted(set(names) - set(obs))
            if missing:
                raise ValueError(f"{setting} names {missing}, but the observations are {sorted(obs)}")
        missing = sorted(set(self._observations) - set(obs))
        if missing:  # else every prediction would see the world as it was when the key was last given
            raise ValueError(f"earlier calls of this episode gave {missing}, but the observations are {sorted(obs)}")

    def _time(self, now: float, key: str, captured: Mapping[str, float]) -> float:
        """When an observation was captured."""
        if key not in captured:
            return now - self._latency.get(key, 0.0)
        time = self._clock.time_of(captured[key], now)
        if not time <= now + self._period:  # nor is NaN a time
            raise ValueError(
                f"captured gives {key!r} a time {time - now:.4g} s ahead of the clock; expected readings of the "
                f"agent's clock, which is time.monotonic unless you give another"
            )
        return min(time, now)


def interpolated(past: deque, moments: np.ndarray, nearest: bool = False) -> np.ndarray:
    """(len(moments), *shape) of what was recorded, at other times: floats linearly, other types and frames the
    nearest.

    Args:
        past: (time, value (*shape)), oldest first; before the first and after the last its value holds.
        moments: the other times.
        nearest: also of floats.
    """
    times = np.array([time for time, _ in past])
    values = np.stack([value for _, value in past])
    after = np.searchsorted(times, moments).clip(0, len(times) - 1)
    before = (after - 1).clip(0)
    share = ((moments - times[before]) / np.maximum(times[after] - times[before], 1e-9)).clip(0, 1)
    if nearest or values.dtype.kind != "f" or values.ndim > 3:  # a mean of two frames of depth is no depth
        return values[np.where(share < 0.5, before, after)]
    share = share.astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - share) * values[before] + share * values[after]
