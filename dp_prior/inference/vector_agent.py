"""VectorAgent: a policy in this process that runs episodes in lockstep, one row each; evaluation uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.inference.chunking import Policy
from dp_prior.inference.plans import Plans
from dp_prior.tensors.observations import check_obs, policy_reads
from dp_prior_client.onboard.frame_watch import UNWATCHED
from dp_prior_client.onboard.safety import SafetyLimits, SafetyMonitor


class VectorAgent(Plans):
    """One policy in n episodes that run in lockstep, one row each; see `Plans` for the settings. Its actions are not
    judged: a policy that is lost in a simulator breaks nothing."""

    def __init__(self, policy: Policy | nn.Module, *settings: Any, **options: Any):
        """
        Args:
            settings, options: of `Plans`, and by name those of `SafetyLimits`, of which `actions` must be None. Frames
                are compared where `frames` is given and one row runs: episodes in lockstep are simulated, whose frames
                may repeat.
        """
        safety = {name: options.pop(name) for name in SafetyLimits.__annotations__ if name in options}
        if safety.get("actions") is not None:
            raise ValueError("actions limits a VectorAgent, which does not judge them; give it to an Agent")
        super().__init__(policy, *settings, **options)
        self._monitor = SafetyMonitor(policy_reads(policy), **{"frames": UNWATCHED, **safety})

    def reset(self, episodes: Sequence[int]) -> None:
        """Start one episode per number; forgets observations and queued actions."""
        super().reset(episodes)
        self._monitor.reset()
        self._history: deque[dict[str, Tensor]] = deque(maxlen=self.policy.n_obs_steps)
        starts = self.policy.spec.previous_actions
        self._previous = {key: torch.tensor([start] * len(episodes), device="cpu") for key, start in starts.items()}

    def act(self, obs: Mapping[str, np.ndarray | Tensor], active: np.ndarray | None = None) -> np.ndarray:
        """The next action of every row.

        Args:
            obs: (n, *shape) by key, data units; see `ChunkBroker.act`.
            active: (n,) bool, rows to predict for, None for all. The others get a meaningless finite action.

        Returns:
            (n, action_dim) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs` or `SafetyMonitor`; nothing of it is remembered.
            RuntimeError: `reset` was not called.
            Exception: whatever the policy raised; nothing is remembered, and the next call predicts.
        """
        if self._episodes is None:
            raise RuntimeError("act was called before reset; a VectorAgent must know its episodes first")
        rows = np.arange(len(self._episodes)) if active is None else np.flatnonzero(active)
        obs = {**self._previous, **self.embedded(obs)}
        checked = check_obs(obs, self.policy.spec, rows=len(self._episodes), active=None if active is None else rows)
        self._monitor.check_obs({key: checked[key][rows].cpu().numpy() for key in self._monitor.keys if len(rows)})
        if len(self._episodes) == 1:
            frames = {key: torch.as_tensor(obs[key]) for key in self._monitor.frames.keys}
            self._monitor.frames.check({key: frame[0].cpu().numpy() for key, frame in frames.items()})
        before = self._history.copy()
        self._remember({key: value.clone() for key, value in checked.items()})  # environments reuse their arrays
        if self.is_due:
            try:
                self.predict(self._window(rows), torch.from_numpy(rows))
            except BaseException:  # the chunk is still due, with whatever observation comes next
                self._history = before
                raise
        action = self.next()
        self._previous = dict.fromkeys(self._previous, action)
        return action.numpy().copy()

    @property
    def watches(self) -> bool:
        """Whether a prediction will use the observation that comes next."""
        return self._due - self._step < self.policy.n_obs_steps

    def _window(self, rows: np.ndarray) -> dict[str, Tensor]:
        """(len(rows), n_obs_steps, *shape) by key."""
        rows = torch.from_numpy(rows)
        window = {}
        for key in self.policy.spec.cond_shapes:
            window[key] = torch.stack([obs[key][rows.to(obs[key].device)] for obs in self._history], dim=1)
        return window

    def _remember(self, obs: dict[str, Tensor]) -> None:
        """Append to the history; the first observation fills it."""
        for _ in range(1 if self._history else self.policy.n_obs_steps):
            self._history.append(obs)
