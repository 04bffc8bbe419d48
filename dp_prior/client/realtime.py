"""Real-time execution: one thread predicts chunks while the robot's loop goes on acting.

Actions are counted. A chunk is aligned with the actions that were commanded, not with the time that passed: its action
at index n_obs_steps - 1 is the first whose effect comes after the newest observation, and the chunk continues after as
many actions as were commanded since. So no action is skipped or repeated, whether the robot moved, waited or held
still meanwhile. What the robot commanded but does not see yet, because of its latencies or of the prediction, is
dropped from a chunk that arrives; Diffusion Policy's `n_latency_steps` is a fixed number of such actions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np


class Predictor(Protocol):
    """Predicts chunks: the client of a server, or a `dp_prior.Agent`."""

    def infer(
        self, obs: Mapping[str, np.ndarray], prefix: np.ndarray | None = None, delay: int = 0
    ) -> Mapping[str, Any]:
        """A chunk, under "chunk" (horizon, action_dim).

        Args:
            obs: (n_obs_steps, *shape) by key, newest last.
            prefix: (n, action_dim) the unfinished chunk: the action of the oldest observation's step, and so on. None
                where there is none.
            delay: how many of those from the newest observation on are executed before the new chunk replaces them.
        """


class _Prediction(NamedTuple):
    """A prediction under way."""

    result: Future
    present: int
    """Number of the action that the chunk's index n_obs_steps - 1 stands for."""

    call: int
    """Call of `act` that asked for it."""


