"""Real-time execution: one thread predicts chunks while the robot's loop goes on acting.

A chunk is aligned with the actions that were commanded, not with the time that passed, see `ChunkPlan`. So no action is
skipped or repeated, whether the robot moved, waited or held still meanwhile. What the robot commanded but does not see
yet, because of its latencies or of the prediction, is dropped from a chunk that arrives; Diffusion Policy's
`n_latency_steps` is a fixed number of such actions.

A call that finds no new action holds the last action, for as long as `LoopLimits` allow. `ActionLimits` judge every
command, as in an agent that waits.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError  # the builtin TimeoutError from Python 3.11 on
from typing import Any, NamedTuple, Protocol

import numpy as np

from dp_prior_client.chunk_plan import ChunkPlan
from dp_prior_client.loop_limits import LateError, Lateness, LoopLimits
from dp_prior_client.observed import Observed
from dp_prior_client.onboard.action_limits import ActionLimits, RefusedActionError, check_dry_limits
from dp_prior_client.onboard.broker import ChunkBroker
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads, rate_faults
from dp_prior_client.onboard.safety import SafetyMonitor
from dp_prior_client.onboard.tick_log import Tick, TickLog
from dp_prior_client.steady_clock import SteadyClock

STARVED_S = 1.0
"""Seconds without a new action after which a line of the log says so, if `hold_s` is not shorter."""

log = logging.getLogger(__name__)


class Predictor(Protocol):
    """Predicts chunks: the client of a server, or a `dp_prior.Agent`. An optional attribute `trouble` has the reason
    for a missing chunk."""

    def infer(
        self, obs: Mapping[str, np.ndarray], prefix: np.ndarray | None = None, delay: int = 0
    ) -> Mapping[str, Any]:
        """A chunk, under "chunk" (horizon, action_dim).

        Args:
            obs: (n_obs_steps, *shape) by key, newest last.
            prefix: (n, action_dim) the unfinished chunk, from the action of the oldest observation's step on; None
                without an unfinished chunk.
            delay: how many of those from the newest observation on are executed before the new chunk replaces them.
        """


class _Prediction(NamedTuple):
    """A prediction under way."""

    result: Future
    present: int
    """See `Continuation`."""

    call: int
    """Call of `act` that asked for it."""

    asked: float
    """Time at which it was asked for."""


class RealtimeAgent:
    """Runs one robot: call `act(obs)` once per control period. It waits for the first chunk of an episode only.

    Every control period ends in one of `commanded`, `held`, `replaced` and `missed`.

    Attributes:
        reads: of the predictor, see `ObsSpec`; None for a predictor without.
        state: "waiting" for the first chunk of the episode; "acting", "holding" the last action, or "late": longer
            without a new action than `limits.hold_s`.
        delays: the last 10 measured delays from request to arrival, in control periods; the largest is expected.
        held: calls that repeated the last action because the next chunk was late.
        replaced: calls answered by the function in `limits.then`.
        missed: control periods without an action, because the loop stalled or `act` raised.
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
        limits: LoopLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        log: TickLog | None = None,
        actions: ActionLimits | None = None,
    ):
        """
        Args:
            fps: control steps per second.
            n_obs_steps: observations that the policy sees.
            n_action_steps: actions after which the next chunk is requested, or earlier if a chunk would run out.
            obs_latency: seconds by which an observation is older than the call that hands it over, by key. All are
                interpolated to the capture time of the oldest: floats linearly, pixels, depth and points nearest.
            action_latency: seconds from a command to its effect.
            nearest: names of observations that are never interpolated but taken from the nearest time: those that hold
                rotations, which numbers in between are not where a quaternion changes its sign or an angle jumps.
            delay: first estimate of the delay, in control periods.
            max_delay: largest delay passed to the predictor, for policies trained with `task.prefix`.
            clock: seconds, also of `captured`; its jumps are left out.
            executor: where predictions run, one at a time; None for a thread of its own.
            limits: when the loop is too late and a camera too old; None for the defaults.
            monotonic: clock that is never set, by which jumps of `clock` are noticed.
            log: where every tick is logged; None for nowhere.
            actions: limits of commands; None for the predictor's, or the defaults. Of a predictor without `reads`, only
                limits in data units judge.

        Raises:
            ValueError: a number is out of range, nearest is one text, `limits.rate` refuses fps, `actions` are limits
                of another width, or they clip the commands of a server's dry run.
        """
        _check_numbers(fps, n_obs_steps, n_action_steps, delay, [*(obs_latency or {}).values(), action_latency])
        if isinstance(nearest, str):
            raise ValueError(f"nearest is the text {nearest!r}; expected a collection of names: [{nearest!r}]")
        self._predictor = predictor
        self._period = 1 / fps
        self._past = n_obs_steps - 1
        self._n_action_steps = n_action_steps
        self._action_latency = action_latency
        self._max_delay = max_delay
        self.limits = limits or LoopLimits()
        self.reads: ObsSpec | None = getattr(predictor, "reads", None)
        reads = {} if self.reads is None else self.reads.observations
        self._width: int | None = None
        self._monitor: SafetyMonitor | None = None if actions is not None else getattr(predictor, "monitor", None)
        self._actions = actions
        if self.reads is not None and self.reads.action is not None:
            self._width = self.reads.action.shape[0]
            self._monitor = self._monitor or SafetyMonitor(self.reads, actions=actions)
        self._clouds = [key for key, observation in reads.items() if observation.kind == "points"]
        self._is_dry: bool = getattr(predictor, "is_dry", False)
        self._is_rehearsed: bool = getattr(predictor, "rehearses", False)
        if self._is_dry and not self._is_rehearsed:
            check_dry_limits(actions)
        self._compare_rate(fps)
        if isinstance(predictor, ChunkBroker):
            predictor.leave_frozen()
        self._clock = SteadyClock(clock, self.limits.clock_jump_s, monotonic)
        self._executor = executor or ThreadPoolExecutor(1, "predict")
        self._observed = Observed(
            self._clock,
            self.limits,
            period=self._period,
            past=self._past,
            latency=obs_latency or {},
            nearest={*nearest, *self._clouds},  # points of two clouds do not belong together
            instructions=[key for key, observation in reads.items() if observation.kind == "text"],
        )
        self._plan = ChunkPlan(self._past)
        self._request: _Prediction | None = None
        self._recorder = None if log is None else log.recorder(self.reads)
        self._episode = -1
        self.delays = deque([delay], maxlen=10)
        self.reset()

    def reset(self) -> None:
        """Start an episode: forget observations, actions and what is under way; the measured delays stay."""
        self.state, self._episode = "waiting", self._episode + 1
        if self._recorder is not None:
            self._recorder.end()
        self.held = self.replaced = self.missed = self.late = 0
        self._calls = self._requested = 0
        self._plan.reset()
        self._clock.restart()
        self._observed.reset()
        if self._request is not None:
            self._request.result.cancel()
        self._request = None
        self._is_discarded = self._is_dropped = self._is_outdated = False
        self._called: float | None = None
        self._held_since: float | None = None
        self._next_line_s = min(self.limits.hold_s, STARVED_S)
        self._has_warned = False
        self._last: np.ndarray | None = None  # action of a chunk
        self._sent: np.ndarray | None = None  # action of anything

    def act(self, obs: Mapping[str, Any], captured: Mapping[str, float] | None = None) -> np.ndarray:
        """The action to command now.

        Args:
            obs: (*shape) by key, the newest observations.
            captured: readings of the clock at which observations were captured, by key, instead of `obs_latency`.

        Returns:
            (action_dim,) float32.

        Raises:
            ValueError: an observation is None, or is missing that obs_latency or nearest names or an earlier call of
                the episode gave, a time of capture is none, a camera is frozen, or the chunk is not finite, or of
                another width than the last.
            RefusedActionError: an action is refused, see `ActionLimits`; its chunk is dropped, and the next call asks
                for a new one.
            LateError: there is no action in the time of `limits`.
            Exception: whatever the predictor raised.
        """
        now = self._clock()
        if self._called is not None:
            self.missed += max(round((now - self._called) / self._period) - 1, 0)
        self._called, chunk = now, self._plan.chunk
        try:
            self._sent = action = self._action(now, obs, captured or {})
            if self._recorder is not None:
                self._note(now, action, None if self._plan.chunk is chunk else self._plan.chunk)
            return action.copy()
        except BaseException:
            self.missed, self._called = self.missed + 1, self._clock()
            raise

    def drop_queued_actions(self) -> None:
        """Ask for a new chunk at the next `act`: call it when an instruction has changed. The running chunk is executed
        until the new chunk arrives, which does not continue it; a chunk under way is discarded."""
        if self.state == "waiting" and self._request is not None:
            self._request.result.cancel()
            self._request = None
        self._is_discarded, self._is_dropped = self._request is not None, True

    @property
    def commanded(self) -> int:
        """Actions of chunks handed out in this episode."""
        return self._plan.commanded

    @property
    def clock_jumps(self) -> int:
        """How often `clock` was set while the agent ran."""
        return self._clock.jumps

    def close(self) -> None:
        """End the predicting thread, after the prediction under way."""
        self._executor.shutdown()

    def __enter__(self) -> RealtimeAgent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _compare_rate(self, fps: float) -> None:
        """Compare the rate of the loop with the rate of the policy's training, if the predictor knows it."""
        for fault in () if self.reads is None else rate_faults(fps, self.reads.fps):
            if self.limits.rate == "refuse":
                raise ValueError(f"{fault} (limits.rate)")
            log.warning(fault)

    def _action(self, now: float, obs: Mapping[str, Any], captured: Mapping[str, float]) -> np.ndarray:
        """See `act`."""
        for key in () if self.reads is None else self.reads.observations:
            if key in obs and obs[key] is None:
                self.reads.array(key, None)  # raises; a remembered None would end a later prediction
        clouds = {key: self.reads.evenly(key, np.asarray(obs[key])) for key in self._clouds if key in obs}
        self._observed.remember(now, {**obs, **clouds}, captured)
        self._collect()
        ahead = self._plan.ahead
        runs_out = ahead is None or len(ahead) <= max(self.delays)
        is_due = runs_out or self.commanded - self._requested >= self._n_action_steps
        if self._request is None and (is_due or self._is_dropped):
            self._ask(now)
        self._collect(wait=self.state == "waiting")
        self._calls += 1
        ahead = self._plan.ahead
        if ahead is None or not len(ahead):
            return self._without_new(now, obs)
        action = self._judged(ahead[0], obs)
        self._called = self._clock()  # later than now by the wait for a first chunk
        self._plan.command(action, self._called)
        if self._has_warned:
            log.warning("new actions come again after %.3g s", now - self._held_since)
        self._last, self._held_since = action, None
        self._next_line_s, self._has_warned = min(self.limits.hold_s, STARVED_S), False
        self.state = "acting"
        return action

    def _note(self, now: float, action: np.ndarray, chunk: np.ndarray | None, is_refused: bool = False) -> None:
        """Log a tick. Args: chunk: the running chunk where this tick has begun it."""
        is_new = self._held_since is None
        late_s = 0.0 if is_new else now - self._held_since + self._period
        start, step = max(self._plan.index - 1, 0), self._calls - 1
        tick = Tick(time.time(), self._episode, step, self._observed.latest, action, chunk, start, late_s)
        problems = self._monitor.problems if is_new and self._monitor is not None else ()
        self._recorder.note(tick._replace(problems=problems, is_refused=is_refused, is_dry=self._is_dry))

    def _judged(self, action: np.ndarray, obs: Mapping[str, Any]) -> np.ndarray:
        """The command in place of an action; a chunk with a refused action is dropped."""
        if self._is_rehearsed:
            return action
        if self._monitor is None:  # the predictor says nothing of its actions
            unknown = ObsSpec({}, Reads((self._width,), "float32"))
            self._monitor = SafetyMonitor(unknown, actions=self._actions)
        position = {key: np.asarray(obs[key]) for key in self._monitor.positions if key in obs}
        try:
            return self._monitor.check_action(action, position, self._sent)
        except RefusedActionError:
            if self._recorder is not None:
                self._note(self._called, action, None, is_refused=True)
            self._forget_plan()
            raise

    def _without_new(self, now: float, obs: Mapping[str, Any]) -> np.ndarray:
        """The action while the next chunk is late, see `LoopLimits`."""
        if self._held_since is None:
            self._held_since = now
        held_s = now - self._held_since
        then = "hold" if self._is_dry and callable(self.limits.then) else self.limits.then  # it would move the robot
        is_late = held_s > self.limits.hold_s - self._period / 2  # the call closest to the limit
        self.state = "late" if is_late else "holding"
        is_held = not is_late or then == "hold"
        if (is_held or then != "stop") and held_s > self._next_line_s - self._period / 2:
            deed = "the last action is held" if is_held else "the function gives the action"
            log.warning("%s; %s (limits.then)", self._reason(now), deed)
            self._next_line_s, self._has_warned = max(2 * held_s, STARVED_S), True
        if is_held:
            self.held += 1
            return self._stopped() if is_late else self._last
        reason = self._reason(now)
        if self._plan.chunk is not None:
            self._forget_plan()
        if then == "stop":
            raise LateError(f"{reason}, and limits.hold_s is {self.limits.hold_s:g}: the robot must be stopped")
        action = np.array(then(Lateness(held_s, reason, self._last.copy(), obs)), np.float32)
        if action.shape != self._last.shape or not np.isfinite(action).all():
            raise ValueError(f"limits.then gave {action}; expected finite numbers of shape {self._last.shape}")
        self.replaced += 1
        return action

    def _stopped(self) -> np.ndarray:
        """The last action with 0 for its velocities, which would move the robot for ever."""
        action = self._last.copy()
        if self.reads is not None and self.reads.action is not None:
            action[self.reads.action.velocities] = 0
        return action

    def _reason(self, now: float) -> str:
        """Since when there is no new action, and why."""
        since = f"no new action for {now - self._held_since:.3g} s, since action {self.commanded}"
        if self._request is None:
            return f"{since}: the last chunk ended before the present"
        age, asked = now - self._observed.newest, now - self._request.asked
        reason = f"{since}: the chunk asked for {asked:.3g} s ago has not arrived; observations are {age:.3g} s old"
        trouble = getattr(self._predictor, "trouble", None)
        return reason if trouble is None else f"{reason}; {trouble}"

    def _forget_plan(self) -> None:
        """Forget the running chunk, and the chunk under way: the robot does something that neither foresaw."""
        self._plan.drop()
        self._is_outdated = self._request is not None

    def _ask(self, now: float) -> None:
        """Request the chunk that continues what is commanded and planned."""
        unseen = self._observed.newest - self._action_latency - self._period / 2
        present, prefix, delay = self._plan.continuation(unseen, max(self.delays), self._max_delay, self._is_dropped)
        obs = self._observed.stacked()
        result = self._executor.submit(self._predictor.infer, obs, prefix=prefix, delay=delay)
        self._request, self._is_outdated = _Prediction(result, present, self._calls, now), False
        self._is_discarded = self._is_dropped = False
        self._requested = self.commanded

    def _collect(self, wait: bool = False) -> None:
        """Replace the running chunk by the requested one, if that is there."""
        request = self._request
        if request is None or not (wait or request.result.done()):
            return
        chunk = np.asarray(self._answer(request)["chunk"], dtype=np.float32)
        width = self._width or (chunk.shape[1] if chunk.ndim == 2 else None)
        if chunk.ndim != 2 or len(chunk) <= self._past or chunk.shape[1] != width or not np.isfinite(chunk).all():
            raise ValueError(
                f"the predictor gave a chunk of shape {chunk.shape}, finite: {np.isfinite(chunk).all()}; expected "
                f"finite actions (horizon, {self._width or 'action_dim'}) with a horizon above {self._past}"
            )
        self._width = width
        if not wait:
            self.delays.append(self._calls - request.call)
            ahead = self._plan.ahead
            self.late += self._is_outdated or (ahead is not None and not len(ahead))
        if not (self._is_outdated or self._is_discarded):
            self._plan.begin(chunk, request.present)

    def _answer(self, request: _Prediction) -> Mapping[str, Any]:
        """The predictor's answer; a first chunk is waited for as long as the limits allow."""
        patience_s, self._request = self.limits.first_chunk_s, None
        try:
            return request.result.result(None if patience_s == math.inf else patience_s)
        except FutureTimeoutError:
            if request.result.done():  # the predictor's own error, or a chunk that has come in this moment
                return request.result.result()
            self._request = request
            raise LateError(
                f"no first chunk within {patience_s:g} s of its request (limits.first_chunk_s): is the policy still "
                f"loading, or its server away? Raise the limit if it only needs longer"
            ) from None


def _check_numbers(fps: float, n_obs_steps: int, n_action_steps: int, delay: int, latencies: Sequence[float]) -> None:
    """Raises ValueError for numbers of a `RealtimeAgent` that are out of range."""
    if fps <= 0 or n_obs_steps < 1 or n_action_steps < 1 or delay < 0 or min(latencies) < 0:
        raise ValueError(
            f"fps is {fps}, n_obs_steps {n_obs_steps}, n_action_steps {n_action_steps}, delay {delay}, latencies "
            f"{latencies}; expected fps above 0, counts from 1, and no negative delay or latency"
        )
