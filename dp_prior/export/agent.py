"""An agent without torch: an exported policy, its observation history and its action queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from dp_prior.export.policy import ExportedPolicy
from dp_prior.export.randomness import Randomness


class ExportAgent:
    """Acts as `dp_prior.Agent` does, with the same noise: `reset()` once per episode, `act(obs)` per control step."""

    def __init__(self, policy: ExportedPolicy, n_action_steps: int | None = None, seed: int = 0):
        """
        Args:
            n_action_steps: actions executed before the next prediction; None for the policy's setting.
            seed: determines all noise, together with the episode's number and step.

        Raises:
            ValueError: n_action_steps does not fit into the chunk.
        """
        room = policy.horizon - policy.n_obs_steps + 1
        self.policy = policy
        self.n_action_steps = policy.n_action_steps if n_action_steps is None else n_action_steps
        if not 1 <= self.n_action_steps <= room:
            raise ValueError(f"n_action_steps is {n_action_steps}, but the chunk leaves room for 1 to {room} actions")
        self.seed = seed
        self.episode = -1
        self.reset()

    def reset(self, episode: int | None = None) -> None:
        """Start the next episode, or episode number `episode`; the number determines the noise."""
        self.episode = self.episode + 1 if episode is None else episode
        self._history: deque[dict[str, np.ndarray]] = deque(maxlen=self.policy.n_obs_steps)
        starts = self.policy.document["spec"].get("previous_actions", {})
        self._previous = {key: np.array(start, np.float32) for key, start in starts.items()}
        self._step = 0

    def act(self, obs: Mapping[str, Any]) -> np.ndarray:
        """The next action, (action_dim,) float32 in data units.

        Args:
            obs: (*shape) by key, data units; unknown keys are ignored. A previous action that the policy observes
                may be left out and defaults to the last returned action.

        Raises:
            ValueError: `ExportedPolicy.check` refuses an observation; the agent's state is unchanged.
            RuntimeError: the action is not finite, which a robot must never execute.
        """
        obs = {**self._previous, **obs}
        rows = {key: np.asarray(value)[None] for key, value in obs.items() if key in self.policy.shapes}
        checked = self.policy.check(rows or obs, 1, has_steps=False)
        history = self._history.copy()
        for _ in range(1 if history else self.policy.n_obs_steps):  # the first observation fills the history
            history.append({key: value.copy() for key, value in checked.items()})
        place = self._step % self.n_action_steps
        if place == 0:
            past = {key: np.stack([one[key] for one in history], axis=1) for key in self.policy.shapes}
            random = Randomness.from_counts(self.seed, "agent", [self.episode]).stream("chunk", self._step)
            self._chunk = self.policy.predict(past, random)[0]
        self._history = history
        self._step += 1
        action = self._chunk[self.policy.n_obs_steps - 1 + place]
        if not np.isfinite(action).all():
            raise RuntimeError(
                f"the policy's action is {action.tolist()}, which is not finite: the weights are damaged"
            )
        self._previous = dict.fromkeys(self._previous, action)
        return action.copy()
