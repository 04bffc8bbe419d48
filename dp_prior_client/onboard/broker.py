"""ChunkBroker: runs one robot on chunks of actions from any predictor.

A chunk is predicted from the newest `n_obs_steps` observations. `n_action_steps` of its actions are executed before the
next prediction, beginning at index `n_obs_steps - 1`, which is the present.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior_client.onboard.action_limits import RefusedActionError
from dp_prior_client.onboard.obs_spec import ObsSpec
from dp_prior_client.onboard.safety import SafetyLimits, SafetyMonitor

if TYPE_CHECKING:
    from typing import Unpack

    from dp_prior_client.onboard.dry_run import DryRun, Rehearsal
    from dp_prior_client.onboard.tick_log import TickLog


class AgentOptions(SafetyLimits, total=False):
    """Keyword arguments of every agent of one robot."""

    log: TickLog | None
    """Log of every tick; None for no log."""

    dry: bool | DryRun
    """Whether actions are only shown, and the robot is commanded to stay where it is; a `DryRun` for other settings."""


@dataclass
class StepCounter:
    """Counts the control steps of `infer` in one episode. A prediction still running after `reset` counts on in the
    counter of its own episode."""

    step: int = 0
    """Control step of the next call."""


class ChunkBroker:
    """Hands out actions one at a time: `reset()` at the start of an episode, then `act(obs)` once per control step.

    It keeps the history of observations, the queue of actions and the last commands, and judges every command.
    Subclasses predict: a policy in this process (`dp_prior.Agent`), a connection (`PolicyClient`), an
    export (`ExportAgent`).

    Attributes:
        episode: number of the running episode.
        recorder: notes the ticks in a log; None without one.
        monitor: checks of observations and actions.
    """

    def __init__(
        self,
        reads: ObsSpec,
        n_obs_steps: int,
        n_action_steps: int,
        *,
        log: TickLog | None = None,
        dry: bool | DryRun = False,
        **safety: Unpack[SafetyLimits],
    ):
        """
        Args:
            log, dry: see `AgentOptions`.
            safety: limits of the checks of observations and actions, by name.

        Raises:
            ValueError: the policy's data do not say which command leaves the robot where it is in a dry run; or see
                `SafetyMonitor`.
        """
        self.reads, self.n_obs_steps, self.n_action_steps = reads, n_obs_steps, n_action_steps
        self.recorder = None if log is None else log.recorder(reads)
        self.monitor = SafetyMonitor(reads, **safety)
        self._rehearsal = _rehearsal(reads, dry)
        self.episode = -1
        self.reset()

    def reset(self, episode: int | None = None) -> None:
        """Start the next episode, or the one of a given number, which repeats its noise."""
        self.episode = self.episode + 1 if episode is None else int(episode)
        if self.recorder is not None:
            self.recorder.end()
        if self._rehearsal is not None:
            self._rehearsal.reset()
        self.monitor.reset()
        self._step, self._counter = 0, StepCounter()
        self._history: list[dict[str, np.ndarray]] = []
        self._queue: deque[np.ndarray] = deque()
        self._commands: deque[np.ndarray] = deque(maxlen=self.n_obs_steps)
        self._previous = self.reads.first_actions()

    @property
    def is_dry(self) -> bool:
        """Whether the robot is commanded to stay where it is."""
        return self.rehearses

    @property
    def rehearses(self) -> bool:
        """Whether this agent gives the commands of a dry run itself. No limit concerns these: a robot that rests beyond
        a limit stays there."""
        return self._rehearsal is not None

    def act(self, obs: Mapping[str, Any]) -> np.ndarray:
        """The next action; predicts when the queue is empty.

        Args:
            obs: (*shape) by key, data units; keys the policy does not know are ignored. An instruction may be given as
                a text or as its embedding. The previous action, for policies that see it, defaults to the last result
                of `act`; give the executed action where the robot did something else.

        Returns:
            (action_dim,) float32, data units; within the limits of `actions` where these clip. In a dry run the
            command under which the robot stays where it is.

        Raises:
            ValueError: an observation is refused, see `ObsSpec.check` and `SafetyMonitor`; nothing of it is remembered.
            RefusedActionError: the action is refused, see `ActionLimits`; nothing is remembered, the rest of its chunk
                is dropped, and the next call predicts.
            MovedError: the robot moves in a dry run.
            Exception: whatever the prediction raised; nothing is remembered, and the next call predicts.
        """
        checked = self._checked({**self._previous, **obs} if isinstance(obs, Mapping) else obs)
        self.monitor.check_texts(obs)
        self.monitor.check_obs(checked)
        self.monitor.frames.check(self._frames(obs))
        history = [*self._history, checked][-self.n_obs_steps :] if self._history else [checked] * self.n_obs_steps
        planned = None
        if not self._queue:
            window = {}
            for key in checked:
                window[key] = np.stack([step[key] for step in history])
            self._queue.extend(self._actions(window))
            planned = np.stack(self._queue)
        action, refusal = self._queue.popleft(), None
        previous = self._commands[-1] if self._commands else None
        try:
            action = self.monitor.check_action(action, checked, previous)
        except RefusedActionError as error:
            refusal = error
            self.drop_queued_actions()
        self._note(self._step, checked, action, planned, refusal is not None)
        if refusal is not None and self._rehearsal is None:
            raise refusal
        command = action
        if self._rehearsal is not None:
            command = self._rehearsal.command(self._step, action, checked, self.monitor.problems, refusal is not None)
        self._history = history
        self._step += 1
        if refusal is None:
            self._commands.append(action)
        else:
            self.drop_queued_actions()  # again, as the next prediction is that of the next step
        self._previous = dict.fromkeys(self._previous, command)
        return command.copy()

    def drop_queued_actions(self) -> None:
        """Forget the actions that wait, so that the next `act` predicts: call it when an instruction has changed. The
        history stays, and with it earlier instructions of policies that read several observations."""
        self._queue.clear()

    def infer(
        self, obs: Mapping[str, Any], prefix: np.ndarray | None = None, delay: int = 0, *, step: int | None = None
    ) -> dict[str, Any]:
        """A chunk of this episode, for a caller that keeps history and queue itself, such as `RealtimeAgent`. Its
        actions from the present on are judged, the first as the answer to the newest observation.

        Args:
            obs: (n_obs_steps, *shape) by key, data units, newest last. An instruction may be one text for all steps.
            prefix: (n, action_dim) the unfinished chunk, from the oldest observation's step on, for policies that
                continue it.
            delay: how many of its actions from the newest observation on are executed before the new chunk begins.
            step: control step of the newest observation, which with seed and episode determines the noise; None counts
                n_action_steps for every call since `reset`.

        Returns:
            `chunk` (horizon, action_dim) float32, data units, which begins n_obs_steps - 1 steps before the newest
            observation. In a dry run all its actions are the command under which the robot stays where it is.

        Raises:
            MovedError: the robot moves in a dry run.
            RefusedActionError: an action is refused, see `ActionLimits`; the call does not count as a step.
            Exception: whatever the prediction raised.
        """
        counter, begin = self._counter, self._counter.step
        answer = self._predict(obs, prefix, delay, step=step)
        chunk, refusal, present = answer["chunk"], None, self.n_obs_steps - 1
        newest, now = self._newest(obs), begin if step is None else step
        self.monitor.check_texts(obs)
        try:
            chunk = self.monitor.check_chunk(chunk, newest, present)
        except RefusedActionError as error:
            refusal = error
        first = chunk[present] if chunk.ndim == 2 and len(chunk) > present else np.zeros(0)
        self._note(now, newest, first, chunk[present:] if len(first) else None, refusal is not None)
        if refusal is not None and self._rehearsal is None:
            counter.step = begin
            raise refusal
        if self._rehearsal is not None:
            command = self._rehearsal.command(now, first, newest, self.monitor.problems, refusal is not None)
            chunk = np.repeat(command[None], len(chunk), axis=0)
        return {**answer, "chunk": chunk}

    def _predict(
        self, obs: Mapping[str, Any], prefix: np.ndarray | None = None, delay: int = 0, *, step: int | None = None
    ) -> dict[str, Any]:
        """`infer` before its actions are judged."""
        raise NotImplementedError

    def _newest(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The newest observations that checks, dry run and log need. Args: obs: see `infer`."""
        keys = {*self.monitor.positions, *(() if self._rehearsal is None else self._rehearsal.keys)}
        if self.recorder is not None:
            keys = {*self.reads.observations}
        newest = {}
        for key in keys.intersection(obs):
            read = self.reads.observations[key]
            value = np.array(obs[key]) if read.kind == "text" else self._array(key, obs[key])
            newest[key] = value[-1] if value.ndim > len(read.shape) and read.kind != "text" else value
        return newest

    def _note(
        self, step: int, obs: Mapping[str, np.ndarray], action: np.ndarray, chunk: np.ndarray | None, is_refused: bool
    ) -> None:
        """Log a tick."""
        if self.recorder is None:
            return
        from dp_prior_client.onboard.tick_log import Tick  # loaded with the log

        tick = Tick(time.time(), self.episode, step, obs, action, chunk)
        self.recorder.note(tick._replace(problems=self.monitor.problems, is_refused=is_refused, is_dry=self.is_dry))

    def _array(self, key: str, value: Any) -> np.ndarray:
        """An observation in the type of its kind, on the CPU."""
        return self.reads.array(key, value)

    def _checked(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copies of what the policy reads, (*shape) by key."""
        checked = self.reads.check(self._row(obs), rows=1)
        return {key: value[0] for key, value in checked.items()}

    def _frames(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The observations that the monitor compares as frames of cameras, with the axes that they come with."""
        return {key: np.asarray(obs[key]) for key in self.monitor.frames.keys if key in obs}

    def _check_newest(self, obs: Mapping[str, Any]) -> None:
        """Let the monitor compare the newest frames of (n_obs_steps, *shape)."""
        self.monitor.frames.check({key: frames[-1] for key, frames in self._frames(obs).items() if frames.shape[:1]})

    def leave_frozen(self) -> None:
        """Leave the search for frozen cameras to the caller of `infer`, who sees more frames than those predicted from;
        limits that refuse stay."""
        self.monitor.frames.leave_frozen()

    def _row(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """The observations that the policy reads as the only row of a batch."""
        self.reads.check_names(obs)
        values = {key: obs[key] for key in self.reads.observations}
        return {key: value[None] if isinstance(value, np.ndarray) else [value] for key, value in values.items()}

    def _actions(self, obs: dict[str, np.ndarray]) -> Iterable[np.ndarray]:
        """The actions to execute next, from (n_obs_steps, *shape) by key."""
        present = self.n_obs_steps - 1
        return self._predict(obs, step=self._step)["chunk"][present : present + self.n_action_steps]


def _rehearsal(reads: ObsSpec, dry: bool | DryRun) -> Rehearsal | None:
    """The rehearsal of a dry run; None for a robot that moves."""
    if not dry:
        return None
    from dp_prior_client.onboard.dry_run import DryRun, Rehearsal

    return Rehearsal(reads, DryRun() if dry is True else dry)