class RealtimeAgent:
    """Runs one robot: call `act(obs)` once per control period. It waits for the first chunk of an episode only.

    Attributes:
        delays: the last 10 measured delays from request to arrival, in control periods; the largest is expected.
        held: calls that repeated the last action because the next chunk was late.
        late: chunks that arrived after the last one had run out.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        fps: float,
        n_obs_steps: int,
        n_action_steps: int,
        obs_latency: Mapping[str, float] | None = None,
        action_latency: float = 0.0,
        nearest: Collection[str] = (),
        delay: int = 1,
        max_delay: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ):
        """
        Args:
            fps: control steps per second.
            n_obs_steps: observations that the policy sees.
            n_action_steps: actions after which the next chunk is requested, or earlier if a chunk would run out.
            obs_latency: seconds by which an observation is older than the call that hands it over, by key. All are
                interpolated to the capture time of the oldest: floats linearly, integers such as pixels to the nearest.
            action_latency: seconds from a command to its effect.
            nearest: names of observations that are never interpolated but taken from the nearest time: those that hold
                rotations, which numbers in between are not where a quaternion changes its sign or an angle jumps.
            delay: first estimate of the delay, in control periods.
            max_delay: largest delay that the predictor is told, for policies trained with `task.prefix`.
            clock: seconds.
            executor: where predictions run, one at a time; None for a thread of its own.

        Raises:
            ValueError: a number is out of range, or nearest is one text.
        """
        latencies = [*(obs_latency or {}).values(), action_latency]
        if fps <= 0 or n_obs_steps < 1 or n_action_steps < 1 or delay < 0 or min(latencies) < 0:
            raise ValueError(
                f"fps is {fps}, n_obs_steps {n_obs_steps}, n_action_steps {n_action_steps}, delay {delay}, latencies "
                f"{latencies}; expected fps above 0, counts from 1, and no negative delay or latency"
            )
        if isinstance(nearest, str):
            raise ValueError(f"nearest is the text {nearest!r}; expected a collection of names: [{nearest!r}]")
        self._predictor = predictor
        self._period = 1 / fps
        self._past = n_obs_steps - 1
        self._n_action_steps = n_action_steps
        self._obs_latency = dict(obs_latency or {})
        self._action_latency = action_latency
        self._nearest = frozenset(nearest)
        self._max_delay = max_delay
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, "predict")
        self._seen_s = max(self._obs_latency.values(), default=0.0) + self._past * self._period
        self._request: _Prediction | None = None
        self.delays = deque([delay], maxlen=10)
        self.reset()

    def reset(self) -> None:
        """Start an episode: forget observations, actions and what is under way; the measured delays stay."""
        self.held = self.late = 0
        self._calls = self._commanded = self._requested = 0
        self._observations: dict[str, deque] = {}
        self._commands: deque = deque()  # (time, action)
        if self._request is not None:
            self._request.result.cancel()
        self._request = None
        self._chunk: np.ndarray | None = None
        self._first = 0  # number of the chunk's action at index 0

    def act(self, obs: Mapping[str, Any]) -> np.ndarray:
        """The action to command now.

        Args:
            obs: (*shape) by key, the newest observations.

        Returns:
            (action_dim,) float32.

        Raises:
            ValueError: an observation is missing that obs_latency or nearest names or an earlier call of the episode
                gave, or the chunk is not one of finite actions.
            Exception: whatever the predictor raised.
        """
        now = self._clock()
        self._remember(now, obs)
        self._collect()
        left = 0 if self._chunk is None else len(self._chunk) + self._first - self._commanded
        is_due = self._commanded - self._requested >= self._n_action_steps or left <= max(self.delays)
        if self._request is None and is_due:
            self._ask(now)
            self._collect(wait=self._chunk is None)
        self._calls += 1
        index = self._commanded - self._first
        if index >= len(self._chunk):
            self.held += 1
            return self._commands[-1][1].copy()
        self._commands.append((self._clock(), self._chunk[index]))
        self._commanded += 1
        return self._chunk[index].copy()

    def close(self) -> None:
        """End the predicting thread, after the prediction under way."""
        self._executor.shutdown()

    def __enter__(self) -> RealtimeAgent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _remember(self, now: float, obs: Mapping[str, Any]) -> None:
        for setting, names in (("obs_latency", self._obs_latency), ("nearest", self._nearest)):
            missing = sorted(set(names) - set(obs))
            if missing:
                raise ValueError(f"{setting} names {missing}, but the observations are {sorted(obs)}")
        missing = sorted(set(self._observations) - set(obs))
        if missing:  # else every prediction would see the world as it was when the key was last given
            raise ValueError(f"earlier calls of this episode gave {missing}, but the observations are {sorted(obs)}")
        for key, value in obs.items():
            past = self._observations.setdefault(key, deque())
            past.append((now - self._obs_latency.get(key, 0.0), np.array(value)))
            while len(past) > 1 and past[1][0] <= now - self._seen_s:
                past.popleft()

    def _ask(self, now: float) -> None:
        """Request the chunk that continues what is commanded and planned."""
        newest = min(past[-1][0] for past in self._observations.values())
        wanted = newest - np.arange(self._past, -1, -1) * self._period
        obs = {key: interpolated(past, wanted, key in self._nearest) for key, past in self._observations.items()}
        unseen = newest - self._action_latency - self._period / 2
        in_flight = sum(commanded > unseen for commanded, _ in self._commands)
        while len(self._commands) > max(in_flight + self._past, 1):  # the last one may have to be held
            self._commands.popleft()
        present = self._commanded - in_flight
        ahead = [] if self._chunk is None else list(self._chunk[self._commanded - self._first :])
        before = [action for _, action in self._commands][len(self._commands) - in_flight - self._past :]
        prefix, delay = None, 0
        if present >= self._past and in_flight + len(ahead):
            prefix = np.stack([*before, *ahead])
            most = len(self._chunk) - self._past - 1  # so that the new chunk, too, has an action left to execute
            delay = min(in_flight + min(max(self.delays), len(ahead)), most)
            delay = delay if self._max_delay is None else min(delay, self._max_delay)
        result = self._executor.submit(self._predictor.infer, obs, prefix=prefix, delay=delay)
        self._request = _Prediction(result, present, self._calls)
        self._requested = self._commanded

    def _collect(self, wait: bool = False) -> None:
        """Replace the running chunk by the requested one, if that is there."""
        request = self._request
        if request is None or not (wait or request.result.done()):
            return
        self._request = None
        chunk = np.asarray(request.result.result()["chunk"], dtype=np.float32)
        if chunk.ndim != 2 or len(chunk) <= self._past or not np.isfinite(chunk).all():
            raise ValueError(
                f"the predictor gave a chunk of shape {chunk.shape}, finite: {np.isfinite(chunk).all()}; expected "
                f"finite actions (horizon, action_dim) with a horizon above {self._past}"
            )
        if self._chunk is not None:
            self.delays.append(self._calls - request.call)
            self.late += self._commanded - self._first >= len(self._chunk)
        self._chunk, self._first = chunk, request.present - self._past


def interpolated(past: deque, wanted: np.ndarray, nearest: bool = False) -> np.ndarray:
    """(len(wanted), *shape) of what was recorded, at other times: floats linearly, other types the nearest.

    Args:
        past: (time, value (*shape)), oldest first; before the first and after the last its value holds.
        wanted: times.
        nearest: also of floats.
    """
    times = np.array([moment for moment, _ in past])
    values = np.stack([value for _, value in past])
    right = np.searchsorted(times, wanted).clip(0, len(times) - 1)
    left = (right - 1).clip(0)
    share = ((wanted - times[left]) / np.maximum(times[right] - times[left], 1e-9)).clip(0, 1)
    if nearest or values.dtype.kind != "f":
        return values[np.where(share < 0.5, left, right)]
    share = share.astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - share) * values[left] + share * values[right]
